// Small helpers of this room: several requests at once, and one deadline over many calls.
#pragma once

#include <functional>

#include "store/base/clock.h"
#include "store/bucket/bucket.h"

namespace weightfs {

// Runs job(0) … job(count - 1), at most `threads` at once, and returns when all are done. With one thread they run in
// order on the caller's.
void run_parallel(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& job);

// The deadline of a call that makes several.
class Deadline {
 public:
  Deadline(Clock& clock, const CallOptions& options)
      : clock_(clock), until_(clock.now() + options.deadline), cancel_(options.cancel) {}
  Duration left() const { return std::chrono::duration_cast<Duration>(until_ - clock_.now()); }
  // kUnavailable when it has passed, kInterrupted when cancelled.
  Status check() const;
  CallOptions options() const { return at_most(left()); }
  CallOptions at_most(Duration duration) const {
    return {.deadline = std::max(std::min(duration, left()), Duration(1)), .cancel = cancel_};
  }
  // Waits, but not past the deadline.
  void sleep(Duration duration) const {
    clock_.sleep_for(std::clamp(duration, Duration(0), std::max(left(), Duration(0))));
  }

 private:
  Clock& clock_;
  SteadyTime until_;
  std::shared_ptr<const CancelToken> cancel_;
};

}  // namespace weightfs
