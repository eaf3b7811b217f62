// Bounds the bytes that fetching and decoding hold at once.
#pragma once

#include <cstdint>

#include "store/base/mutex.h"

namespace weightfs {

// Any thread may call.
class MemoryGate {
 public:
  explicit MemoryGate(std::uint64_t limit) : limit_(limit) {}

  // Waits until `bytes` fit (one request larger than the limit fits when nothing else is held). False: closed.
  bool acquire(std::uint64_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!closed_ && used_ > 0 && used_ + bytes > limit_) changed_.wait(mutex_);
    if (closed_) return false;
    used_ += bytes;
    return true;
  }
  // Without waiting: for what turns out to be more than was asked for.
  void add(std::uint64_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    used_ += bytes;
  }
  // For what can be left undone: only while at most half is held afterwards.
  bool try_acquire(std::uint64_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || used_ + bytes > limit_ / 2) return false;
    used_ += bytes;
    return true;
  }
  void release(std::uint64_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    used_ -= bytes;
    changed_.notify_all();
  }
  void close() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  std::uint64_t used() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return used_;
  }

 private:
  const std::uint64_t limit_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t used_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace weightfs
