#include "store/publish/stage.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace weightfs {
namespace {

constexpr auto kAnswered = std::chrono::seconds(10);  // for so long the bucket is believed to be there
constexpr auto kLater = std::chrono::milliseconds(200);
constexpr auto kAfterFailure = std::chrono::seconds(5);
constexpr auto kBeat = std::chrono::minutes(10);
constexpr auto kUploadDeadline = std::chrono::hours(1);  // of one object, with its retries; asking makes another

// Of this thread. What waits for the processor too is a writer, or the filesystem that serves him.
void lower_priority() {
  constexpr int kNice = 1;  // no more: a close waits for what runs behind it, and a busy machine would starve that
  thread_local bool done = false;
  if (!std::exchange(done, true)) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

// What a close can report, and another try repair.
bool is_of_the_bucket(Code code) {
  return code == Code::kUnavailable || code == Code::kPermission || code == Code::kNoSpace || code == Code::kIo ||
         code == Code::kInterrupted || code == Code::kReadOnly;
}

// As /proc shows it.
std::string real_path(const std::string& path) {
  std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real ? std::string(real.get()) : path;
}

}  // namespace

std::optional<FrameTable::Found> FrameStore::find(const ListedBlock& block) const {
  MutexLock lock(mutex_);
  auto kept = frames_.find(block.digest);
  if (kept == frames_.end() || kept->second.length != block.length || kept->second.type != block.type) {
    return std::nullopt;
  }
  return kept->second.found;
}

void FrameStore::add(const ListedBlock& block, const Found& found) {
  MutexLock lock(mutex_);
  frames_.try_emplace(block.digest, Kept{block.length, block.type, found});
}

std::size_t FrameStore::size() const {
  MutexLock lock(mutex_);
  return frames_.size();
}

std::optional<NodeRef> FrameStore::base() const {
  MutexLock lock(mutex_);
  return base_;
}

bool FrameStore::set_base(const std::optional<NodeRef>& base) {
  MutexLock lock(mutex_);
  if (!frames_.empty()) return base == base_;
  base_ = base;
  return true;
}

Stage::Stage(StageTools& tools, StageSetup setup)
    : tools_(tools),
      setup_(std::move(setup)),
      root_(real_path(setup_.root)),
      progress_(tools.bucket.counters()),
      moved_at_(std::chrono::steady_clock::now()) {}

Stage::~Stage() { drop(); }

// What writers do.

void Stage::opened(std::uint64_t inode, Fd readable) {
  {
    MutexLock lock(mutex_);
    if (stopped()) return;
    writers_[inode]++;
    files_.try_emplace(inode, std::move(readable));
  }
  kick();
}

void Stage::released(std::uint64_t inode) {
  MutexLock lock(mutex_);
  auto count = writers_.find(inode);
  if (count == writers_.end() || --count->second > 0) return;
  writers_.erase(count);
  forget_closed();
}

// Files that nobody writes and no close waits for.
void Stage::forget_closed() {
  std::erase_if(files_, [&](auto& file) {
    bool waits = std::any_of(closes_.begin(), closes_.end(), [&](auto& c) { return c.inode == file.first; });
    return !waits && !writers_.contains(file.first);
  });
}

void Stage::wrote(std::uint64_t inode, ByteRange range) {
  {
    MutexLock lock(mutex_);
    auto file = files_.find(inode);
    if (file == files_.end()) return;
    file->second.wrote(range);
    if (!file->second.worth_a_look()) return;
  }
  kick();
}

Ticket Stage::closed(std::uint64_t inode, std::function<void(Status)> done) {
  std::uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (!stopped()) {
      id = ++last_close_;
      if (moved() || (!stalled_ && closes_.empty())) {
        moved_at_ = std::chrono::steady_clock::now();
        stalled_ = false;
      }
      closes_.push_back({id, inode, std::move(done), false, 0});
    }
  }
  if (id == 0) {
    done({Code::kInterrupted, "the draft is gone, or weightfs is shutting down"});
    return {};
  }
  arm();
  kick();
  return Ticket([weak = weak_from_this(), id] {
    auto self = weak.lock();
    if (!self) return;
    std::function<void(Status)> cancelled;
    {
      MutexLock lock(self->mutex_);
      auto it = std::find_if(self->closes_.begin(), self->closes_.end(), [&](auto& c) { return c.id == id; });
      if (it == self->closes_.end()) return;
      cancelled = std::move(it->done);
      self->closes_.erase(it);
    }
    cancelled({Code::kInterrupted, "cancelled"});
  });
}

