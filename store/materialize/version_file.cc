#include "store/materialize/version_file.h"

#include <algorithm>

#include "store/format/safetensors.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kFirstWindow = 2 << 20;
constexpr std::uint64_t kTensorAtOnce = 32 << 20;
constexpr std::uint64_t kMaxHintHeader = 8 << 20;

}  // namespace

// One read under way: blocks arrive in any order, the last one assembles the answer.
struct VersionFile::Read {
  ByteRange range;
  bool is_page_fault = false;
  SteadyTime give_up;
  std::function<void(Result<Bytes>)> done;

  Mutex mutex;
  std::map<std::size_t, Materializer::Block> blocks GUARDED_BY(mutex);
  std::size_t left GUARDED_BY(mutex) = 0;
  Status failed GUARDED_BY(mutex);
  bool answered GUARDED_BY(mutex) = false;

  // True for the one caller that may call done.
  bool claim() EXCLUDES(mutex) {
    MutexLock lock(mutex);
    return !std::exchange(answered, true);
  }
};

VersionFile::VersionFile(Materializer& materializer, Cache& cache, Clock& clock, NextFiles& next, VersionPtr version,
                         TargetFilePtr target, ReadPolicy policy)
    : materializer_(materializer),
      clock_(clock),
      next_(next),
      version_(std::move(version)),
      target_(std::move(target)),
      policy_(policy),
      readahead_(target_->map->starts.back(), {.first = std::min(kFirstWindow, policy.readahead),
                                               .most = policy.readahead,
                                               .tensor = std::min(kTensorAtOnce, policy.readahead)}) {
  cache.touch(target_->id());
}

// The header is looked at when it has been read by somebody: what it says of the tensors is a hint only.
void VersionFile::learn_tensors() {
  const auto& map = *target_->map;
  if (tensors_looked_for_.load(std::memory_order_relaxed) || !target_->flat || map.starts.back() < 8) return;
  auto read = [&](std::uint64_t offset, MutableByteSpan out) -> Status {
    for (auto block = map.block_at(offset); block < map.blocks.size() && map.starts[block] < offset + out.size();
         block++) {
      if (target_->flat->presence(block) != FlatFile::Presence::kVerified) return {Code::kUnavailable, "not here"};
    }
    return target_->flat->read(offset, out);
  };
  Bytes first(8);
  if (!read(0, first).is_ok() || tensors_looked_for_.exchange(true)) return;
  auto size = map.starts.back();
  auto length = safetensors::header_length(first, size);
  if (!length.is_ok() || *length > kMaxHintHeader) return readahead_.set_tensors({});
  auto header = safetensors::read_header(read, size);
  if (header.code() == Code::kUnavailable) return tensors_looked_for_.store(false);
  if (!header.is_ok()) return readahead_.set_tensors({});
  TensorStarts starts;
  starts.reserve(header->tensors.size() + 2);
  starts.push_back(0);
  for (const auto& tensor : header->tensors) {
    if (tensor.bytes.length > 0) starts.push_back(tensor.bytes.offset);
  }
  starts.push_back(size);
  readahead_.set_tensors(std::move(starts));
}

void VersionFile::expect_reader(std::uint64_t trust, std::uint64_t window) {
  auto to = fetch_ahead({0, std::min(window, target_->map->starts.back())});
  readahead_.expect(trust, to);
}

// The block can be read from the flat file now; one left by an earlier run is checked first.
bool VersionFile::here(std::size_t block) {
  if (!target_->flat) return false;
  switch (target_->flat->presence(block)) {
    case FlatFile::Presence::kVerified:
      return true;
    case FlatFile::Presence::kUnverified: {
      thread_local Bytes scratch;
      return verify_local({target_->map, target_->flat}, block, scratch);
    }
    case FlatFile::Presence::kAbsent:
      break;
  }
  return false;
}

std::optional<Status> VersionFile::try_read(ByteRange range, MutableByteSpan out) {
  if (range.length == 0) return Status();
  ahead(range);
  const auto& map = *target_->map;
  const auto first = map.block_at(range.offset);
  for (auto block = first; block < map.blocks.size() && map.starts[block] < range.end(); block++) {
    if (!here(block)) return std::nullopt;
  }
  auto status = target_->flat->read(range.offset, out);
  if (status.is_ok()) return status;
  // The disk fails, or the file was cut short. The bucket has it, too.
  Bytes scratch;
  for (auto block = first; block < map.blocks.size() && map.starts[block] < range.end(); block++) {
    verify_local({target_->map, target_->flat}, block, scratch);
  }
  return std::nullopt;
}

void VersionFile::ahead(ByteRange range) {
  if (policy_.readahead == 0 || !target_->flat) return;
  // A complete file's readers are followed for the sake of the next one.
  bool missing = !complete();
  if (missing) learn_tensors();
  auto ahead = readahead_.read(range);
  if (ahead && missing) {
    auto to = fetch_ahead(*ahead);
    if (to < ahead->end()) readahead_.refused(*ahead, to);
  }
  if (auto leaving = readahead_.leaving()) {
    next_.reader_leaves(version_, target_->file, leaving->trust, leaving->window);
  }
}

