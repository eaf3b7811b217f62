// From what a machine says to a published version.
#include <spdlog/spdlog.h>

#include "store/base/digest.h"
#include "store/drafts/completeness.h"
#include "store/drafts/durable.h"
#include "store/drafts/manager.h"

namespace weightfs {
namespace {

// The whole publish of a large version over a slow link; what hangs is found by the requests' own deadlines.
constexpr auto kPublishDeadline = std::chrono::hours(24 * 7);

// The files of a draft on their way to the disk.
class Synced {
 public:
  void done(Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    changed_.notify_all();
  }
  Status wait(const CancelToken* cancel) {
    MutexLock lock(mutex_);
    while (!status_ && !cancel->cancelled()) {
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
    }
    return status_ ? *status_ : Status(Code::kInterrupted, "cancelled");
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<Status> status_ GUARDED_BY(mutex_);
};

}  // namespace

void DraftManager::pump(const DraftEntryPtr& entry) {
  DraftActions actions;
  std::shared_ptr<CancelToken> cancel, started;
  std::vector<CommitDone> refused;
  {
    MutexLock lock(entry->mutex_);
    if (!acts(*entry)) return;
    actions = entry->machine_.decide(now());
    if (actions.cancel) cancel = entry->cancel_;
    if (actions.publish) started = entry->cancel_ = std::make_shared<CancelToken>();
    if (actions.refuse) refused.swap(entry->waiters_);
  }
  if (cancel) cancel->cancel();
  if (actions.interrupted) {
    post(check_pool_, [this, entry, inode = *actions.interrupted] { note_interruption(entry, inode); });
  }
  if (actions.check) {
    post(check_pool_, [this, entry, generation = *actions.check] { check(entry, generation); });
  }
  if (actions.publish) {
    post(publish_pool_, [this, entry, start = *actions.publish, started] { publish(entry, start, started); });
  }
  for (auto& done : refused) done(actions.refuse->with(entry->model().str() + "/" + entry->name()));
  if (actions.wake) wake_at(*actions.wake);
}

void DraftManager::process_ended(ProcessId process, ProcessEnd end, const std::string& name) {
  for (auto& entry : entries()) {
    bool ours;
    {
      MutexLock lock(entry->mutex_);
      ours = entry->watched_.erase(process) > 0;
      if (ours) {
        entry->tids_.clear();  // its ids may be another's soon
        entry->machine_.process_ended(process, end, name, now());
      }
    }
    if (ours) pump(entry);
  }
}

void DraftManager::check(const DraftEntryPtr& entry, std::uint64_t generation) {
  auto missing = what_is_missing(entry->root());
  {
    MutexLock lock(entry->mutex_);
    entry->machine_.checked(generation, std::move(missing));
  }
  pump(entry);
}

void DraftManager::note_interruption(const DraftEntryPtr& entry, DraftInode inode) {
  auto path = inode == 0 ? std::string() : path_of_inode(entry->root(), inode);
  std::string why;
  {
    MutexLock lock(entry->mutex_);
    if (!path.empty()) entry->machine_.describe_interruption("'" + path + "': " + entry->machine_.interruption());
    why = entry->machine_.interruption();
  }
  spdlog::warn("draft {}/{} interrupted: {}: it is not published by itself; `weightfs commit` publishes it as it is",
               entry->model().str(), entry->name(), why);
  entry->save().ignore("after a restart it is interrupted in any case");
  tell_changed(*entry);
}

void DraftManager::tell_changed(const DraftEntry& entry) const {
  if (options_.changed) options_.changed(entry.id());
}

// Publishing.

void DraftManager::commit(const DraftPtr& draft, CommitDone done) {
  auto entry = std::static_pointer_cast<DraftEntry>(draft);
  auto what = entry->model().str() + "/" + entry->name();
  if (options_.read_only) return done(Status(Code::kReadOnly, what + ": the bucket or mount is read-only"));
  std::optional<Result<PublishResult>> now_known;
  {
    MutexLock lock(entry->mutex_);
    auto asked = entry->machine_.ask(now());
    if (!asked) {
      now_known = std::move(asked).with(what);
    } else if (entry->result_) {
      now_known = *entry->result_;
    } else {
      entry->waiters_.push_back(std::move(done));
      entry->asked_ = true;
    }
  }
  if (now_known) return done(std::move(*now_known));
  pump(entry);
}

DraftSource DraftManager::source_of(const DraftEntry& entry) const {
  DraftSource source{.id = entry.id(), .root = entry.root(), .model = entry.model()};
  source.spool_dir = options_.cache->draft_spool_dir(entry.id());
  return source;
}

std::shared_ptr<DraftUploads> DraftManager::begin_uploads(const DraftEntryPtr& entry) {
  if (!options_.uploads || options_.read_only) return nullptr;
  std::weak_ptr<DraftEntry> weak = entry;
  auto made = options_.uploads(source_of(*entry), [this, weak] {
    auto alive = weak.lock();
    return alive ? wants(*alive) : DraftWants{};
  });
  MutexLock lock(entry->mutex_);
  if (entry->no_uploads_) return nullptr;
  if (!entry->uploads_) entry->uploads_ = made;
  return entry->uploads_;
}

DraftWants DraftManager::wants(const DraftEntry& entry) const {
  DraftWants out;
  out.wait = older_comes_first(entry);
  MutexLock lock(entry.mutex_);
  out.name = entry.name_;
  out.parent = entry.parent_;
  return out;
}

bool DraftManager::older_comes_first(const DraftEntry& entry) const {
  if (!options_.automatic) return false;
  for (auto& other : entries()) {
    if (other.get() == &entry || other->model() != entry.model()) continue;
    MutexLock lock(other->mutex_);
    if (other->machine_.about_to_commit()) return true;
  }
  return false;
}

void DraftManager::publish(const DraftEntryPtr& entry, DraftActions::Start start,
                           const std::shared_ptr<CancelToken>& cancel) {
  Status kept;  // why before_commit said no, where that is an error of its own
  auto source = source_of(*entry);
  source.resumed = start.resumed;
  source.uploads = entry->uploads();
  source.not_committed = [&] {
    MutexLock lock(entry->mutex_);
    entry->machine_.not_committed(start.attempt);
  };
  // What the commit makes of the files must outlive a power cut: after one, a commit under way goes on from them.
  auto synced = std::make_shared<Synced>();
  post(sync_pool_, [synced, root = entry->root()] { synced->done(sync_tree(root)); });
  source.before_commit = [&] {
    kept = synced->wait(cancel.get()).with("the files cannot be made durable");
    return kept.is_ok() && before_commit(entry, start.attempt, kept);
  };
  std::string commit_id;
  bool asked_for;
  {
    MutexLock lock(entry->mutex_);
    source.name = entry->name_;
    source.parent = entry->parent_;
    if (entry->commit_id_.empty()) entry->commit_id_ = random_id();
    commit_id = entry->commit_id_;
    asked_for = entry->machine_.asked_for().has_value();
  }
  entry->done_bytes_ = entry->total_bytes_ = 0;
  if (asked_for && !start.resumed) entry->save().ignore("after a restart it is found interrupted then");
  auto progress = [&entry](std::uint64_t done, std::uint64_t total) {
    entry->done_bytes_ = done;
    entry->total_bytes_ = total;
  };
  auto result = cancel->cancelled() ? Result<PublishResult>(Status(Code::kInterrupted, "cancelled"))
                                    : options_.publish(source, commit_id, progress, {kPublishDeadline, cancel});
  if (!kept && !result) result = kept;
  published(entry, start.attempt, result);
}

bool DraftManager::before_commit(const DraftEntryPtr& entry, std::uint64_t attempt, Status& why) {
  {
    MutexLock lock(entry->mutex_);
    if (!entry->machine_.enter_commit(attempt)) return false;
  }
  why = entry->save().with("the commit id cannot be recorded");
  if (why.is_ok()) return true;
  MutexLock lock(entry->mutex_);
  entry->machine_.leave_commit(attempt);
  return false;
}

void DraftManager::published(const DraftEntryPtr& entry, std::uint64_t attempt, const Result<PublishResult>& result) {
  std::vector<CommitDone> waiters;
  DraftStatus before, after;
  bool deleted, was_committing;
  {
    MutexLock lock(entry->mutex_);
    before = entry->machine_.status(now());
    was_committing = entry->machine_.committing();
    entry->machine_.finished(attempt, result.status(), now());
    after = entry->machine_.status(now());
    entry->cancel_.reset();
    if (result) entry->result_ = *result;
    if (after.state == DraftState::kCommitted || after.state == DraftState::kFailed) waiters.swap(entry->waiters_);
    if (was_committing && after.state == DraftState::kFailed) entry->commit_id_.clear();
    deleted = entry->delete_later_;
  }
  auto what = entry->model().str() + "/" + entry->name();
  bool failed = before.state == DraftState::kPublishing && after.state == DraftState::kFailed;
  if (after.state == DraftState::kCommitted && result && options_.take_over) {
    // From here on the folder loses its files: nobody may see it again, not even after a crash.
    entry->save().ignore("after a crash the folder may be seen, until the log is read");
    options_.take_over(entry->root(), *result);
  }
  if (after.state == DraftState::kCommitted || deleted) {
    forget_committed(entry);
  } else if (failed) {
    spdlog::error("commit {}: {}", what, after.reason);
    entry->save().ignore("after a restart it is found interrupted then");
  } else if (after.state == DraftState::kPublishing) {
    spdlog::warn("commit {}: nobody knows yet whether it is done: {}: asked again", what, result.status().message());
  }
  for (auto& done : waiters) done(result ? result : Result<PublishResult>(result.status().with(what)));
  if (after.state == DraftState::kCommitted || failed) tell_changed(*entry);
  pump(entry);
}

void DraftManager::forget_committed(const DraftEntryPtr& entry) {
  drop(entry);
  entry->drop_uploads();
  // Should the record stay, its commit id is found in the log after a restart, and it goes then.
  auto status = options_.cache->delete_draft(entry->id());
  if (!status) spdlog::warn("draft {}: its record stays: {}", entry->id(), status.message());
}

}  // namespace weightfs
