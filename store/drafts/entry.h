// One draft: its machine, its durable record, who waits for it. The manager does what the machine says.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/bucket/bucket.h"
#include "store/cache/cache.h"
#include "store/draft.h"
#include "store/drafts/draft_machine.h"
#include "store/uploads.h"

namespace weightfs {

class DraftManager;

using CommitDone = std::function<void(Result<PublishResult>)>;

class DraftEntry final : public Draft, public std::enable_shared_from_this<DraftEntry> {
 public:
  DraftEntry(DraftManager& manager, std::string id, ModelName model, std::string name, ParentChoice parent,
             std::string root, DraftMachine machine);

  const std::string& id() const override { return id_; }
  ModelName model() const override { return model_; }
  std::string name() const override EXCLUDES(mutex_);
  const std::string& root() const override { return root_; }
  DraftStatus status() const override EXCLUDES(mutex_);

  Status begin_change(pid_t tid) override EXCLUDES(mutex_);
  void end_change() override EXCLUDES(mutex_);
  Status writer_opened(WriterHandle handle, DraftInode inode, pid_t tid) override EXCLUDES(mutex_);
  void changed(pid_t tid) override EXCLUDES(mutex_);
  void writer_failed(DraftInode inode, const Status& why) override EXCLUDES(mutex_);
  void flushed(WriterHandle handle, pid_t tid, bool exiting) override EXCLUDES(mutex_);
  void released(WriterHandle handle) override EXCLUDES(mutex_);
  void read_behind(DraftInode inode, Fd readable) override EXCLUDES(mutex_);
  void wrote(pid_t tid, DraftInode inode, ByteRange range) override EXCLUDES(mutex_);
  Ticket close_file(DraftInode inode, std::function<void(Status)> done) override EXCLUDES(mutex_);
  int writers() const override EXCLUDES(mutex_);
  Status charge(std::int64_t bytes) override;
  Status set_parent(const ParentChoice& parent) override EXCLUDES(mutex_, record_mutex_);
  std::optional<VersionRef> parent() const override EXCLUDES(mutex_);

 private:
  friend class DraftManager;
  std::shared_ptr<DraftUploads> uploads() const EXCLUDES(mutex_);
  void drop_uploads() EXCLUDES(mutex_);
  using Tids = std::map<pid_t, std::pair<std::optional<ProcessId>, SteadyTime>>;

  std::optional<ProcessId> process_of(pid_t tid) EXCLUDES(mutex_);
  // Tells the machine, with the writer's process, then does what it says.
  Status tell(pid_t tid, const std::function<Status(DraftMachine&, std::optional<ProcessId>, SteadyTime)>& event)
      EXCLUDES(mutex_);
  void tell(const std::function<void(DraftMachine&, SteadyTime)>& event) EXCLUDES(mutex_);
  DraftRecord record() const REQUIRES(mutex_);
  Status save() EXCLUDES(mutex_, record_mutex_);
  Status save_locked() EXCLUDES(mutex_) REQUIRES(record_mutex_);
  Status set_name(const std::string& name) EXCLUDES(mutex_) REQUIRES(record_mutex_);  // durable
  // rmdir. `later`: a job of a void attempt still reads the folder; the record goes when it ends.
  Status remove_folder(bool& later) EXCLUDES(mutex_) REQUIRES(record_mutex_);

  DraftManager& manager_;
  const std::string id_;
  const ModelName model_;
  const std::string root_;

  // Held while the record is written, so that writes land in the order of what they say: the one lock here that is held
  // across the disk. Before mutex_; nothing that FUSE's reads and writes need.
  Mutex record_mutex_;

  mutable Mutex mutex_;
  DraftMachine machine_ GUARDED_BY(mutex_);
  std::string name_ GUARDED_BY(mutex_);
  ParentChoice parent_ GUARDED_BY(mutex_);
  std::string commit_id_ GUARDED_BY(mutex_);
  std::shared_ptr<DraftUploads> uploads_ GUARDED_BY(mutex_);  // from the first writer on
  bool no_uploads_ GUARDED_BY(mutex_) = false;                // it is gone
  bool asked_ GUARDED_BY(mutex_) = false;                     // somebody asked for a commit since the start
  std::shared_ptr<CancelToken> cancel_ GUARDED_BY(mutex_);
  std::vector<CommitDone> waiters_ GUARDED_BY(mutex_);
  std::optional<PublishResult> result_ GUARDED_BY(mutex_);
  bool delete_later_ GUARDED_BY(mutex_) = false;  // removed while a void job still reads it
  // What /proc said of a thread is believed for a second: asking costs more than a small write.
  Tids tids_ GUARDED_BY(mutex_);
  std::set<ProcessId> watched_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> done_bytes_ = 0, total_bytes_ = 0;
};
using DraftEntryPtr = std::shared_ptr<DraftEntry>;

// As in DraftRecord::parent.
std::string to_record(const ParentChoice& parent);
ParentChoice parent_from_record(const std::string& text);

}  // namespace weightfs
