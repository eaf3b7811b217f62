// Ends the connection to the kernel when the daemon was killed and the kernel cannot end it by itself. A thread of a
// killed daemon may be inside a notification, where it waits for a directory's lock; a call that waits for the daemon's
// answer may hold that lock; and the connection, which would let that call go, ends only with the daemon's last thread.
// Nothing gets out of this circle but an abort from outside, so a second process stands by that does nothing else.
#pragma once

#include <string>

#include "store/base/posix.h"

namespace weightfs {

class ConnectionGuard {
 public:
  // Where the kernel shows its FUSE connections, if fusectl is mounted (systemd does).
  static constexpr const char* kConnections = "/sys/fs/fuse/connections";

  // Forks the guard. Call it from the main thread, whose end the guard is told of, and before there is another thread.
  // The guard keeps nothing of the process open, and leaves its session and directory.
  static Result<ConnectionGuard> start(std::string connections = kConnections);
  // The mount to look after: its connection is aborted when this process' main thread has ended, half a second later,
  // and other threads have not. By fusectl, or as root by umount2(MNT_FORCE); who is not root needs fusectl. The mount
  // stays, and answers ENOTCONN.
  Status watch(const std::string& mountpoint);

  // Ends the guard and waits for it.
  ~ConnectionGuard();
  ConnectionGuard(ConnectionGuard&& other) noexcept : to_guard_(std::move(other.to_guard_)), pid_(other.pid_) {
    other.pid_ = -1;
  }
  ConnectionGuard& operator=(ConnectionGuard&&) = delete;

 private:
  ConnectionGuard(Fd to_guard, pid_t pid) : to_guard_(std::move(to_guard)), pid_(pid) {}
  Fd to_guard_;  // its end of file tells the guard that all of the daemon has ended
  pid_t pid_;
};

}  // namespace weightfs
