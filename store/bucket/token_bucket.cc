#include "store/bucket/token_bucket.h"

#include <algorithm>
#include <cmath>

namespace weightfs {

void TokenBucket::refill(SteadyTime now) {
  if (last_ == SteadyTime{}) last_ = now;
  double seconds = std::chrono::duration<double>(now - last_).count();
  if (seconds <= 0) return;
  last_ = now;
  tokens_ = std::min(tokens_ + seconds * static_cast<double>(rate_), std::max(1.0, static_cast<double>(rate_) / 10));
}

std::uint64_t TokenBucket::take(std::uint64_t wanted, SteadyTime now) {
  if (unlimited()) return wanted;
  MutexLock lock(mutex_);
  refill(now);
  if (tokens_ < 1) return 0;
  auto taken = std::min(wanted, static_cast<std::uint64_t>(tokens_));
  tokens_ -= static_cast<double>(taken);
  return taken;
}

Duration TokenBucket::reserve(std::uint64_t bytes, SteadyTime now) {
  if (unlimited()) return Duration(0);
  MutexLock lock(mutex_);
  refill(now);
  tokens_ -= static_cast<double>(bytes);
  if (tokens_ >= 0) return Duration(0);
  return Duration(static_cast<std::int64_t>(std::ceil(-tokens_ * 1000 / static_cast<double>(rate_))));
}

Duration TokenBucket::wait(SteadyTime now) {
  if (unlimited()) return Duration(0);
  MutexLock lock(mutex_);
  refill(now);
  if (tokens_ >= 1) return Duration(0);
  return Duration(static_cast<std::int64_t>(std::ceil((1 - tokens_) * 1000 / static_cast<double>(rate_))));
}

}  // namespace weightfs
