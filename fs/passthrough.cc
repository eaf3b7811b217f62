#include "fs/passthrough.h"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>

#include "fs/errno.h"

namespace weightfs {
namespace {

// From linux/fuse.h, 7.40; Debian 12's is older.
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);
constexpr std::uint32_t kOpenNoFlush = 1u << 5, kOpenPassthrough = 1u << 7;

}  // namespace

void Passthrough::start(int device, bool granted, const std::string& why_not) {
  MutexLock lock(mutex_);
  device_ = device;
  off_ = granted ? "" : why_not;
}

std::int32_t Passthrough::acquire(std::uint64_t inode, int fd) {
  MutexLock lock(mutex_);
  auto [at, is_new] = inodes_.try_emplace(inode);
  auto& known = at->second;
  if (is_new && fd >= 0 && off_.empty()) {
    BackingMap map{fd, 0, 0};
    int id = ::ioctl(device_, kBackingOpen, &map);
    if (id > 0) {
      known.mode = id;
    } else {
      // The next file would be refused as this one was: rights, or the kind of filesystem that the cache is on.
      off_ = "refused by the kernel: " + std::string(Errno::last().name());
      spdlog::info("passthrough: {}", off_);
    }
  }
  known.handles++;
  if (known.mode != kCached) opens_.fetch_add(1, std::memory_order_relaxed);
  return known.mode;
}

void Passthrough::release(std::uint64_t inode, std::int32_t mode) {
  MutexLock lock(mutex_);
  auto found = inodes_.find(inode);
  if (found == inodes_.end() || --found->second.handles > 0) return;
  inodes_.erase(found);
  if (mode == kCached) return;
  auto id = static_cast<std::uint32_t>(mode);
  if (::ioctl(device_, kBackingClose, &id) != 0) spdlog::warn("passthrough: close: {}", Errno::last().name());
}

std::string Passthrough::state() const {
  MutexLock lock(mutex_);
  return off_.empty() ? "on" : off_;
}

Passthrough::OpenAnswer Passthrough::answer(std::uint64_t handle, std::int32_t backing) {
  return {handle, kOpenPassthrough | kOpenNoFlush, backing};
}

}  // namespace weightfs
