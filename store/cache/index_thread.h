// The one thread that uses the index. It runs what others post, in order, and about once a second writes what memory
// has changed. An index found damaged while running is set aside and made anew from memory; one that cannot be on disk
// (full, read-only, failing) is kept in memory, so that the cache goes on.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "store/base/mutex.h"
#include "store/cache/index.h"

namespace weightfs {

// An index on disk, or in memory when that cannot be.
struct OpenedIndex {
  Index index;
  Index::Contents contents;
  bool on_disk = true;
};
// Sets a damaged one aside. Never fails for what a file holds or a disk does.
Result<OpenedIndex> open_index(const CacheDir& dir, Index::Caps caps);

class IndexThread {
 public:
  using Job = std::function<Status(Index&)>;  // kCorrupt: the index is damaged; the job is run again on a new one
  struct Hooks {
    Job tick;    // write what has changed
    Job refill;  // the index is a new one: write all that memory knows
  };

  IndexThread(Index index, bool on_disk, std::shared_ptr<CacheDir> dir, Index::Caps caps, Hooks hooks);
  ~IndexThread();  // runs what is posted, ticks, closes

  Status run(Job job) EXCLUDES(mutex_);  // waits; not from a job
  // Best effort: a failure is logged, once in a while. Waits while posted jobs hold more than kMaxPending bytes.
  void post(Job job, std::size_t bytes) EXCLUDES(mutex_);
  // The index is in memory only: nothing it is told is durable.
  bool on_disk() const { return on_disk_.load(); }

 private:
  static constexpr std::size_t kMaxPending = 32 << 20;
  struct Posted {
    std::function<void(Index&)> work;
    std::size_t bytes;
  };
  void loop(const std::stop_token& stop) EXCLUDES(mutex_);
  bool push(Posted posted) EXCLUDES(mutex_);
  Status execute(const Job& job);
  void replace_index();
  void tick();
  void complain(const Status& status);
  void close();

  const std::shared_ptr<CacheDir> dir_;
  const Index::Caps caps_;
  const Hooks hooks_;
  Index index_;  // this thread's own, as the next two
  bool hints_complete_ = true;
  std::optional<std::chrono::steady_clock::time_point> complained_;
  std::atomic<bool> on_disk_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Posted> jobs_ GUARDED_BY(mutex_);
  std::size_t pending_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace weightfs
