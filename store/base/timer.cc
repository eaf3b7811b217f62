#include "store/base/timer.h"

namespace weightfs {

Timer::Timer(const std::string& name) : thread_(start_thread(name, [this](const std::stop_token&) { run(); })) {}

bool Timer::after(std::chrono::milliseconds delay, std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    jobs_.emplace(std::chrono::steady_clock::now() + delay, std::move(job));
  }
  changed_.notify_one();
  return true;
}

void Timer::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Timer::run() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (jobs_.empty()) {
          if (stopping_) return;
          changed_.wait(mutex_);
          continue;
        }
        auto due = jobs_.begin()->first;
        if (stopping_ || due <= std::chrono::steady_clock::now()) break;
        changed_.wait_until(mutex_, due);
      }
      job = std::move(jobs_.begin()->second);
      jobs_.erase(jobs_.begin());
    }
    job();
  }
}

}  // namespace weightfs
