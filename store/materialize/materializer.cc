#include "store/materialize/materializer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/codec/codec.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMergeGap = 4 << 10;  // fetched and thrown away, to save a request
constexpr std::uint64_t kMaxRange = 4 << 20;  // bytes of one request; they are decoded when all have come
constexpr std::size_t kBatchBlocks = 64;
constexpr std::size_t kAheadBlocks = 8;  // the same of read-ahead: what fits into memory goes, and lands soon
constexpr int kAttempts = 3;

std::uint64_t memory_of(const TargetFile& target, const std::vector<std::size_t>& blocks) {
  // Plain bytes, and at most about as many encoded ones.
  std::uint64_t bytes = 0;
  for (auto block : blocks) bytes += 2 * target.map->range(block).length + 4096;
  return bytes;
}

codec::Scratch& thread_scratch() {
  thread_local codec::Scratch scratch;
  return scratch;
}

}  // namespace

struct Materializer::Range {
  ObjectKey object;
  ByteRange range;
  Bytes bytes;
  std::vector<std::size_t> tasks;  // that wait for it
};

struct Materializer::Task {
  BlockPlan plan;
  struct Source {
    std::size_t range = 0;
    std::uint64_t at = 0;
  };
  std::vector<Source> sources;  // of the step's frame, by step
  std::atomic<std::size_t> missing = 0;
  std::atomic<bool> failed = false;
};

struct Materializer::Batch {
  TargetFilePtr target;
  std::vector<std::size_t> blocks;
  int attempt = 0;
  std::uint64_t memory = 0;
  bool is_prefetch = false;
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<Range> ranges;
  std::atomic<std::size_t> left = 0;
  Mutex mutex;
  std::vector<std::size_t> again GUARDED_BY(mutex);  // to be planned once more
};

Materializer::Materializer(Bucket& bucket, Cache& cache, Meta& meta, PathSource& paths, WorkerPool& fetch_pool,
                           Options options)
    : bucket_(bucket),
      paths_(paths),
      options_(options),
      locals_(cache, meta),
      planner_(meta, locals_, paths, cache),
      gate_(options.memory),
      fetch_pool_(fetch_pool),
      decode_pool_("decode", options.decode_threads),
      plan_pool_("plan", options.plan_threads),
      timer_("read-retry") {}

Materializer::~Materializer() { stop(); }

void Materializer::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  cancel_->cancel();
  gate_.close();
  timer_.stop();
  plan_pool_.stop();
  fetch_pool_.stop();  // its jobs post to the decode pool
  decode_pool_.stop();
  std::map<FlightKey, Flight> rest;
  {
    MutexLock lock(mutex_);
    rest.swap(flights_);
  }
  for (auto& [key, flight] : rest) {
    for (auto& done : flight.waiters) done(key.second, Status(Code::kInterrupted, "shutting down"), nullptr);
  }
}

void Materializer::want(const TargetFilePtr& target, const std::vector<std::size_t>& blocks, Done done) {
  std::vector<std::size_t> fresh;
  bool stopping;
  {
    MutexLock lock(mutex_);
    stopping = stopping_;
    if (!stopping) {
      for (auto block : blocks) {
        auto [flight, is_new] = flights_.try_emplace({target->id(), block});
        flight->second.waiters.push_back(done);
        if (is_new) fresh.push_back(block);
      }
    }
  }
  if (stopping) {
    for (auto block : blocks) done(block, Status(Code::kInterrupted, "shutting down"), nullptr);
    return;
  }
  for (std::size_t at = 0; at < fresh.size(); at += kBatchBlocks) {
    start(target, {fresh.begin() + at, fresh.begin() + std::min(fresh.size(), at + kBatchBlocks)}, 0, 0, false);
  }
}

