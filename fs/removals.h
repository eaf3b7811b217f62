// rm -r of a version, where the mount allows it: what is unlinked in a version is hidden on this host, and when its
// directory is removed at last, being empty by then, the version is removed from the bucket for all. A removal that
// stops half way is undone a while after its last step, and by a remount.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "fs/flights.h"
#include "fs/inodes.h"
#include "fs/request.h"

namespace weightfs {

class Removals {
 public:
  using Remove = std::function<Status(const VersionRef&, const CallOptions&)>;
  static constexpr Duration kUndoAfter = std::chrono::seconds(60);

  Removals(Clock& clock, Interrupts& interrupts, WorkerPool& pool, Remove remove)
      : clock_(clock), interrupts_(interrupts), remove_(std::move(remove)), flights_(pool, clock, Duration(0)) {}

  bool hides(const NodeRef& version, std::uint32_t file) const EXCLUDES(mutex_);
  // Nothing of `directory` (kTop: of the version) is to be seen.
  bool hides_all(const VersionTree& tree, std::uint32_t directory) const;

  void unlink(Request request, const VersionTree& tree, std::uint32_t directory, const std::string& name);
  void rmdir(Request request, const VersionTree& tree, std::uint32_t directory, const std::string& name);
  // Waits for the bucket. ENOTEMPTY while something is to be seen.
  void remove_version(Request request, const VersionTree& tree);

 private:
  struct Hidden {
    std::set<std::uint32_t> files;
    SteadyTime last;
  };
  std::optional<std::uint32_t> visible(const VersionTree& tree, std::uint32_t directory, const std::string& name) const;
  void hide(const NodeRef& version, std::uint32_t file) EXCLUDES(mutex_);
  void undo(const NodeRef& version) EXCLUDES(mutex_);

  Clock& clock_;
  Interrupts& interrupts_;
  const Remove remove_;
  Flights<NodeRef, bool> flights_;
  mutable Mutex mutex_;
  mutable std::map<NodeRef, Hidden> hidden_ GUARDED_BY(mutex_);  // mutable: what has expired is dropped by who looks
};

}  // namespace weightfs
