#include "tests/support/fake_drafts.h"

#include <unistd.h>

#include <filesystem>

#include "store/base/digest.h"
#include "store/base/posix.h"
#include "tests/support/fake_store.h"

namespace weightfs {

FakeDraft::FakeDraft(FakeStore& store, ModelName model, std::string name, std::string root)
    : store_(store), id_(random_id()), model_(std::move(model)), root_(std::move(root)), name_(std::move(name)) {}

std::string FakeDraft::name() const {
  MutexLock lock(mutex_);
  return name_;
}
DraftStatus FakeDraft::status() const {
  MutexLock lock(mutex_);
  return status_;
}

Status FakeDraft::begin_change(pid_t /*tid*/) {
  MutexLock lock(mutex_);
  if (status_.state == DraftState::kPublishing || status_.state == DraftState::kCommitted) {
    return {Code::kReadOnly, name_ + " is " + std::string(to_string(status_.state))};
  }
  brackets_++;
  return {};
}
void FakeDraft::end_change() {
  MutexLock lock(mutex_);
  brackets_--;
}
int FakeDraft::brackets() const {
  MutexLock lock(mutex_);
  return brackets_;
}

Status FakeDraft::writer_opened(std::uint64_t handle, DraftInode /*inode*/, pid_t tid) {
  store_.tell(tid > 0 ? "opened" : "opened by nobody");
  MutexLock lock(mutex_);
  handles_.insert(handle);
  return {};
}
void FakeDraft::changed(pid_t /*tid*/) {}
void FakeDraft::writer_failed(DraftInode /*inode*/, const Status& why) {
  store_.tell("failed " + std::string(to_string(why.code())));
  set_state(DraftState::kInterrupted, why.message());
}
void FakeDraft::flushed(std::uint64_t /*handle*/, pid_t /*tid*/, bool exiting) {
  store_.tell(exiting ? "flushed exiting" : "flushed");
}
void FakeDraft::released(std::uint64_t handle) {
  {
    MutexLock lock(mutex_);
    handles_.erase(handle);
  }
  store_.tell("released");
}
int FakeDraft::writers() const {
  MutexLock lock(mutex_);
  return static_cast<int>(handles_.size());
}
Status FakeDraft::charge(std::int64_t bytes) { return store_.charge(bytes); }
Status FakeDraft::set_parent(const ParentChoice& parent) {
  WFS_TRY(begin_change(0));
  end_change();
  MutexLock lock(mutex_);
  parent_ = parent;
  return {};
}
std::optional<VersionRef> FakeDraft::parent() const {
  MutexLock lock(mutex_);
  return parent_.named;
}
void FakeDraft::set_name(std::string name) {
  MutexLock lock(mutex_);
  name_ = std::move(name);
}
void FakeDraft::set_state(DraftState state, std::string reason) {
  MutexLock lock(mutex_);
  status_.state = state;
  status_.reason = std::move(reason);
}

// --- FakeDrafts

std::vector<DraftPtr> FakeDrafts::list() const {
  MutexLock lock(mutex_);
  std::vector<DraftPtr> out;
  for (const auto& [id, draft] : drafts_) out.push_back(draft);
  return out;
}

std::vector<DraftPtr> FakeDrafts::list(const ModelName& model) const {
  auto out = list();
  std::erase_if(out, [&](const DraftPtr& draft) { return draft->model() != model; });
  return out;
}

DraftPtr FakeDrafts::find(const ModelName& model, std::string_view name) const {
  for (auto& draft : list(model)) {
    if (draft->name() == name) return draft;
  }
  return nullptr;
}

DraftPtr FakeDrafts::find_id(const std::string& id) const {
  MutexLock lock(mutex_);
  auto found = drafts_.find(id);
  return found == drafts_.end() ? nullptr : found->second;
}

Status FakeDrafts::check_name(const ModelName& model, std::string_view name) const {
  auto version = VersionName::parse(name);
  if (!version.is_ok() && !is_temporary_name(name)) return std::move(version).status();
  auto draft = find(model, name);
  if (draft && draft->status().state != DraftState::kCommitted) return {Code::kExists, "a draft has the name"};
  auto state = store_.model(model);
  if (state && version.is_ok() && state->live(*version) != nullptr) return {Code::kExists, "a version has the name"};
  return {};
}

Result<DraftPtr> FakeDrafts::create(const ModelName& model, std::string_view name, pid_t /*tid*/, mode_t mode) {
  WFS_TRY(check_name(model, name));
  auto root = dir_ + "/" + random_id();
  WFS_TRY(posix::make_dirs(dir_));
  WFS_TRY(posix::mkdir(root, mode));
  auto draft = std::make_shared<FakeDraft>(store_, model, std::string(name), root);
  store_.tell("create " + model.str() + "/" + std::string(name));
  MutexLock lock(mutex_);
  drafts_.emplace(draft->id(), draft);
  return DraftPtr(draft);
}

Status FakeDrafts::rename(const DraftPtr& draft, std::string_view new_name) {
  WFS_TRY(check_name(draft->model(), new_name));
  bool publishes = is_temporary_name(draft->name()) && !is_temporary_name(new_name);
  static_cast<FakeDraft&>(*draft).set_name(std::string(new_name));
  store_.tell("rename " + std::string(new_name));
  if (publishes) commit(draft, [](const Result<PublishResult>&) {});
  return {};
}

Status FakeDrafts::remove(const DraftPtr& draft) {
  WFS_TRY(posix::rmdir(draft->root()));
  store_.tell("remove " + draft->name());
  MutexLock lock(mutex_);
  drafts_.erase(draft->id());
  return {};
}

void FakeDrafts::commit(const DraftPtr& draft, std::function<void(Result<PublishResult>)> done) {
  auto fake = std::static_pointer_cast<FakeDraft>(draft);
  if (fake->writers() > 0) return done(Status(Code::kBusy, "a file is open for writing"));
  auto name = VersionName::parse(fake->name());
  if (!name.is_ok()) return done(Status(Code::kInvalid, "its name is temporary"));
  fake->set_state(DraftState::kPublishing);
  store_.pool_->post([this, fake, name = *name, done] {
    {
      MutexLock lock(store_.mutex_);
      while (store_.hold_commits_) store_.changed_.wait(store_.mutex_);
      if (store_.down_) {
        fake->set_state(DraftState::kFailed, "the bucket is out of reach");
        return done(Status(Code::kUnavailable, "the bucket is out of reach"));
      }
    }
    VersionRef version{fake->model(), name};
    auto published = store_.publish(fake->root(), version, {}, {}, {});
    fake->set_state(published.is_ok() ? DraftState::kCommitted : DraftState::kFailed,
                    published.is_ok() ? "" : published.status().message());
    if (published.is_ok()) {
      MutexLock lock(mutex_);
      drafts_.erase(fake->id());
    }
    if (auto* listener = store_.listener_.load()) listener->draft_changed(fake->id());
    done(std::move(published));
  });
}

void FakeDrafts::shut_down(SteadyTime /*deadline*/) { store_.tell("shut down"); }

}  // namespace weightfs
