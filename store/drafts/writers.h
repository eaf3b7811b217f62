// Who writes, and when it ends. FUSE names a thread; /proc/TID/status its process (Tgid), /proc/PID/stat when that
// started, a pidfd tells its end, and then PIDFD_GET_INFO (Linux 6.15) or the zombie's /proc/PID/stat how it ended. On
// older kernels, or where the process is another user's and we are not root, how it ended may be unknown.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "store/drafts/draft_machine.h"

namespace weightfs {

// Any thread may call.
class ProcessWatcher {
 public:
  using Ended = std::function<void(ProcessId, ProcessEnd, const std::string& name)>;

  virtual ~ProcessWatcher() = default;  // no callback runs, or comes, afterwards
  // The process of a thread that waits for us in a system call. nullopt: it cannot be told (0: another pid namespace;
  // or /proc hides it, or it is gone).
  virtual std::optional<ProcessId> process_of(pid_t tid) = 0;
  // Calls back once, with no lock held, when the process has ended; at once (on the caller's thread) when it is gone
  // already. Each process is watched once for all who ask; the callback set at the start is told.
  virtual void watch(const ProcessId& process) = 0;

  // The system's. Starts a thread.
  static Result<std::unique_ptr<ProcessWatcher>> start(Ended ended);
};

}  // namespace weightfs
