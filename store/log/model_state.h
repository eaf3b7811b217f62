// What a model's log adds up to. Immutable once made; shared by reference among threads.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/format/records.h"

namespace weightfs {

struct ModelState {
  explicit ModelState(ModelName name) : model(std::move(name)) {}
  ModelName model;
  std::uint64_t head = 0;             // number of the last entry; 0: the model does not exist
  std::optional<Sha256> head_digest;  // of the last entry's bytes
  std::uint64_t snapshot = 0;         // newest snapshot entry
  std::map<std::uint64_t, VersionRecord>
      versions;                         // by number: order of publishing; removed ones too while edges build them
  std::vector<EdgeRecord> edges;        // by entry number; collected ones until the collect is carried out
  std::vector<HoldRecord> holds;        // of one child and target only the newest
  std::vector<CollectRecord> collects;  // not yet known to be carried out
  // Objects of collects that were carried out and whose keys could come again (manifests, packs that no entry named):
  // an upload that was under way so long may not use them.
  std::set<ObjectKey> retired;
  // Set when an entry past `head` is damaged or of a later format: what is here is readable, nothing can be appended.
  std::optional<Status> broken;

  const VersionRecord* live(const VersionName& name) const;  // the newest live version of that name
  const VersionRecord* version(std::uint64_t number) const;  // live or removed
  const VersionRecord* latest() const;                       // the live version with the highest number; null: none
  std::vector<const VersionRecord*> live_versions() const;   // ascending by number
  bool is_collected(const ObjectKey& object) const;          // named by a collect, carried out or not
  std::vector<const EdgeRecord*> edges_into(std::uint64_t number) const;  // usable ones, by entry number
  const EdgeRecord* edge_of_entry(std::uint64_t entry) const;             // usable or collected; null: none

 private:
  friend class StateBuilder;
  std::map<VersionName, std::uint64_t> live_by_name_;
  std::multimap<std::uint64_t, std::uint32_t> edges_by_target_;  // version → index in edges
};

using ModelStatePtr = std::shared_ptr<const ModelState>;

}  // namespace weightfs
