// Turns blocks into plain bytes in the cache. A block is fetched and decoded once however many wait for it.
//
//   want()  -> new flights gathered into a batch -> plan pool: paths, metadata, memory
//           -> fetch pool: frames, adjacent ones in one range -> decode pool: digests, decode, flat file -> waiters
//
// A batch whose objects are gone (404: gc was here) or whose bytes are wrong is planned once more from a re-read log
// before its blocks fail.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/threads.h"
#include "store/base/timer.h"
#include "store/materialize/memory_gate.h"
#include "store/materialize/plan.h"

namespace weightfs {

// What a block belongs to. Immutable; shared by open files and flights.
struct TargetFile {
  NodeRef node;
  ManifestPtr manifest;
  std::uint32_t file = 0;
  std::string name;  // "model/version/path", for messages
  FileMapPtr map;
  FlatFilePtr flat;  // null: no room for one, blocks are made in memory only
  FileId id() const { return {node.model.str(), node.number, file}; }
};
using TargetFilePtr = std::shared_ptr<const TargetFile>;

struct MaterializeCounters {
  std::atomic<std::uint64_t> blocks_decoded = 0;
  std::atomic<std::uint64_t> frames_decoded = 0;
  std::atomic<std::uint64_t> bytes_decoded = 0;  // plain
  std::atomic<std::uint64_t> blocks_failed = 0;
  std::atomic<std::uint64_t> prefetches_dropped = 0;
};

class Materializer {
 public:
  struct Options {
    std::uint64_t memory = std::uint64_t{256} << 20;  // bytes of frames and plain blocks under way
    std::size_t decode_threads = 2;
    std::size_t plan_threads = 8;
    Duration deadline = std::chrono::minutes(2);  // of one batch's requests
  };
  // All outlive this. Fetches run on `fetch_pool`.
  Materializer(Bucket& bucket, Cache& cache, Meta& meta, PathSource& paths, WorkerPool& fetch_pool, Options options);
  ~Materializer();

  using Block = std::shared_ptr<const Bytes>;
  using Done = std::function<void(std::size_t block, Status status, Block bytes)>;

  // Calls `done` exactly once for each of `blocks` (ascending), on a thread of the materializer with no lock held.
  // Never blocks. With OK the bytes are verified; they are in the flat file too, unless there is none or the disk is
  // full. A block that is here already may be asked for: it is read and checked.
  void want(const TargetFilePtr& target, const std::vector<std::size_t>& blocks, Done done) EXCLUDES(mutex_);
  // The same without a waiter, when memory allows. Never blocks. How many of `blocks` are on their way or were before;
  // the others were dropped.
  std::size_t prefetch(const TargetFilePtr& target, const std::vector<std::size_t>& blocks) EXCLUDES(mutex_);

  // Runs something on the decode pool. False: shutting down.
  bool post(std::function<void()> job) { return decode_pool_.post(std::move(job)); }
  // The same after a while; at once when shutting down. False: shut down.
  bool post_after(Duration delay, std::function<void()> job) { return timer_.after(delay, std::move(job)); }
  Planner& planner() { return planner_; }
  const MaterializeCounters& counters() const { return counters_; }
  // Fails what is queued with kInterrupted, waits for what runs (bounded by cancelled requests), joins.
  void stop() EXCLUDES(mutex_);

 private:
  struct Flight {
    std::vector<Done> waiters;
  };
  using FlightKey = std::pair<FileId, std::size_t>;
  struct Batch;
  struct Task;
  struct Range;

  void start(const TargetFilePtr& target, std::vector<std::size_t> blocks, int attempt, std::uint64_t memory,
             bool is_prefetch);
  void plan_batch(const std::shared_ptr<Batch>& batch);
  void fetch_batch(const std::shared_ptr<Batch>& batch, std::vector<BlockPlan> plans);
  void range_arrived(const std::shared_ptr<Batch>& batch, std::size_t range, const Status& status);
  void decode_task(const std::shared_ptr<Batch>& batch, std::size_t task);
  Status decode(const Batch& batch, const Task& task, Bytes& out);
  static void look_at_bases(const BlockPlan& plan);
  void task_done(const std::shared_ptr<Batch>& batch, std::size_t block, Status status, Block bytes);
  void finish_batch(Batch& batch);
  void land(const TargetFile& target, std::size_t block, const Status& status, const Block& bytes) EXCLUDES(mutex_);

  Bucket& bucket_;
  PathSource& paths_;
  const Options options_;
  LocalFiles locals_;
  Planner planner_;
  MemoryGate gate_;
  MaterializeCounters counters_;
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();

  Mutex mutex_;  // guards the table only
  std::map<FlightKey, Flight> flights_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;

  WorkerPool& fetch_pool_;
  WorkerPool decode_pool_;
  WorkerPool plan_pool_;
  Timer timer_;
};

}  // namespace weightfs