void Stage::drop() {
  cancel_->cancel();
  std::list<Close> closes;
  std::map<std::uint64_t, StageFile> files;
  {
    MutexLock lock(mutex_);
    work_cancel_->cancel();
    if (pack_cancel_) pack_cancel_->cancel();
    closes.swap(closes_);
    files.swap(files_);
    while (running_) changed_.wait(mutex_);  // it asks the draft
  }
  for (auto& close : closes) close.done({Code::kInterrupted, "the draft is gone, or weightfs is shutting down"});
}

// The thread that runs.

void Stage::kick() {
  {
    MutexLock lock(mutex_);
    if (running_ || lent_ || stopped()) return;
    running_ = true;
  }
  if (tools_.run_pool.post([self = shared_from_this()] { self->run(); })) return;
  MutexLock lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

void Stage::kick_later(Duration delay) {
  tools_.timer.after(delay, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->kick();
  });
}

void Stage::run() {
  while (true) {
    std::optional<Task> task;
    {
      MutexLock lock(mutex_);
      task = next_task();
      if (!task) {
        running_ = false;
        changed_.notify_all();
        return;
      }
    }
    note(*task, work(*task));
    settle();
  }
}

std::optional<Stage::Task> Stage::next_task() {
  auto now = std::chrono::steady_clock::now();
  if (stopped() || lent_) return std::nullopt;
  make_pack();
  if (beat_due_ || (!greeted_ && now >= not_before_)) return Task{};
  if (now < later_) return std::nullopt;
  auto task_for = [&](std::uint64_t inode, bool close) {
    Task task{.inode = inode, .close = close, .last_close = last_close_};
    auto file = files_.find(inode);
    if (file == files_.end()) return task;
    task.fd = file->second.fd();
    task.settled = close ? ~std::uint64_t{0} : file->second.settled_prefix();
    task.known = file->second.cuts();
    return task;
  };
  for (const auto& close : closes_) {
    if (!close.encoded) return task_for(close.inode, true);
  }
  if (now < not_before_ || !pack_->has_room() || frames_->size() >= tools_.most_frames) return std::nullopt;
  for (auto& [inode, file] : files_) {
    if (file.worth_a_look()) return task_for(inode, false);
  }
  return std::nullopt;
}

void Stage::make_pack() {
  if (pack_) return;
  auto upload_ended = [weak = weak_from_this(), &timer = tools_.timer] {
    timer.after(Duration(0), [weak] {
      if (auto self = weak.lock()) self->settle();
    });
  };
  pack_cancel_ = std::make_shared<CancelToken>();
  pack_ = std::make_unique<PackWriter>(tools_.bucket, tools_.upload_pool, PackPlace{setup_.model, setup_.spool_dir},
                                       CallOptions{kUploadDeadline, pack_cancel_}, upload_ended);
  frames_ = std::make_unique<FrameStore>();
  beat_later();
}

CallOptions Stage::call_options(Duration deadline) const {
  MutexLock lock(mutex_);
  return {deadline, work_cancel_};
}

PackWriter& Stage::pack() {
  MutexLock lock(mutex_);
  return *pack_;
}

// gc spares what is waiting for its commit.
void Stage::beat_later() {
  tools_.timer.after(kBeat, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self || self->stopped()) return;
    {
      MutexLock lock(self->mutex_);
      self->beat_due_ = self->pack_ && self->pack_->objects_uploaded() > 0;
    }
    self->beat_later();
    self->kick();
  });
}

