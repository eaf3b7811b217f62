// Complete files handed to the kernel (FUSE passthrough, Linux 6.9): it reads the flat file by itself, at the disk's
// speed and with one copy of the pages. Needs root; where it is refused, every file is read through the daemon.
//
// All handles of an inode must agree: while one is cached a passthrough open fails, while one is passed through every
// other has to be, with the same backing id. So the mode is chosen when an inode has no handle, and kept until it has
// none again. The kernel forgets a handle before it sends RELEASE, so what is counted here is never less than what the
// kernel holds.
//
// libfuse knows passthrough from 3.17 on; the few bytes it takes are written here, so that older ones do as well.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "fs/fuse.h"
#include "store/base/mutex.h"
#include "store/base/status.h"

namespace weightfs {

class Passthrough {
 public:
  static constexpr std::int32_t kCached = 0;

  // The session's device; once, when the kernel has answered the mount. `granted`: it offered passthrough and was told
  // that we take it. Else `why_not` says why.
  void start(int device, bool granted, const std::string& why_not) EXCLUDES(mutex_);

  // One more handle of `inode`: the backing id to open it with, or kCached. `fd`: the complete flat file, -1: there is
  // none to be passed through.
  std::int32_t acquire(std::uint64_t inode, int fd) EXCLUDES(mutex_);
  void release(std::uint64_t inode, std::int32_t mode) EXCLUDES(mutex_);

  std::uint64_t opens() const { return opens_.load(); }
  // "on", or why it is off.
  std::string state() const EXCLUDES(mutex_);

  // The answer to an OPEN that is passed through.
  struct OpenAnswer {
    std::uint64_t handle;
    std::uint32_t flags;
    std::int32_t backing;
  };
  static OpenAnswer answer(std::uint64_t handle, std::int32_t backing);

 private:
  struct Inode {
    std::uint64_t handles = 0;
    std::int32_t mode = kCached;
  };
  mutable Mutex mutex_;  // held across the ioctl that registers a file: it waits for nothing
  int device_ GUARDED_BY(mutex_) = -1;
  std::string off_ GUARDED_BY(mutex_) = "not mounted yet";  // "": it is on
  std::map<std::uint64_t, Inode> inodes_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> opens_ = 0;
};

}  // namespace weightfs