std::size_t Materializer::prefetch(const TargetFilePtr& target, const std::vector<std::size_t>& blocks) {
  if (!target->flat) return 0;  // it would have nowhere to stay
  for (std::size_t at = 0; at < blocks.size(); at += kAheadBlocks) {
    std::vector<std::size_t> part;
    std::vector<std::size_t> all(blocks.begin() + at, blocks.begin() + std::min(blocks.size(), at + kAheadBlocks));
    auto memory = memory_of(*target, all);
    if (!gate_.try_acquire(memory)) {
      counters_.prefetches_dropped++;
      return at;
    }
    {
      MutexLock lock(mutex_);
      for (auto block : all) {
        if (!stopping_ && target->flat->presence(block) == FlatFile::Presence::kAbsent &&
            flights_.try_emplace({target->id(), block}).second) {
          part.push_back(block);
        }
      }
    }
    if (part.empty()) {
      gate_.release(memory);
    } else {
      start(target, std::move(part), 0, memory, true);
    }
  }
  return blocks.size();
}

void Materializer::start(const TargetFilePtr& target, std::vector<std::size_t> blocks, int attempt,
                         std::uint64_t memory, bool is_prefetch) {
  auto batch = std::make_shared<Batch>();
  batch->target = target;
  batch->blocks = std::move(blocks);
  batch->attempt = attempt;
  batch->memory = memory;
  batch->is_prefetch = is_prefetch;
  batch->left = batch->blocks.size();
  if (!plan_pool_.post([this, batch] { plan_batch(batch); })) {
    for (auto block : batch->blocks) task_done(batch, block, Status(Code::kInterrupted, "shutting down"), nullptr);
  }
}

void Materializer::plan_batch(const std::shared_ptr<Batch>& batch) {
  const auto& target = *batch->target;
  CallOptions options{options_.deadline, cancel_};
  auto fail = [&](const Status& status) {
    for (auto block : batch->blocks) task_done(batch, block, status, nullptr);
  };
  if (batch->memory == 0) {
    auto memory = memory_of(target, batch->blocks);
    if (!gate_.acquire(memory)) return fail(Status(Code::kInterrupted, "shutting down"));
    batch->memory = memory;
  }
  if (batch->attempt > 0) {
    auto refreshed = paths_.refresh(target.node, options);
    if (!refreshed.is_ok()) return fail(refreshed);
  }
  // What an earlier run or another batch left is read, not made again.
  std::vector<std::size_t> missing;
  for (auto block : batch->blocks) {
    auto bytes = std::make_shared<Bytes>();
    if (target.flat && target.flat->presence(block) != FlatFile::Presence::kAbsent &&
        verify_local({target.map, target.flat}, block, *bytes)) {
      task_done(batch, block, {}, std::move(bytes));
    } else {
      missing.push_back(block);
    }
  }
  if (missing.empty()) return;
  auto plans = planner_.plan(target.node, *target.manifest, target.file, missing, options);
  if (!plans.is_ok()) {
    for (auto block : missing) task_done(batch, block, plans.status(), nullptr);
    return;
  }
  fetch_batch(batch, std::move(plans).value());
}

