// A rate limit shared by everything that moves bytes for one bucket, in both directions.
#pragma once

#include "store/base/clock.h"
#include "store/base/mutex.h"

namespace weightfs {

// Tokens are bytes; they grow at `rate` a second up to a tenth of a second's worth. Any thread may call. Time is the
// caller's, so that it can be tested and so that nobody sleeps in here.
class TokenBucket {
 public:
  explicit TokenBucket(std::uint64_t rate) : rate_(rate) {}  // 0: no limit

  bool unlimited() const { return rate_ == 0; }
  // Takes up to `wanted` bytes that may move at `now`; 0: none yet.
  std::uint64_t take(std::uint64_t wanted, SteadyTime now) EXCLUDES(mutex_);
  // Takes all of `bytes`, if need be from the future: the caller moves them after the time returned has passed.
  Duration reserve(std::uint64_t bytes, SteadyTime now) EXCLUDES(mutex_);
  // When the next byte may move.
  Duration wait(SteadyTime now) EXCLUDES(mutex_);

 private:
  void refill(SteadyTime now) REQUIRES(mutex_);
  const std::uint64_t rate_;
  Mutex mutex_;
  double tokens_ GUARDED_BY(mutex_) = 0;  // negative: reserved ahead
  SteadyTime last_ GUARDED_BY(mutex_){};
};

}  // namespace weightfs