// The bucket is there and takes what this draft has.
Status Stage::contact() {
  bool greeted, beat;
  {
    MutexLock lock(mutex_);
    greeted = greeted_;
    beat = std::exchange(beat_due_, false) || std::chrono::steady_clock::now() - answered_at_ > kAnswered;
  }
  auto options = call_options(setup_.patience);
  if (!greeted) WFS_TRY(tools_.greet(setup_.model, options));
  if (greeted && !beat) return {};
  if (greeted) WFS_TRY(pack().beat(options));
  MutexLock lock(mutex_);
  greeted_ = true;
  steps_++;
  answered_at_ = std::chrono::steady_clock::now();
  return {};
}

Result<Stage::Step> Stage::work(const Task& task) {
  if (!task.close && !task.fd) {
    WFS_TRY(contact());
    return Step::kDone;
  }
  std::shared_ptr<const StageCuts> cuts = task.known;
  if (task.fd && (task.close || !cuts || !cuts->file.header)) {
    auto looked = look_at(task.fd->get(), root_, task.settled);
    if (looked.is_ok()) {
      cuts = *looked;
    } else if (looked.code() == Code::kNotFound) {
      cuts = nullptr;
    } else {
      return std::move(looked).status();
    }
    MutexLock lock(mutex_);
    auto file = files_.find(task.inode);
    if (file != files_.end()) {
      file->second.set_cuts(cuts);
      if (!cuts) file->second.looked();
    }
  }
  auto step = cuts ? WFS_TRY(encode(task, *cuts)) : Step::kDone;
  if (!task.close || step != Step::kDone) return step;
  auto objects = WFS_TRY(after_close());
  MutexLock lock(mutex_);
  for (auto& close : closes_) {
    if (close.inode != task.inode || close.id > task.last_close) continue;
    close.encoded = true;
    close.objects = objects;
  }
  return step;
}

Result<Stage::Step> Stage::encode(const Task& task, const StageCuts& cuts) {
  while (true) {
    std::vector<std::size_t> blocks;
    {
      MutexLock lock(mutex_);
      auto file = files_.find(task.inode);
      if (stopped()) return Status(Code::kInterrupted, "cancelled");
      if (file == files_.end()) return Step::kDone;
      if (lent_) return Step::kMore;
      // More than fits the table goes with the commit.
      if (task.close && frames_->size() >= tools_.most_frames) return Step::kDone;
      blocks = file->second.take(task.close, tools_.window);
    }
    if (blocks.empty()) return Step::kDone;
    auto ready = prepare(cuts, blocks);
    if (!ready.is_ok() && !is_of_the_bucket(ready.code()))
      return Step::kDone;  // the parent: the commit says what is wrong
    auto status = ready.is_ok() && *ready ? encode_blocks(task, cuts, blocks) : ready.status();
    if (!status.is_ok() || !*ready) {
      MutexLock lock(mutex_);
      auto file = files_.find(task.inode);
      if (file != files_.end()) file->second.failed(blocks);
    }
    WFS_TRY(std::move(status));
    if (!*ready) return Step::kLater;
    if (!task.close) return Step::kMore;
  }
}

