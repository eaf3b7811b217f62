// The drafts of a FakeStore: directories on local disk, no settle rules; a commit makes a version of what is there.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "store/base/mutex.h"
#include "store/draft.h"

namespace weightfs {

class FakeStore;

class FakeDraft final : public Draft {
 public:
  FakeDraft(FakeStore& store, ModelName model, std::string name, std::string root);
  const std::string& id() const override { return id_; }
  ModelName model() const override { return model_; }
  std::string name() const override EXCLUDES(mutex_);
  const std::string& root() const override { return root_; }
  DraftStatus status() const override EXCLUDES(mutex_);
  Status begin_change(pid_t tid) override EXCLUDES(mutex_);
  void end_change() override EXCLUDES(mutex_);
  Status writer_opened(std::uint64_t handle, DraftInode inode, pid_t tid) override EXCLUDES(mutex_);
  void changed(pid_t tid) override EXCLUDES(mutex_);
  void writer_failed(DraftInode inode, const Status& why) override EXCLUDES(mutex_);
  void flushed(std::uint64_t handle, pid_t tid, bool exiting) override EXCLUDES(mutex_);
  void released(std::uint64_t handle) override EXCLUDES(mutex_);
  int writers() const override EXCLUDES(mutex_);
  Status charge(std::int64_t bytes) override;
  Status set_parent(const ParentChoice& parent) override EXCLUDES(mutex_);
  std::optional<VersionRef> parent() const override EXCLUDES(mutex_);

  void set_name(std::string name) EXCLUDES(mutex_);
  void set_state(DraftState state, std::string reason = "") EXCLUDES(mutex_);
  int brackets() const EXCLUDES(mutex_);

 private:
  FakeStore& store_;
  const std::string id_;
  const ModelName model_;
  const std::string root_;
  mutable Mutex mutex_;
  std::string name_ GUARDED_BY(mutex_);
  DraftStatus status_ GUARDED_BY(mutex_);
  std::set<std::uint64_t> handles_ GUARDED_BY(mutex_);
  int brackets_ GUARDED_BY(mutex_) = 0;
  ParentChoice parent_ GUARDED_BY(mutex_);
};

class FakeDrafts final : public Drafts {
 public:
  FakeDrafts(FakeStore& store, std::string dir) : store_(store), dir_(std::move(dir)) {}
  std::vector<DraftPtr> list() const override EXCLUDES(mutex_);
  std::vector<DraftPtr> list(const ModelName& model) const override EXCLUDES(mutex_);
  DraftPtr find(const ModelName& model, std::string_view name) const override EXCLUDES(mutex_);
  DraftPtr find_id(const std::string& id) const override EXCLUDES(mutex_);
  Result<DraftPtr> create(const ModelName& model, std::string_view name, pid_t tid, mode_t mode) override
      EXCLUDES(mutex_);
  Status rename(const DraftPtr& draft, std::string_view new_name) override EXCLUDES(mutex_);
  Status remove(const DraftPtr& draft) override EXCLUDES(mutex_);
  void commit(const DraftPtr& draft, std::function<void(Result<PublishResult>)> done) override;
  void shut_down(SteadyTime deadline) override;

 private:
  Status check_name(const ModelName& model, std::string_view name) const;
  FakeStore& store_;
  const std::string dir_;
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<FakeDraft>> drafts_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
