// Jobs that run later, on one thread of their own.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "store/base/mutex.h"
#include "store/base/threads.h"

namespace weightfs {

// Any thread may call. Jobs must return soon: the others wait for them.
class Timer {
 public:
  explicit Timer(const std::string& name);
  ~Timer() { stop(); }
  // Runs `job` once that time has passed. False after stop(): the job is destroyed, not run.
  bool after(std::chrono::milliseconds delay, std::function<void()> job) EXCLUDES(mutex_);
  // Runs what waits at once, early, and joins. Idempotent; not from a job.
  void stop() EXCLUDES(mutex_);

 private:
  void run();
  Mutex mutex_;
  CondVar changed_;
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace weightfs
