// Adds up entries into a ModelState. A pure function of the entries: every reader of a log comes to the same state,
// whether it replays the log from its beginning or goes on from a snapshot.
#pragma once

#include "store/log/model_state.h"

namespace weightfs {

class StateBuilder {
 public:
  explicit StateBuilder(const ModelName& model) : state_(model) {}
  explicit StateBuilder(const ModelState& from) : state_(from) { state_.broken.reset(); }
  // For a snapshot's reader: `state` has all fields, edges in order; what is derived from them is made by build().
  explicit StateBuilder(ModelState&& state) : state_(std::move(state)) { restore(); }

  std::uint64_t head() const { return state_.head; }
  const std::optional<Sha256>& head_digest() const { return state_.head_digest; }

  // Adds entry head() + 1, whose bytes have `digest`. kCorrupt, and nothing is added: it does not continue this log.
  // An entry that asks for what the log does not allow (a name that is taken, a version that is not there) is part of
  // the chain but has no effect: such a writer did not check its conditions, and may not take the log down with it.
  Status apply(const LogEntry& entry, const Sha256& digest);

  ModelStatePtr build(std::optional<Status> broken = std::nullopt) &&;

 private:
  void restore();
  void apply_body(const LogEntry& entry, const PublishEntry& body);
  void apply_body(const LogEntry& entry, const RemoveEntry& body);
  void apply_body(const LogEntry& entry, const EdgeEntry& body);
  void apply_body(const LogEntry& entry, const HoldEntry& body);
  void apply_body(const LogEntry& entry, const CollectEntry& body);
  void apply_body(const LogEntry& entry, const SnapshotEntry& body);
  void apply_body(const LogEntry& entry, const IgnoredEntry& body);
  void add_edge(std::uint64_t entry, const EdgeRef& edge);
  void finish_collect(std::uint64_t entry);
  void forget_unbuildable();
  bool buildable(std::uint64_t number) const;
  ModelState state_;
};

}  // namespace weightfs
