// Logs and entries for tests: hand-made, with known ids and sizes.
#pragma once

#include <string>

#include "store/log/model_logs.h"
#include "store/log/operations.h"
#include "store/log/state_builder.h"
#include "tests/support/fake_clock.h"
#include "tests/support/memory_bucket.h"
#include "tests/support/status_matchers.h"

namespace weightfs::testing {

inline ModelName model_name(const std::string& name) { return *ModelName::parse(name); }
inline VersionName version_name(const std::string& name) { return *VersionName::parse(name); }
std::string id_of(const std::string& seed);  // 32 hex digits
Sha256 digest_of(const std::string& seed);

// An edge with `bytes` to fetch; its pack is named after `pack`.
EdgeRef edge_of(const std::string& pack, std::optional<NodeRef> from, std::uint64_t to, std::uint64_t bytes = 100);
// A publish of `version` from `parent` (or from nothing); its pack and manifest are named after `version`.
PublishEntry publish_of(const std::string& version, std::optional<NodeRef> parent = std::nullopt,
                        std::uint64_t bytes = 100);

// Puts the objects that such an entry speaks of into the bucket.
void put_objects(Bucket& bucket, const ModelName& model, const PublishEntry& entry);
void put_pack(Bucket& bucket, const ModelName& model, const EdgeRef& edge);

// Writes the next entries of a log straight into the bucket, as a right writer would.
class LogWriter {
 public:
  LogWriter(MemoryObjects& objects, ModelName model) : objects_(objects), model_(std::move(model)) {}
  std::uint64_t add(decltype(LogEntry::body) body);  // the entry's number
  std::uint64_t publish(const std::string& version, std::optional<NodeRef> parent = std::nullopt,
                        std::uint64_t bytes = 100);
  void snapshot();  // of all so far
  void hint(std::uint64_t head);
  std::uint64_t head() const { return head_; }
  NodeRef node(std::uint64_t number) const { return {model_, number}; }

 private:
  MemoryObjects& objects_;
  ModelName model_;
  std::uint64_t head_ = 0, snapshot_ = 0;
  std::optional<Sha256> digest_;
  std::vector<std::pair<LogEntry, Sha256>> since_;  // not yet in state_
  ModelStatePtr state_;
};

// What can be told of a state from outside, for comparisons.
std::string describe(const ModelState& state);

}  // namespace weightfs::testing