void Materializer::fetch_batch(const std::shared_ptr<Batch>& batch, std::vector<BlockPlan> plans) {
  struct Want {
    const ObjectKey* object;
    ByteRange range;
    std::size_t task, step;
  };
  std::vector<Want> wants;
  for (auto& plan : plans) {
    auto task = std::make_unique<Task>();
    task->plan = std::move(plan);
    task->sources.resize(task->plan.steps.size());
    for (std::size_t i = 0; i < task->plan.steps.size(); i++) {
      const auto& step = task->plan.steps[i];
      if (step.object) wants.push_back({&*step.object, step.frame, batch->tasks.size(), i});
    }
    batch->tasks.push_back(std::move(task));
  }
  std::sort(wants.begin(), wants.end(), [](const Want& a, const Want& b) {
    return std::tie(*a.object, a.range.offset) < std::tie(*b.object, b.range.offset);
  });
  for (const auto& want : wants) {
    auto& ranges = batch->ranges;
    bool merge = !ranges.empty() && ranges.back().object == *want.object &&
                 want.range.offset <= ranges.back().range.end() + kMergeGap &&
                 std::max(want.range.end(), ranges.back().range.end()) - ranges.back().range.offset <= kMaxRange;
    if (!merge) ranges.push_back({*want.object, want.range, {}, {}});
    auto& range = ranges.back();
    range.range.length = std::max(range.range.end(), want.range.end()) - range.range.offset;
    auto& task = *batch->tasks[want.task];
    task.sources[want.step] = {ranges.size() - 1, want.range.offset - range.range.offset};
    if (range.tasks.empty() || range.tasks.back() != want.task) {
      if (std::find(range.tasks.begin(), range.tasks.end(), want.task) == range.tasks.end()) {
        range.tasks.push_back(want.task);
        task.missing++;
      }
    }
  }
  // A long path has more encoded bytes than were reckoned with: others wait for it.
  std::uint64_t encoded = 0;
  for (const auto& range : batch->ranges) encoded += range.range.length;
  if (encoded > batch->memory / 2) {
    auto more = encoded - batch->memory / 2;
    gate_.add(more);
    batch->memory += more;
  }
  // From here on other threads work on the batch; nothing above may be touched again.
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < batch->tasks.size(); i++) {
    if (batch->tasks[i]->missing == 0) ready.push_back(i);
  }
  const auto ranges = batch->ranges.size();
  for (auto task : ready) {
    if (!decode_pool_.post([this, batch, task] { decode_task(batch, task); })) decode_task(batch, task);
  }
  for (std::size_t i = 0; i < ranges; i++) {
    auto fetch = [this, batch, i] {
      auto& range = batch->ranges[i];
      range.bytes.resize(range.range.length);
      CallOptions options{options_.deadline, cancel_};
      range_arrived(batch, i, bucket_.get(range.object, range.range, range.bytes, options).with(range.object.str()));
    };
    if (!fetch_pool_.post(fetch)) range_arrived(batch, i, Status(Code::kInterrupted, "shutting down"));
  }
}

void Materializer::range_arrived(const std::shared_ptr<Batch>& batch, std::size_t range, const Status& status) {
  for (auto index : batch->ranges[range].tasks) {
    auto& task = *batch->tasks[index];
    if (!status.is_ok() && !task.failed.exchange(true)) task_done(batch, task.plan.block, status, nullptr);
    if (task.missing.fetch_sub(1) == 1 && !task.failed) {
      if (!decode_pool_.post([this, batch, index] { decode_task(batch, index); })) decode_task(batch, index);
    }
  }
}

void Materializer::decode_task(const std::shared_ptr<Batch>& batch, std::size_t index) {
  auto& task = *batch->tasks[index];
  const auto& target = *batch->target;
  auto bytes = std::make_shared<Bytes>();
  auto status = decode(*batch, task, *bytes);
  const auto block = task.plan.block;
  const auto range = target.map->range(block);
  if (status.is_ok() && (bytes->size() != range.length || Xxh128::of(*bytes) != target.map->blocks[block].digest)) {
    const auto& step = task.plan.steps.back();
    status = Status(Code::kCorrupt, (step.object ? step.object->str() : std::string("its base")) +
                                        ": the block's digest does not match");
  }
  if (status.code() == Code::kCorrupt) look_at_bases(task.plan);
  if (status.is_ok()) {
    counters_.blocks_decoded++;
    counters_.bytes_decoded += bytes->size();
    if (target.flat) {
      auto written = target.flat->write(block, range.offset, *bytes);
      if (!written.is_ok() && written.code() != Code::kNoSpace) spdlog::warn("cache: {}", written.to_string());
    }
  }
  task.plan.steps.clear();
  task_done(batch, block, std::move(status), std::move(bytes));
}

// A block that was good once may have rotted on the disk since: then the next plan does without it.
void Materializer::look_at_bases(const BlockPlan& plan) {
  Bytes scratch;
  for (const auto& step : plan.steps) {
    if (step.local) verify_local(*step.local, step.local_block, scratch);
  }
}

