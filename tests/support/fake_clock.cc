#include "tests/support/fake_clock.h"

namespace weightfs {

SteadyTime FakeClock::now() const {
  MutexLock lock(mutex_);
  return now_;
}

WallTime FakeClock::wall() const {
  MutexLock lock(mutex_);
  return wall_;
}

void FakeClock::advance(Duration duration) {
  MutexLock lock(mutex_);
  now_ += duration;
  wall_ += duration;
}

void FakeClock::set_wall(WallTime time) {
  MutexLock lock(mutex_);
  wall_ = time;
}

}  // namespace weightfs