// Chooses what to build on, once. False: not yet.
Result<bool> Stage::prepare(const StageCuts& cuts, const std::vector<std::size_t>& blocks) {
  auto wants = setup_.wants();
  bool begun;
  std::optional<NodeRef> node;
  {
    MutexLock lock(mutex_);
    if (base_.chosen) return true;
    begun = frames_->size() > 0;
    node = frames_->base();
    auto now = std::chrono::steady_clock::now();
    if (wants.wait && !begun) {
      if (waiting_since_ == SteadyTime{}) waiting_since_ = now;
      if (now - waiting_since_ < setup_.older_patience) return false;
    }
  }
  SourceTree sample;
  sample.files.push_back(cuts.file);
  sample.files[0].cuts.clear();
  for (auto i : blocks) sample.files[0].cuts.push_back(cuts.file.cuts[i]);
  auto options = call_options(kUploadDeadline);
  if (!begun) node = WFS_TRY(tools_.choose_base(setup_, wants, sample, options));
  Base base{.chosen = true, .reader = {}, .matcher = {}};
  if (node) {
    auto version = WFS_TRY(tools_.versions.open(*node, options).with("parent"));
    base.reader = std::make_shared<VersionReader>(tools_.versions, std::move(version), options);
    auto read = [reader = base.reader](std::uint32_t file, ByteRange range, MutableByteSpan out) {
      return reader->read(file, range, out);
    };
    base.matcher = WFS_TRY(BaseMatcher::make(base.reader->manifest(), read));
  }
  MutexLock lock(mutex_);
  WFS_CHECK(frames_->set_base(node));
  base_ = std::move(base);
  return true;
}

Status Stage::encode_blocks(const Task& task, const StageCuts& cuts, const std::vector<std::size_t>& blocks) {
  struct Coded {
    Status status;
    EncodedBlock block;
    bool known = false;  // it has a frame, or it is gone
  };
  Base base;
  FrameStore* frames;
  {
    MutexLock lock(mutex_);
    base = base_;
    frames = frames_.get();
  }
  auto read_base = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) {
    return base.reader->read(file, range, out);
  };
  auto encode_one = [&](const BlockSpan& block, Coded& coded) -> Status {
    if (stopped()) return {Code::kInterrupted, "cancelled"};
    auto target = read_block(
        block, [&](MutableByteSpan out) { return posix::pread_exact(task.fd->get(), block.range.offset, out); });
    if (target.code() == Code::kCorrupt) {  // cut off meanwhile: the commit will see
      coded.known = true;
      return {};
    }
    if (!target.is_ok()) return std::move(target).status();
    coded.block.listed = listed_block(block, *target);
    coded.known = frames->find(coded.block.listed).has_value();
    if (coded.known) return {};
    std::vector<BaseSegment> segments;
    const auto* header = cuts.file.header.get();
    if (base.matcher) segments = base.matcher->segments(cuts.file.entry, header, block);
    return encode_frame(block, *target, header != nullptr, std::move(segments), read_base, coded.block);
  };
  std::vector<Coded> coded(blocks.size());
  Mutex mutex;
  CondVar done;
  std::size_t left = blocks.size();
  auto& pool = task.close ? tools_.encode_pool : tools_.behind_pool;
  for (std::size_t i = 0; i < blocks.size(); i++) {
    auto job = [&, i] {
      if (!task.close) lower_priority();
      coded[i].status = encode_one(cuts.file.cuts[blocks[i]], coded[i]);
      MutexLock lock(mutex);
      if (--left == 0) done.notify_all();
    };
    if (pool.post(job)) continue;
    coded[i].status = Status(Code::kInterrupted, "shutting down");
    MutexLock lock(mutex);
    left--;
  }
  {
    MutexLock lock(mutex);
    while (left > 0) done.wait(mutex);
  }
  auto& into = pack();
  for (auto& one : coded) {
    WFS_TRY(std::move(one.status));
    if (one.known) continue;
    auto& frame = one.block.frame;
    if (!one.block.bytes.empty()) {
      auto place = WFS_TRY(into.append(one.block.bytes));
      frame.object = place.object;
      frame.offset = place.offset;
      frame.length = place.length;
    }
    frames->add(one.block.listed, {frame, one.block.changed_elements});
  }
  MutexLock lock(mutex_);
  steps_ += blocks.size();
  return {};
}

// Sends what is there, and what failed before, again.
Result<std::size_t> Stage::after_close() {
  auto& into = pack();
  auto objects = WFS_TRY(into.seal());
  into.retry();
  auto sent = into.uploaded(objects);
  if (sent && sent->is_ok()) WFS_TRY(contact());  // nothing is on its way that would tell
  return objects;
}

