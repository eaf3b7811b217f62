#include "store/drafts/entry.h"

#include <nlohmann/json.hpp>

#include "store/base/posix.h"
#include "store/drafts/manager.h"

namespace weightfs {
namespace {

constexpr auto kBelieveTid = std::chrono::seconds(1);
constexpr std::size_t kMostTids = 64;

}  // namespace

DraftEntry::DraftEntry(DraftManager& manager, std::string id, ModelName model, std::string name, ParentChoice parent,
                       std::string root, DraftMachine machine)
    : manager_(manager),
      id_(std::move(id)),
      model_(std::move(model)),
      root_(std::move(root)),
      machine_(std::move(machine)),
      name_(std::move(name)),
      parent_(std::move(parent)) {}

std::string DraftEntry::name() const {
  MutexLock lock(mutex_);
  return name_;
}

DraftStatus DraftEntry::status() const {
  MutexLock lock(mutex_);
  auto status = machine_.status(manager_.now());
  if (status.state == DraftState::kPublishing) {
    status.done_bytes = done_bytes_;
    status.total_bytes = total_bytes_;
  }
  return status;
}

int DraftEntry::writers() const {
  MutexLock lock(mutex_);
  return machine_.writers();
}

std::optional<ProcessId> DraftEntry::process_of(pid_t tid) {
  if (tid <= 0) return std::nullopt;
  auto now = manager_.now();
  {
    MutexLock lock(mutex_);
    auto found = tids_.find(tid);
    if (found != tids_.end() && now - found->second.second < kBelieveTid) return found->second.first;
  }
  auto process = manager_.watcher_->process_of(tid);
  bool watch = false;
  {
    MutexLock lock(mutex_);
    if (tids_.size() >= kMostTids) tids_.clear();
    tids_[tid] = {process, now};
    watch = process && watched_.insert(*process).second;
  }
  if (watch) manager_.watcher_->watch(*process);
  return process;
}

Status DraftEntry::tell(pid_t tid,
                        const std::function<Status(DraftMachine&, std::optional<ProcessId>, SteadyTime)>& event) {
  auto who = process_of(tid);
  Status status;
  {
    MutexLock lock(mutex_);
    status = event(machine_, who, manager_.now());
  }
  manager_.pump(shared_from_this());
  return std::move(status).with(model_.str());
}

void DraftEntry::tell(const std::function<void(DraftMachine&, SteadyTime)>& event) {
  {
    MutexLock lock(mutex_);
    event(machine_, manager_.now());
  }
  manager_.pump(shared_from_this());
}

Status DraftEntry::begin_change(pid_t tid) {
  return tell(tid, [](auto& machine, auto who, auto now) { return machine.begin_change(who, now); });
}

void DraftEntry::end_change() {
  tell([](auto& machine, auto now) { machine.end_change(now); });
}

Status DraftEntry::writer_opened(WriterHandle handle, DraftInode inode, pid_t tid) {
  return tell(tid, [&](auto& machine, auto who, auto now) { return machine.open_writer(handle, inode, who, now); });
}

// No pump: a write gives the machine nothing to do, and there are many.
void DraftEntry::changed(pid_t tid) {
  auto who = process_of(tid);
  MutexLock lock(mutex_);
  if (tid <= 0) {
    machine_.wrote_back(manager_.now());
  } else {
    machine_.wrote(who, manager_.now());
  }
}

void DraftEntry::writer_failed(DraftInode inode, const Status& why) {
  tell([&](auto& machine, auto) { machine.writer_failed(inode, why.message()); });
}

void DraftEntry::flushed(WriterHandle handle, pid_t, bool exiting) {
  MutexLock lock(mutex_);
  machine_.flushed(handle, exiting);
}

void DraftEntry::released(WriterHandle handle) {
  std::shared_ptr<DraftUploads> uploads;
  DraftInode inode;
  {
    MutexLock lock(mutex_);
    uploads = uploads_;
    inode = machine_.inode_of(handle);
  }
  if (uploads && inode != 0) uploads->released(inode);
  tell([&](auto& machine, auto now) { machine.released(handle, now); });
}

std::shared_ptr<DraftUploads> DraftEntry::uploads() const {
  MutexLock lock(mutex_);
  return uploads_;
}

void DraftEntry::drop_uploads() {
  std::shared_ptr<DraftUploads> gone;
  {
    MutexLock lock(mutex_);
    no_uploads_ = true;
    gone.swap(uploads_);
  }
  if (gone) gone->drop();
}

void DraftEntry::read_behind(DraftInode inode, Fd readable) {
  auto uploads = this->uploads();
  if (!uploads) uploads = manager_.begin_uploads(shared_from_this());
  if (uploads) uploads->opened(inode, std::move(readable));
}

void DraftEntry::wrote(pid_t tid, DraftInode inode, ByteRange range) {
  changed(tid);
  if (auto uploads = this->uploads()) uploads->wrote(inode, range);
}

Ticket DraftEntry::close_file(DraftInode inode, std::function<void(Status)> done) {
  auto uploads = this->uploads();
  if (!uploads) {
    done(Status());
    return {};
  }
  if (manager_.options().close_waits) return uploads->closed(inode, std::move(done));
  done(Status());
  // It is uploaded all the same; what fails is told by the commit.
  uploads->closed(inode, [](const Status&) {});
  return {};
}

Status DraftEntry::charge(std::int64_t bytes) { return manager_.options().cache->charge_draft(bytes); }

Status DraftEntry::set_parent(const ParentChoice& parent) {
  Status status;
  {
    MutexLock record_lock(record_mutex_);
    ParentChoice before;
    {
      MutexLock lock(mutex_);
      WFS_TRY(machine_.hold());
      before = std::exchange(parent_, parent);
    }
    status = save_locked();
    MutexLock lock(mutex_);
    if (!status) parent_ = before;
    machine_.unhold();
  }
  manager_.pump(shared_from_this());
  return status;
}

std::optional<VersionRef> DraftEntry::parent() const {
  {
    MutexLock lock(mutex_);
    if (parent_.none) return std::nullopt;
    if (parent_.named) return parent_.named;
  }
  auto& newest = manager_.options().newest;
  return newest ? newest(model_) : std::nullopt;
}

// The states of a record: "open", "interrupted", "failed"; "publishing": somebody asked for it, and nobody has written
// since; "committing": commit_id may be in the log; "committed": it is there, and the files are on their way elsewhere.
DraftRecord DraftEntry::record() const {
  DraftRecord out;
  out.id = id_;
  out.model = model_.str();
  out.name = name_;
  out.parent = to_record(parent_);
  out.commit_id = commit_id_;
  nlohmann::json extra = {{"boot", manager_.boot_}};
  auto asked_for = machine_.asked_for();
  if (result_) {
    out.state = "committed";
  } else if (machine_.committing()) {
    out.state = "committing";
  } else if (asked_for && machine_.writers() == 0) {
    out.state = "publishing";
    extra["trigger"] = *asked_for == PublishTrigger::kAsked ? "asked" : "renamed";
  } else if (!machine_.failure().empty()) {
    out.state = "failed";
    out.reason = machine_.failure();
  } else if (machine_.interrupted()) {
    out.state = "interrupted";
    out.reason = machine_.interruption();
  } else {
    out.state = "open";
  }
  out.extra = extra.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return out;
}

Status DraftEntry::save() {
  MutexLock lock(record_mutex_);
  return save_locked();
}

Status DraftEntry::save_locked() {
  DraftRecord now;
  {
    MutexLock lock(mutex_);
    now = record();
  }
  return manager_.options().cache->update_draft(now);
}

Status DraftEntry::set_name(const std::string& name) {
  std::string before;
  {
    MutexLock lock(mutex_);
    WFS_TRY(machine_.hold());  // nothing is published under either name meanwhile
    before = std::exchange(name_, name);
  }
  auto saved = save_locked();
  MutexLock lock(mutex_);
  machine_.unhold();
  if (saved) {
    machine_.renamed(!is_temporary_name(name), manager_.now());
  } else {
    name_ = before;
  }
  return saved;
}

Status DraftEntry::remove_folder(bool& later) {
  {
    MutexLock lock(mutex_);
    WFS_TRY(machine_.may_remove());
    WFS_TRY(machine_.hold());
  }
  auto removed = posix::rmdir(root_);
  MutexLock lock(mutex_);
  machine_.unhold();
  if (!removed && removed.code() != Code::kNotFound) return removed;
  machine_.remove();
  later = delete_later_ = machine_.job_running();
  return {};
}

std::string to_record(const ParentChoice& parent) {
  return parent.none ? "-" : parent.named ? parent.named->str() : "";
}

ParentChoice parent_from_record(const std::string& text) {
  ParentChoice out;
  out.none = text == "-";
  if (auto named = VersionRef::parse(text); !out.none && named) out.named = *named;
  return out;
}

}  // namespace weightfs
