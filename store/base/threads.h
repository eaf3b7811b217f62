// Named threads and a pool. A thread has one owner that starts, names and joins it; none starts before a daemon has
// forked.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "store/base/mutex.h"

namespace weightfs {

// Starts a thread named `name` (at most 15 bytes are shown) with all signals blocked. An exception at its top aborts.
std::jthread start_thread(const std::string& name, std::function<void(std::stop_token)> body);

// Runs jobs in order of arrival on a fixed number of threads. A job never waits for a job of its own pool.
class WorkerPool {
 public:
  WorkerPool(const std::string& name, std::size_t threads);
  ~WorkerPool();  // runs what is queued, then joins
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Never blocks. False after stop(): the job is destroyed, not run.
  bool post(std::function<void()> job) EXCLUDES(mutex_);
  // Takes no more jobs, runs those queued, joins. Idempotent; not from a job.
  void stop() EXCLUDES(mutex_);
  std::size_t size() const { return count_; }
  std::size_t queued() const EXCLUDES(mutex_);

 private:
  void run();
  const std::size_t count_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace weightfs
