// All drafts of one cache. The machine of each says what is to be done (pump), two pools do it: one looks at files, one
// publishes. One thread waits for the next time at which a machine wants to be asked again, one (the watcher's) for the
// ends of writers.
//
//   thread             started, joined by            does                                 may wait for
//   draft-timer        DraftManager                  pump()                               the time
//   writers            SystemWatcher                 tells the ends of processes, pump()  a pidfd
//   draft-check0       DraftManager                  completeness, reasons                the local disk
//   draft-publish0, 1  DraftManager                  the publish function, listeners      the network, until cancelled
//   draft-sync0, 1     DraftManager                  fsync of what is published           the local disk
// Locks: DraftEntry::record_mutex_ before each of DraftEntry::mutex_, DraftManager::mutex_, DraftManager::work_mutex_,
// under which no other is taken.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/threads.h"
#include "store/drafts/drafts.h"
#include "store/drafts/entry.h"

namespace weightfs {

class DraftManager final : public Drafts {
 public:
  explicit DraftManager(DraftsOptions options);
  ~DraftManager() override;
  Status start();  // once: watcher, the records of earlier runs, timer

  std::vector<DraftPtr> list() const override EXCLUDES(mutex_);
  std::vector<DraftPtr> list(const ModelName& model) const override EXCLUDES(mutex_);
  DraftPtr find(const ModelName& model, std::string_view name) const override EXCLUDES(mutex_);
  DraftPtr find_id(const std::string& id) const override EXCLUDES(mutex_);
  Result<DraftPtr> create(const ModelName& model, std::string_view name, pid_t tid, mode_t mode) override
      EXCLUDES(mutex_);
  Status rename(const DraftPtr& draft, std::string_view new_name) override EXCLUDES(mutex_);
  Status remove(const DraftPtr& draft) override EXCLUDES(mutex_);
  void commit(const DraftPtr& draft, CommitDone done) override;
  void shut_down(SteadyTime deadline) override;

  // For tests, without a timer: asks every machine and does what it says; waits until no job runs.
  void run_due() EXCLUDES(mutex_, work_mutex_);
  void wait_idle() EXCLUDES(work_mutex_);

 private:
  friend class DraftEntry;
  using Key = std::pair<std::string, std::string>;  // model, name

  const DraftsOptions& options() const { return options_; }
  SteadyTime now() const { return clock_.now(); }

  // Names.
  Status check_name(const ModelName& model, std::string_view name) const;
  Status reserve(const ModelName& model, std::string_view name) EXCLUDES(mutex_);
  void put(const DraftEntryPtr& entry, const std::string& name) EXCLUDES(mutex_);
  void free_name(const ModelName& model, const std::string& name) EXCLUDES(mutex_);
  void drop(const DraftEntryPtr& entry) EXCLUDES(mutex_);
  std::vector<DraftEntryPtr> entries() const EXCLUDES(mutex_);

  // Earlier runs.
  void recover(const DraftRecord& record, const std::string& boot) EXCLUDES(mutex_);
  void restore(DraftMachine& machine, const DraftRecord& record, const std::string& boot) const;

  // Uploads behind writers: those of the entry, begun now where there are none; null: there shall be none.
  std::shared_ptr<DraftUploads> begin_uploads(const DraftEntryPtr& entry) EXCLUDES(mutex_);
  DraftWants wants(const DraftEntry& entry) const EXCLUDES(mutex_);
  bool older_comes_first(const DraftEntry& entry) const EXCLUDES(mutex_);
  DraftSource source_of(const DraftEntry& entry) const;

  // Work. No lock may be held.
  void pump(const DraftEntryPtr& entry) EXCLUDES(work_mutex_);
  void process_ended(ProcessId process, ProcessEnd end, const std::string& name);
  bool post(WorkerPool& pool, std::function<void()> job) EXCLUDES(work_mutex_);
  void wake_at(SteadyTime when) EXCLUDES(work_mutex_);
  void run_timer(const std::stop_token& stop) EXCLUDES(work_mutex_);
  void check(const DraftEntryPtr& entry, std::uint64_t generation);
  void note_interruption(const DraftEntryPtr& entry, DraftInode inode);
  void publish(const DraftEntryPtr& entry, DraftActions::Start start, const std::shared_ptr<CancelToken>& cancel);
  bool before_commit(const DraftEntryPtr& entry, std::uint64_t attempt, Status& why);
  void published(const DraftEntryPtr& entry, std::uint64_t attempt, const Result<PublishResult>& result);
  void forget_committed(const DraftEntryPtr& entry);
  void tell_changed(const DraftEntry& entry) const;
  bool acts(const DraftEntry& entry) const REQUIRES(entry.mutex_);
  bool anything_under_way() const EXCLUDES(mutex_);

  const DraftsOptions options_;
  Clock& clock_;
  std::string boot_;  // id of the machine's boot; "" when it cannot be told

  mutable Mutex mutex_;  // guards the tables; no lock is taken under it
  std::map<std::string, DraftEntryPtr> by_id_ GUARDED_BY(mutex_);
  std::map<Key, DraftEntryPtr> by_name_ GUARDED_BY(mutex_);  // null: a name about to be taken

  Mutex work_mutex_;
  CondVar work_changed_;
  int jobs_ GUARDED_BY(work_mutex_) = 0;
  SteadyTime next_wake_ GUARDED_BY(work_mutex_) = SteadyTime::max();
  bool shut_down_ GUARDED_BY(work_mutex_) = false;

  std::unique_ptr<ProcessWatcher> watcher_;
  WorkerPool check_pool_, publish_pool_, sync_pool_;
  std::jthread timer_;
};

}  // namespace weightfs
