#include "store/publish/stall_watch.h"

#include <fmt/format.h>

#include "store/base/threads.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kBelievable =
    2;  // retries since something of ours came through, after which bytes alone prove nothing

}  // namespace

bool BucketProgress::moved(bool own) {
  auto retries = counters_.retries.load();
  auto bytes = counters_.put_bytes.load() + counters_.get_bytes.load();
  if (own) retries_ = retries;
  bool flows = bytes != bytes_ && retries - retries_ <= kBelievable;
  bytes_ = bytes;
  return own || flows;
}

Status stalled(Duration patience) {
  return {Code::kUnavailable, fmt::format("no progress for {:g} s", static_cast<double>(patience.count()) / 1000)};
}

StallWatch::StallWatch(const BucketCounters& counters, std::shared_ptr<const CancelToken> outer, Duration patience)
    : outer_(std::move(outer)), patience_(patience), progress_(counters) {
  thread_ = start_thread("publish-watch", [this](const std::stop_token& stop) { run(stop); });
}

StallWatch::~StallWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  thread_.join();
}

Status StallWatch::explain(Status status) const {
  if (status.code() != Code::kInterrupted || !stalled_ || (outer_ && outer_->cancelled())) return status;
  return stalled(patience_);
}

void StallWatch::run(const std::stop_token& /*stop*/) {
  auto last = std::chrono::steady_clock::now();
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) stop_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
      if (stopping_) return;
    }
    if (outer_ && outer_->cancelled()) token_->cancel();
    auto now = std::chrono::steady_clock::now();
    if (progress_.moved(moved_.exchange(false)) || paused_) last = now;
    if (now - last < patience_ || token_->cancelled()) continue;
    stalled_ = true;
    token_->cancel();
  }
}

}  // namespace weightfs