Status Materializer::decode(const Batch& batch, const Task& task, Bytes& out) {
  auto& scratch = thread_scratch();
  std::vector<Bytes> plain(task.plan.steps.size());
  std::vector<std::uint32_t> uses(task.plan.steps.size());
  thread_local Bytes base;
  for (std::size_t i = 0; i < task.plan.steps.size(); i++) {
    const auto& step = task.plan.steps[i];
    uses[i] = step.uses;
    if (step.local) {
      auto range = step.local->map->range(step.local_block);
      plain[i].resize(range.length);
      auto status = step.local->flat->read(range.offset, plain[i]);
      // The bucket has it, too.
      if (!status.is_ok()) return {Code::kCorrupt, "cache: base block: " + status.to_string()};
      continue;
    }
    ByteSpan frame;
    if (step.object) {
      const auto& source = task.sources[i];
      frame = ByteSpan(batch.ranges[source.range].bytes).subspan(source.at, step.frame.length);
      if (Sha256::of(frame) != step.frame_digest) {
        return {Code::kCorrupt, step.object->str() + ": digest mismatch at " + std::to_string(step.frame.offset) + "+" +
                                    std::to_string(step.frame.length)};
      }
      counters_.frames_decoded++;
    }
    const auto codec = static_cast<codec::CodecId>(step.codec);
    const auto type = static_cast<codec::ElementType>(step.type);
    auto name = [&] { return step.object ? step.object->str() : std::string("a block without a frame"); };
    // One base block of the same length that nobody else reads is turned into this one where it lies.
    if (step.base.size() == 1 && step.base[0].step != Step::kZeros && step.base[0].from == 0 &&
        step.base[0].length == step.length && plain[step.base[0].step].size() == step.length &&
        uses[step.base[0].step] == 1) {
      plain[i] = std::move(plain[step.base[0].step]);
      WFS_TRY(codec::apply_frame(scratch, codec, type, frame, plain[i]).with(name()));
      continue;
    }
    base.resize(step.base_length);
    for (const auto& piece : step.base) {
      auto into = MutableByteSpan(base).subspan(piece.into, piece.length);
      if (piece.step == Step::kZeros) {
        std::fill(into.begin(), into.end(), std::byte{0});
        continue;
      }
      auto& from = plain[piece.step];
      std::copy_n(from.begin() + piece.from, piece.length, into.begin());
      if (--uses[piece.step] == 0) Bytes().swap(from);
    }
    plain[i].resize(step.length);
    WFS_TRY(codec::decode_block(scratch, codec, type, frame, base, plain[i]).with(name()));
  }
  out = std::move(plain.back());
  return {};
}

void Materializer::task_done(const std::shared_ptr<Batch>& batch, std::size_t block, Status status, Block bytes) {
  const auto& target = *batch->target;
  bool retry = (status.code() == Code::kCorrupt || status.code() == Code::kNotFound) && batch->attempt + 1 < kAttempts;
  if (retry) {
    spdlog::warn("read {}: block {}: {}: once more from the log", target.name, block, status.to_string());
    MutexLock lock(batch->mutex);
    batch->again.push_back(block);
  } else {
    if (status.code() == Code::kNotFound)
      status = Status(Code::kCorrupt, status.message());  // the version is there, its bytes are not
    if (!status.is_ok()) {
      counters_.blocks_failed++;
      status = std::move(status).with(target.name + ": block " + std::to_string(block));
      if (status.code() != Code::kInterrupted && !batch->is_prefetch) spdlog::error("read EIO {}", status.message());
    }
    land(target, block, status, bytes);
  }
  if (batch->left.fetch_sub(1) == 1) finish_batch(*batch);
}

void Materializer::finish_batch(Batch& batch) {
  std::vector<std::size_t> again;
  {
    MutexLock lock(batch.mutex);
    again.swap(batch.again);
  }
  gate_.release(batch.memory);
  std::sort(again.begin(), again.end());
  if (!again.empty()) start(batch.target, std::move(again), batch.attempt + 1, 0, batch.is_prefetch);
}

void Materializer::land(const TargetFile& target, std::size_t block, const Status& status, const Block& bytes) {
  Flight flight;
  {
    MutexLock lock(mutex_);
    auto found = flights_.find({target.id(), block});
    if (found == flights_.end()) return;  // stopped meanwhile
    flight = std::move(found->second);
    flights_.erase(found);
  }
  for (auto& done : flight.waiters) done(block, status, bytes);
}

}  // namespace weightfs
