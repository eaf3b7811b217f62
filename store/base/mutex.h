// A mutex that Clang's thread-safety analysis understands (libstdc++'s it does not).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WFS_TSA(x) __attribute__((x))
#else
#define WFS_TSA(x)
#endif
#define CAPABILITY(x) WFS_TSA(capability(x))
#define SCOPED_CAPABILITY WFS_TSA(scoped_lockable)
#define GUARDED_BY(x) WFS_TSA(guarded_by(x))
#define PT_GUARDED_BY(x) WFS_TSA(pt_guarded_by(x))
#define REQUIRES(...) WFS_TSA(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) WFS_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) WFS_TSA(release_capability(__VA_ARGS__))
#define EXCLUDES(...) WFS_TSA(locks_excluded(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS WFS_TSA(no_thread_safety_analysis)

namespace weightfs {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits with the Mutex held by the caller. Always wait in a loop over the condition itself.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `deadline` passed.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool woken = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace weightfs