void VersionFile::prefetch(ByteRange range) { fetch_ahead(range); }

// Up to where it is here or on its way: before the range's end when memory is short.
std::uint64_t VersionFile::fetch_ahead(ByteRange range) {
  const auto& map = *target_->map;
  if (!target_->flat || range.length == 0 || range.offset >= map.starts.back()) return range.end();
  std::vector<std::size_t> blocks;
  for (auto block = map.block_at(range.offset); block < map.blocks.size() && map.starts[block] < range.end(); block++) {
    if (target_->flat->presence(block) == FlatFile::Presence::kAbsent) blocks.push_back(block);
  }
  auto taken = materializer_.prefetch(target_, blocks);
  return taken == blocks.size() ? range.end() : std::max(range.offset, map.starts[blocks[taken]]);
}

Ticket VersionFile::read(ByteRange range, bool is_page_fault, std::function<void(Result<Bytes>)> done) {
  auto read = std::make_shared<Read>();
  const auto size = target_->map->starts.back();
  read->range.offset = std::min(range.offset, size);
  read->range.length = std::min(range.length, size - read->range.offset);
  read->is_page_fault = is_page_fault;
  read->give_up = clock_.now() + policy_.fault_patience;
  read->done = std::move(done);
  start(read);
  return Ticket([self = weak_from_this(), read] {
    auto file = self.lock();
    if (!file) return;
    // Not on this thread: the caller may hold what `done` needs.
    auto answer = [read] {
      if (read->claim()) read->done(Status(Code::kInterrupted, "cancelled"));
    };
    if (!file->materializer_.post(answer)) answer();
  });
}

void VersionFile::start(const std::shared_ptr<Read>& read) {
  const auto& map = *target_->map;
  auto finish = [self = shared_from_this(), read] {
    Result<Bytes> result = Bytes();
    {
      MutexLock lock(read->mutex);
      if (read->answered) return;
      if (!read->failed.is_ok()) {
        result = read->failed;
      } else {
        Bytes bytes(read->range.length);
        for (auto& [block, plain] : read->blocks) {
          auto at = self->target_->map->range(block);
          auto from = std::max(at.offset, read->range.offset), to = std::min(at.end(), read->range.end());
          std::copy_n(plain->begin() + static_cast<std::ptrdiff_t>(from - at.offset), to - from,
                      bytes.begin() + static_cast<std::ptrdiff_t>(from - read->range.offset));
        }
        result = std::move(bytes);
      }
      read->blocks.clear();
    }
    bool again = read->is_page_fault && !result.is_ok() && result.code() == Code::kUnavailable &&
                 self->clock_.now() < read->give_up;
    if (again) {
      // The reader dies of an error (SIGBUS), so it goes on after a pause.
      {
        MutexLock lock(read->mutex);
        read->failed = Status();
      }
      if (self->materializer_.post_after(self->policy_.fault_pause, [self, read] { self->start(read); })) return;
    }
    if (read->claim()) read->done(std::move(result));
  };
  std::vector<std::size_t> blocks;
  if (read->range.length > 0) {
    for (auto block = map.block_at(read->range.offset);
         block < map.blocks.size() && map.starts[block] < read->range.end(); block++) {
      blocks.push_back(block);
    }
  }
  {
    MutexLock lock(read->mutex);
    read->left = blocks.size();
  }
  if (blocks.empty()) {
    if (!materializer_.post(finish)) finish();
    return;
  }
  materializer_.want(target_, blocks, [read, finish](std::size_t block, Status status, Materializer::Block bytes) {
    bool last = false;
    {
      MutexLock lock(read->mutex);
      if (!status.is_ok()) {
        if (read->failed.is_ok()) read->failed = std::move(status);
      } else {
        read->blocks[block] = std::move(bytes);
      }
      last = --read->left == 0;
    }
    if (last) finish();
  });
}

Status VersionFile::read_now(ByteRange range, MutableByteSpan out, const CallOptions& options) {
  if (range.length == 0) return {};
  if (auto status = try_read(range, out)) return *status;
  struct Wait {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<Bytes>> result GUARDED_BY(mutex);
  };
  auto wait = std::make_shared<Wait>();
  auto ticket = read(range, false, [wait](Result<Bytes> result) {
    MutexLock lock(wait->mutex);
    wait->result = std::move(result);
    wait->changed.notify_all();
  });
  const auto deadline = clock_.now() + options.deadline;
  MutexLock lock(wait->mutex);
  bool cancelled = false;
  while (!wait->result) {
    wait->changed.wait_until(wait->mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
    bool stop = (options.cancel && options.cancel->cancelled()) || clock_.now() >= deadline;
    if (!wait->result && stop && !cancelled) {
      cancelled = true;
      wait->mutex.unlock();
      ticket.cancel();
      wait->mutex.lock();
    }
  }
  auto& result = *wait->result;
  if (!result.is_ok()) return result.status();
  if (result->size() != out.size()) return {Code::kCorrupt, target_->name + ": shorter than asked for"};
  std::copy(result->begin(), result->end(), out.begin());
  return {};
}

}  // namespace weightfs
