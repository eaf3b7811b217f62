#include "store/base/threads.h"

#include <pthread.h>
#include <signal.h>

namespace weightfs {

std::jthread start_thread(const std::string& name, std::function<void(std::stop_token)> body) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::jthread thread([name, body = std::move(body)](std::stop_token stop) {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    body(std::move(stop));
  });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return thread;
}

WorkerPool::WorkerPool(const std::string& name, std::size_t threads) : count_(threads) {
  for (std::size_t i = 0; i < threads; i++) {
    threads_.push_back(start_thread(name + std::to_string(i), [this](const std::stop_token&) { run(); }));
  }
}

WorkerPool::~WorkerPool() { stop(); }

bool WorkerPool::post(std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void WorkerPool::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

std::size_t WorkerPool::queued() const {
  MutexLock lock(mutex_);
  return jobs_.size();
}

void WorkerPool::run() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) changed_.wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace weightfs
