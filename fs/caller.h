// What /proc tells about the thread that waits for an answer. FUSE names a thread, 0 where it cannot: another pid
// namespace, a page written back by the kernel, RELEASE. Files of /proc that cannot be read tell nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

namespace weightfs {

struct Caller {
  pid_t tid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// The thread waits in a page fault, so an error kills it (SIGBUS). /proc/TID/syscall shows -1 in a fault. Where that
// may not be read (another user, yama), a file that the process has mapped is taken to be faulted on; `dev` and `inode`
// are the file's as stat shows them.
bool waits_in_page_fault(pid_t tid, dev_t dev, std::uint64_t inode);

// PF_EXITING: the file is closed by the process's end, not by close().
bool is_exiting(pid_t tid);

enum class PendingSignal : std::uint8_t {
  kNone,    // or one that no wait on a local disk would notice
  kPerson,  // SIGINT, SIGTERM, SIGHUP or SIGQUIT that the program catches: someone wants it to stop waiting
  kFatal,
};
PendingSignal pending_signal(pid_t tid);  // kFatal when the thread is gone

namespace internal {
bool syscall_is_page_fault(std::string_view syscall_text, std::uint64_t task_flags);
std::uint64_t task_flags(std::string_view stat_text);  // 0 when malformed
PendingSignal pending_signal(std::string_view status_text);
bool maps_file(std::string_view maps_text, dev_t dev, std::uint64_t inode);
}  // namespace internal

}  // namespace weightfs
