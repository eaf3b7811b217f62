// Questions to the bucket, asked on a pool; who asks the same while one is on its way waits for that one's answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/threads.h"
#include "store/bucket/bucket.h"

namespace weightfs {

// An answer for T under Key. Any thread may call; nothing here waits.
template <typename Key, typename T>
class Flights {
 public:
  using Ask = std::function<Result<T>(const CallOptions&)>;
  using Done = std::function<void(const Result<T>&)>;

  // A failure that leaves the bucket out of reach answers everyone who asks within `remember`.
  Flights(WorkerPool& pool, Clock& clock, Duration remember) : pool_(pool), clock_(clock), remember_(remember) {}

  std::uint64_t new_waiter() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return next_++;
  }

  // Calls `done` once: on the pool, on the canceller's thread, or at once.
  void join(const Key& key, std::uint64_t waiter, Duration deadline, Ask ask, Done done) EXCLUDES(mutex_) {
    std::optional<Status> known;
    bool start = false;
    auto flight = std::make_shared<Flight>();
    {
      MutexLock lock(mutex_);
      auto failed = failures_.find(key);
      if (failed != failures_.end()) {
        if (clock_.now() - failed->second.at < remember_) {
          known = failed->second.status;
        } else {
          failures_.erase(failed);
        }
      }
      if (!known) {
        auto [entry, is_new] = flights_.emplace(key, flight);
        start = is_new;
        entry->second->waiters.emplace(waiter, std::move(done));
      }
    }
    if (known) return done(Result<T>(*known));
    if (!start) return;
    bool posted = pool_.post([this, key, flight, deadline, ask = std::move(ask)] {
      finish(key, flight, ask(CallOptions{deadline, flight->cancel}));
    });
    if (!posted) finish(key, flight, Status(Code::kInterrupted, "unmounting"));
  }

  // The waiter gets kInterrupted, if it has no answer yet. A question that nobody waits for any more is cancelled.
  // False: no such waiter, now.
  bool leave(const Key& key, std::uint64_t waiter) EXCLUDES(mutex_) {
    Done done;
    {
      MutexLock lock(mutex_);
      auto found = flights_.find(key);
      if (found == flights_.end()) return false;
      auto flight = found->second;
      auto mine = flight->waiters.find(waiter);
      if (mine == flight->waiters.end()) return false;
      done = std::move(mine->second);
      flight->waiters.erase(mine);
      if (flight->waiters.empty()) {
        flight->cancel->cancel();
        flights_.erase(found);  // who asks from now on starts anew
      }
    }
    done(Result<T>(Status(Code::kInterrupted, "interrupted")));
    return true;
  }

 private:
  struct Flight {
    std::map<std::uint64_t, Done> waiters;  // guarded by mutex_
    std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
  };
  static constexpr std::size_t kMostFailures = 4096;
  struct Failure {
    SteadyTime at;
    Status status;
  };

  void finish(const Key& key, const std::shared_ptr<Flight>& flight, const Result<T>& result) EXCLUDES(mutex_) {
    std::map<std::uint64_t, Done> waiters;
    {
      MutexLock lock(mutex_);
      waiters.swap(flight->waiters);
      auto found = flights_.find(key);
      if (found != flights_.end() && found->second == flight) flights_.erase(found);
      if (result.code() == Code::kUnavailable && remember_ > Duration(0)) {
        if (failures_.size() >= kMostFailures) failures_.clear();
        failures_.insert_or_assign(key, Failure{clock_.now(), result.status()});
      } else if (result.is_ok()) {
        failures_.erase(key);
      }
    }
    for (auto& [waiter, done] : waiters) done(result);
  }

  WorkerPool& pool_;
  Clock& clock_;
  const Duration remember_;
  Mutex mutex_;
  std::uint64_t next_ GUARDED_BY(mutex_) = 1;
  std::map<Key, std::shared_ptr<Flight>> flights_ GUARDED_BY(mutex_);
  std::map<Key, Failure> failures_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
