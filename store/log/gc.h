// Deletes what a model's log does not need any more, without breaking a version that is there or a publish under way,
// whatever else happens meanwhile and wherever it stops. Two phases:
//   1. a collect entry names what will go. From then on no edge of it is used for a path, and a publish that would
//   build
//      on it, or whose own objects it names, fails clean. The order of the log decides.
//   2. when the entry is older than the grace time by the server's clock (so that readers that planned before it are
//      done), the objects are deleted; a later collect entry says so.
//
// Kept are: every edge on the cheapest path from nothing to a live version or to a version that another model holds;
// the edge to each live version from its live parent; the manifests of all versions on those; the two newest snapshots;
// what was put less than the grace time ago, or belongs to a pack whose heartbeat object was. The log itself is never
// touched. A hold counts for max(grace, kHoldLasts), and on while the child's log has a usable edge from its target.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "store/log/operations.h"

namespace weightfs {

struct GcItem {
  enum class What : std::uint8_t {
    kCollected,  // will be deleted when the grace time is over: now named by a collect entry (dry run: would be)
    kWaiting,    // named by an earlier collect entry, whose grace time is not over
    kDeleted,    // is deleted (dry run: would be)
  };
  What what = What::kCollected;
  ObjectKey key;
  std::uint64_t bytes = 0;  // 0: not there any more
  std::string why;          // for people: "edge 12, no version needs it"
};

struct GcResult {
  std::vector<GcItem> items;
  std::uint64_t kept_objects = 0, kept_bytes = 0;  // of packs, manifests, snapshots
  std::uint64_t count(GcItem::What what) const;
  std::uint64_t bytes(GcItem::What what) const;
  std::optional<WallTime> ready;  // by the server's clock: when what is waiting or collected may be deleted
};

struct GcOptions {
  Duration grace = std::chrono::hours(24);
  bool dry_run = false;                  // makes no write request
  std::uint32_t deletes_per_second = 0;  // 0: as fast as the store takes them
  // After each deletion, on the caller's thread; `total` are the deletions of this run.
  std::function<void(const GcItem& item, std::uint64_t done, std::uint64_t total)> progress;
  // The deadline is of each request, not of the whole. Cancelling stops between deletions.
  CallOptions call;
};

// Runs both phases as far as they are due. May be stopped or fail anywhere, and be run again, also by several hosts at
// once. Reads the logs of the models it builds on and of those that it is held for.
// kNotFound: no such model. kCorrupt: a live version cannot be rebuilt, or a log is damaged: nothing is collected, as
// what is still needed cannot be told. kUnavailable, kInterrupted, kPermission, kReadOnly: as the bucket said; what was
// deleted up to then was no longer needed.
Result<GcResult> gc(ModelLogs& logs, const ModelName& model, const GcOptions& options = {});

}  // namespace weightfs
