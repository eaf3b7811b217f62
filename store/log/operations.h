// What is done to a model, each as one entry of its log (and a hold in another's). Every condition is checked against
// the state right before the entry's number, and again when another writer was faster; so the order of the log alone
// decides who wins. Each may be called again with the same `id` after kUnavailable or kInterrupted, and then does not
// happen twice. Any thread may call.
//
// Errors of all: those of ModelLog::append. None leaves an entry behind but kUnavailable and kInterrupted, which may.
// A hold that was not needed in the end only makes gc of its model wait an hour.
#pragma once

#include <optional>
#include <string>

#include "store/log/model_logs.h"

namespace weightfs {

// Makes a version. Its packs and manifest are in the bucket already. entry.edge.to is filled in here.
// kExists: the name belongs to a live version. kNotFound: what the edge builds on is not there any more, or not
// buildable (collected): take another parent. kBusy: gc has named one of its own objects (the upload took longer than
// the grace time without a heartbeat, or equals a manifest that was deleted): upload under new names.
// With a parent in another model a hold is made there first; it counts for gc from then on.
Result<LogEntry> publish(ModelLogs& logs, const ModelName& model, const std::string& id, PublishEntry entry,
                         const CallOptions& options = {});

// Announces a skip edge or a full edge. kNotFound: one of its ends is not there (any more). kBusy: as above.
// kExists: its pack is announced already. Harmless when late or lost.
Result<LogEntry> add_edge(ModelLogs& logs, const ModelName& model, const std::string& id, EdgeRef edge,
                          const CallOptions& options = {});

// Removes the live version of that name; with `number` only if it is that one. Its bytes stay for versions that are
// built from it; gc decides. kNotFound: no such live version.
Result<LogEntry> remove_version(ModelLogs& logs, const ModelName& model, const std::string& id,
                                const VersionName& version, std::optional<std::uint64_t> number = std::nullopt,
                                const CallOptions& options = {});

// Tells gc of `target.model` that a commit of `child` is about to build on it. kNotFound: it is not there or not
// buildable. Lasts at least an hour, and on while the child's log has an edge from the target.
Result<LogEntry> hold(ModelLogs& logs, const NodeRef& target, const ModelName& child, const std::string& child_commit,
                      const CallOptions& options = {});

// gc believes in a hold without an edge for max(grace, kHoldLasts) of the server's time. A writer uses one only for
// kHoldFresh of its own time before it makes another, and where the commit took longer than kHoldTrusted looks again.
inline constexpr Duration kHoldLasts = std::chrono::hours(1);
inline constexpr Duration kHoldTrusted = std::chrono::minutes(45);
inline constexpr Duration kHoldFresh = std::chrono::minutes(15);

}  // namespace weightfs
