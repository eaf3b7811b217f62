#include "store/cache/index_thread.h"

#include <spdlog/spdlog.h>

#include <future>

#include "store/base/threads.h"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kTick{1};
constexpr std::chrono::seconds kBetweenWarnings{60};
constexpr std::uint64_t kInMemoryCap = 16 << 20;

Index::Caps in_memory(Index::Caps caps) {
  return {std::min(caps.blobs, kInMemoryCap), std::min(caps.states, kInMemoryCap)};
}

Result<OpenedIndex> open_and_load(const std::string& path, Index::Caps caps, bool on_disk) {
  auto index = WFS_TRY(Index::open(path, caps));
  auto contents = WFS_TRY(index.load());
  // From now on until the end in order, its hints may lag behind the files.
  WFS_TRY(index.set_clean(false));
  return OpenedIndex{std::move(index), std::move(contents), on_disk};
}

}  // namespace

Result<OpenedIndex> open_index(const CacheDir& dir, Index::Caps caps) {
  dir.remove_index_links();
  auto opened = open_and_load(dir.file("index.sqlite"), caps, true);
  if (opened.code() == Code::kCorrupt) {
    spdlog::warn("cache {}: {}: set aside and rebuilt from the files; pins and metadata in it are gone", dir.path(),
                 opened.status().message());
    auto aside = dir.set_index_aside();
    if (!aside.is_ok()) spdlog::warn("cache {}: {}", dir.path(), aside.message());
    opened = open_and_load(dir.file("index.sqlite"), caps, true);
  }
  if (opened.is_ok()) return opened;
  spdlog::warn("cache {}: no index on disk, it is kept in memory: {}", dir.path(), opened.status().message());
  return open_and_load(":memory:", in_memory(caps), false);
}

IndexThread::IndexThread(Index index, bool on_disk, std::shared_ptr<CacheDir> dir, Index::Caps caps, Hooks hooks)
    : dir_(std::move(dir)), caps_(caps), hooks_(std::move(hooks)), index_(std::move(index)), on_disk_(on_disk) {
  thread_ = start_thread("wfs-index", [this](std::stop_token stop) { loop(stop); });
}

IndexThread::~IndexThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool IndexThread::push(Posted posted) {
  MutexLock lock(mutex_);
  while (pending_ > kMaxPending && !stopping_) changed_.wait(mutex_);
  if (stopping_) return false;
  pending_ += posted.bytes;
  jobs_.push_back(std::move(posted));
  changed_.notify_all();
  return true;
}

Status IndexThread::run(Job job) {
  std::promise<Status> promise;
  auto future = promise.get_future();
  bool pushed = push({[&](Index&) { promise.set_value(execute(job)); }, 0});
  if (!pushed) return {Code::kUnavailable, "the cache is being closed"};
  return future.get();
}

void IndexThread::post(Job job, std::size_t bytes) {
  push({[this, job = std::move(job)](Index&) {
          auto status = execute(job);
          if (!status.is_ok()) complain(status);
        },
        bytes});
}

void IndexThread::loop(const std::stop_token&) {
  auto next_tick = std::chrono::steady_clock::now() + kTick;
  while (true) {
    Posted job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_ && std::chrono::steady_clock::now() < next_tick) {
        changed_.wait_until(mutex_, next_tick);
      }
      if (jobs_.empty() && stopping_) break;
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
        pending_ -= job.bytes;
        changed_.notify_all();
      }
    }
    if (job.work) job.work(index_);
    if (std::chrono::steady_clock::now() >= next_tick) {
      tick();
      next_tick = std::chrono::steady_clock::now() + kTick;
    }
  }
  tick();
  close();
}

Status IndexThread::execute(const Job& job) {
  auto status = job(index_);
  if (status.code() != Code::kCorrupt) return status;
  spdlog::warn("cache {}: damaged while running: {}", dir_->path(), status.message());
  replace_index();
  status = job(index_);
  if (status.code() == Code::kCorrupt) return {Code::kIo, status.message()};  // the disk itself must be at fault
  return status;
}

void IndexThread::replace_index() {
  index_.close().ignore("it is damaged");
  {
    auto nowhere = open_and_load(":memory:", in_memory(caps_), false);  // closes what close() could not
    WFS_CHECK(nowhere.is_ok());
    index_ = std::move(nowhere->index);
  }
  auto was_on_disk = on_disk_.load();
  if (was_on_disk) {
    auto aside = dir_->set_index_aside();
    if (!aside.is_ok()) spdlog::warn("cache {}: {}", dir_->path(), aside.message());
    auto opened = open_index(*dir_, caps_);
    if (opened.is_ok()) {
      index_ = std::move(opened->index);
      on_disk_ = opened->on_disk;
    } else {
      on_disk_ = false;
    }
  }
  auto status = hooks_.refill(index_);
  if (!status.is_ok()) {
    hints_complete_ = false;
    complain(status);
  }
}

void IndexThread::tick() {
  auto status = execute(hooks_.tick);
  if (status.is_ok()) return;
  hints_complete_ = false;  // what it did not take is lost to it: files tell at the next start
  complain(status);
}

void IndexThread::complain(const Status& status) {
  auto now = std::chrono::steady_clock::now();
  if (complained_ && now - *complained_ < kBetweenWarnings) {
    spdlog::debug("cache {}: index: {}", dir_->path(), status.to_string());
    return;
  }
  complained_ = now;
  spdlog::warn("cache {}: index: {}: going on without", dir_->path(), status.to_string());
}

void IndexThread::close() {
  if (hints_complete_) {
    auto status = index_.set_clean(true);
    if (!status.is_ok()) complain(status);
  }
  auto status = index_.close();
  if (!status.is_ok()) complain(status);
}

}  // namespace weightfs
