// Time that stands still until a test moves it. Any thread may call.
#pragma once

#include "store/base/clock.h"
#include "store/base/mutex.h"

namespace weightfs {

class FakeClock final : public Clock {
 public:
  SteadyTime now() const override EXCLUDES(mutex_);
  WallTime wall() const override EXCLUDES(mutex_);
  void sleep_for(Duration duration) override { advance(duration); }  // returns at once

  void advance(Duration duration) EXCLUDES(mutex_);  // both clocks
  void set_wall(WallTime time) EXCLUDES(mutex_);     // may go backwards

 private:
  mutable Mutex mutex_;
  SteadyTime now_ GUARDED_BY(mutex_){std::chrono::hours(1)};
  WallTime wall_ GUARDED_BY(mutex_){std::chrono::sys_days(std::chrono::year(2026) / 12 / 1)};
};

}  // namespace weightfs