void Stage::note(const Task& task, const Result<Step>& step) {
  std::list<Close> failed;
  {
    MutexLock lock(mutex_);
    if (lent_ && step.code() == Code::kInterrupted) return;  // to be done again after the commit
    auto now = std::chrono::steady_clock::now();
    if (step.is_ok() && *step == Step::kLater) later_ = now + kLater;
    if (!step.is_ok()) {
      last_failure_ = step.status();
      not_before_ = now + kAfterFailure;
      for (auto it = closes_.begin(); it != closes_.end();) {
        auto next = std::next(it);
        bool ours = task.close && it->inode == task.inode && it->id <= task.last_close;
        if (ours) failed.splice(failed.end(), closes_, it);
        it = next;
      }
    }
  }
  if (step.is_ok() && *step == Step::kLater) kick_later(kLater);
  if (!step.is_ok() && step.code() != Code::kInterrupted) {
    spdlog::warn("upload behind {}/{}: {}", setup_.model.str(), setup_.wants().name, step.status().message());
  }
  for (auto& close : failed) close.done(step.status());
}

// Who waits.

void Stage::settle() {
  std::vector<std::pair<std::function<void(Status)>, Status>> answers;
  {
    MutexLock lock(mutex_);
    if (!pack_) return;
    for (auto it = closes_.begin(); it != closes_.end();) {
      auto sent = it->encoded ? pack_->uploaded(it->objects) : std::nullopt;
      if (!sent) {
        ++it;
        continue;
      }
      if (sent->is_ok()) {
        answered_at_ = std::chrono::steady_clock::now();
        last_failure_ = Status();
      } else {
        last_failure_ = *sent;
      }
      answers.emplace_back(std::move(it->done), *sent);
      it = closes_.erase(it);
    }
    if (!answers.empty()) forget_closed();
  }
  for (auto& [done, status] : answers) done(status);
  kick();  // there may be room again
}

void Stage::arm() {
  {
    MutexLock lock(mutex_);
    if (armed_ || stopped()) return;
    armed_ = true;
  }
  auto delay = std::min<Duration>(std::chrono::seconds(1), setup_.patience / 4);
  tools_.timer.after(delay, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->tick();
  });
}

bool Stage::moved() {
  auto now = steps_ + (pack_ ? pack_->bytes_acknowledged() : 0);
  return progress_.moved(std::exchange(seen_, now) != now);
}

void Stage::tick() {
  std::list<Close> failed;
  Status why;
  bool more;
  {
    MutexLock lock(mutex_);
    armed_ = false;
    auto now = std::chrono::steady_clock::now();
    if (moved()) {
      moved_at_ = now;
      stalled_ = false;
    } else if (now - moved_at_ >= setup_.patience) {
      stalled_ = true;
      why = last_failure_.is_ok() ? stalled(setup_.patience) : last_failure_;
      failed.swap(closes_);
    }
    more = !closes_.empty();
  }
  for (auto& close : failed) close.done(why);
  if (more) arm();
}

// The commit.

Stage::Loan Stage::lend() {
  MutexLock lock(mutex_);
  lent_ = true;
  work_cancel_->cancel();
  while (running_) changed_.wait(mutex_);
  if (stopped()) return {};
  make_pack();
  return {pack_.get(), frames_.get()};
}

void Stage::give_back(bool lost) {
  std::unique_ptr<PackWriter> gone;
  {
    MutexLock lock(mutex_);
    lent_ = false;
    if (!stopped()) work_cancel_ = std::make_shared<CancelToken>();
    if (pack_) pack_->wait_for(nullptr, {});
    base_ = {};  // the commit may have chosen another
    if (lost) {
      if (pack_cancel_) pack_cancel_->cancel();
      gone = std::move(pack_);
      frames_.reset();
      for (auto& [inode, file] : files_) file.set_cuts(nullptr);
    }
  }
  gone.reset();
  kick();
}

}  // namespace weightfs
