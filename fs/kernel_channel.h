// Reads and writes of /dev/fuse on libfuse's behalf, for what it does not pass on: the answer to the kernel's INIT gets
// flags that libfuse 3.14 drops or does not know.
//
// FUSE_PARALLEL_DIROPS (asked for by FUSE_CAP_PARALLEL_DIROPS, but dropped): without it the kernel keeps one lookup of
// a directory at a time, in a sleep that not even SIGKILL ends; and a lookup here may wait for the bucket.
// FUSE_HANDLE_KILLPRIV_V2: without it every write costs a second request, getxattr of security.capability. With it the
// filesystem clears set-user-id and set-group-id bits when it changes a file's bytes.
// FUSE_PASSTHROUGH (asked for by libfuse from 3.17 on), see passthrough.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "fs/fuse.h"
#include "store/base/status.h"

namespace weightfs {

class KernelChannel {
 public:
  // The session is mounted and not yet read from. Its userdata is the SessionData that has this object.
  Status take_over(fuse_session* session, bool want_passthrough);
  // The kernel has been told what is taken of what it offered; before, the answers below are false.
  bool answered() const { return granted_.load() != 0; }
  bool parallel_directories() const { return (granted_.load() & kParallelDirectories) != 0; }
  // The kernel offered it, and was told that it is taken.
  bool passthrough() const { return passthrough_.load(); }

 private:
  static constexpr std::uint32_t kParallelDirectories = 1u << 18, kKillPrivileges = 1u << 28, kExtended = 1u << 30,
                                 kPassthrough = 1u << 5;  // the last in the second word
  static ssize_t read(int fd, void* buffer, std::size_t size, void* userdata);
  static ssize_t writev(int fd, iovec* pieces, int count, void* userdata);
  std::atomic<std::uint64_t> init_ = 0;  // number of the INIT request, until it is answered
  std::atomic<std::uint32_t> offered_ = 0, offered_more_ = 0, granted_ = 0;
  std::atomic<bool> want_passthrough_ = false, passthrough_ = false;
};

}  // namespace weightfs
