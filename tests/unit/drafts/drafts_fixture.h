// Drafts over a cache that is only a folder, with writers, publisher and time in the test's hand.
#pragma once

#include <gmock/gmock.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "store/base/digest.h"
#include "store/base/posix.h"
#include "store/drafts/manager.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

// Only what drafts use. Records live as long as this object: restart the drafts on it.
class FolderCache final : public Cache {
 public:
  std::optional<Bytes> get_blob(const Sha256&) override { return std::nullopt; }
  void put_blob(const Sha256&, ByteSpan) override {}
  std::optional<Bytes> load_state(const std::string&) override { return std::nullopt; }
  void save_state(const std::string&, ByteSpan) override {}
  std::vector<std::string> state_keys(const std::string&) override { return {}; }
  Result<FlatFilePtr> open_file(const FileId&, std::span<const std::uint32_t>) override {
    return Status(Code::kUnsupported, "");
  }
  bool has_some(const FileId&) const override { return false; }
  std::vector<std::uint64_t> cached_versions(const std::string&) const override { return {}; }
  std::uint64_t cached_bytes(const std::string&, std::uint64_t) const override { return 0; }
  std::uint64_t cached_bytes(const FileId&) const override { return 0; }
  void touch(const FileId&) override {}
  void set_newest(const std::string&, std::uint64_t) override {}
  void drop_version(const std::string&, std::uint64_t) override {}
  Status set_pinned(const std::string&, std::uint64_t, bool) override { return {}; }
  bool pinned(const std::string&, std::uint64_t) const override { return false; }
  Status adopt_copy(const std::string&, const FileId&, std::span<const std::uint32_t>) override {
    return Status(Code::kUnsupported, "a fake cache takes no copies");
  }
  Status adopt(const std::string&, const FileId&, std::span<const std::uint32_t>) override { return {}; }
  void make_room(std::uint64_t) override {}
  CacheUsage usage() const override { return {}; }
  const std::string& dir() const override { return dir_.path(); }

  Result<DraftRecord> create_draft(const std::string& model, const std::string& name) override {
    MutexLock lock(mutex_);
    WFS_TRY(next_error());
    DraftRecord record{.id = random_id(), .model = model, .name = name};
    WFS_TRY(posix::make_dirs(draft_dir(record.id)));
    WFS_TRY(posix::make_dirs(draft_spool_dir(record.id)));
    records_[record.id] = record;
    return record;
  }
  Status update_draft(const DraftRecord& record) override {
    MutexLock lock(mutex_);
    WFS_TRY(next_error());
    if (!records_.contains(record.id)) return {Code::kNotFound, "no draft"};
    records_[record.id] = record;
    return {};
  }
  std::vector<DraftRecord> drafts() override {
    MutexLock lock(mutex_);
    std::vector<DraftRecord> out;
    for (auto& [id, record] : records_) out.push_back(record);
    return out;
  }
  Status delete_draft(const std::string& id) override {
    MutexLock lock(mutex_);
    WFS_TRY(next_error());
    records_.erase(id);
    return posix::remove_tree(dir_ / id);
  }
  std::string draft_dir(const std::string& id) const override { return dir_ / (id + "/files"); }
  std::string draft_spool_dir(const std::string& id) const override { return dir_ / (id + "/spool"); }
  Status charge_draft(std::int64_t bytes) override {
    MutexLock lock(mutex_);
    charged_ += bytes;
    return charged_ > 1000 ? Status(Code::kNoSpace, "quota") : Status();
  }

  // Of tests.
  DraftRecord record(const std::string& id) {
    MutexLock lock(mutex_);
    auto found = records_.find(id);
    return found == records_.end() ? DraftRecord{} : found->second;
  }
  void put_record(const DraftRecord& record) {
    MutexLock lock(mutex_);
    records_[record.id] = record;
  }
  void fail_next_write(Code code) {
    MutexLock lock(mutex_);
    error_ = code;
  }

 private:
  Status next_error() REQUIRES(mutex_) {
    auto error = std::exchange(error_, std::nullopt);
    return error ? Status(*error, "the disk says no") : Status();
  }
  TempDir dir_;
  Mutex mutex_;
  std::map<std::string, DraftRecord> records_ GUARDED_BY(mutex_);
  std::optional<Code> error_ GUARDED_BY(mutex_);
  std::int64_t charged_ GUARDED_BY(mutex_) = 0;
};

// Threads are processes of their own, up to 1000; the rest cannot be told.
class FakeWatcher final : public ProcessWatcher {
 public:
  explicit FakeWatcher(Ended ended) : ended_(std::move(ended)) {}
  std::optional<ProcessId> process_of(pid_t tid) override {
    return tid > 0 && tid <= 1000 ? std::optional(ProcessId{tid, 1}) : std::nullopt;
  }
  void watch(const ProcessId& process) override {
    MutexLock lock(mutex_);
    watched_.insert(process);
  }
  void end(pid_t pid, ProcessEnd how = {ProcessEnd::How::kExited, 0}) {
    {
      MutexLock lock(mutex_);
      if (watched_.erase({pid, 1}) == 0) return;
    }
    ended_({pid, 1}, how, "cp");
  }

 private:
  const Ended ended_;
  Mutex mutex_;
  std::set<ProcessId> watched_ GUARDED_BY(mutex_);
};

// Publishes into a list. A test scripts what happens and may hold a job where it is.
class FakePublisher {
 public:
  struct Call {
    std::string name, commit_id, root;
    ParentChoice parent;
    bool resumed = false;
  };
  enum class Hold : std::uint8_t { kNo, kBefore, kAfter };  // before or after before_commit

  Result<PublishResult> run(const DraftSource& source, const std::string& commit_id, const Progress& progress,
                            const CallOptions& options) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      calls_.push_back({source.name, commit_id, source.root, source.parent, source.resumed});
      running_++;
      changed_.notify_all();
    }
    progress(1, 2);
    auto result = publish(source, commit_id, options);
    MutexLock lock(mutex_);
    running_--;
    changed_.notify_all();
    return result;
  }

  void hold(Hold where) {
    MutexLock lock(mutex_);
    hold_ = where;
    changed_.notify_all();
  }
  void fail_before(std::optional<Code> code) {
    MutexLock lock(mutex_);
    before_ = code;
  }
  void fail_after(std::optional<Code> code, bool done) {
    MutexLock lock(mutex_);
    after_ = code;
    done_ = done;
  }
  void fail_reading_log(std::optional<Code> code) {
    MutexLock lock(mutex_);
    unread_ = code;
  }
  std::vector<Call> calls() {
    MutexLock lock(mutex_);
    return calls_;
  }
  std::vector<std::string> published() {
    MutexLock lock(mutex_);
    std::vector<std::string> out;
    for (auto& [id, name] : log_) out.push_back(name);
    std::sort(out.begin(), out.end());
    return out;
  }
  void wait_until_published(std::size_t count) {
    MutexLock lock(mutex_);
    while (log_.size() < count) changed_.wait(mutex_);
  }
  void wait_until_held() {
    MutexLock lock(mutex_);
    while (held_ != hold_) changed_.wait(mutex_);
  }
  std::size_t most_at_once() {
    MutexLock lock(mutex_);
    return most_;
  }

 private:
  void wait(Hold where, const CallOptions& options) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    most_ = std::max(most_, running_);
    while (hold_ == where && !options.cancel->cancelled()) {
      held_ = where;
      changed_.notify_all();
      // Only the cancel token is polled; what a test waits for is told.
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(2));
    }
    held_ = Hold::kNo;
  }
  Result<PublishResult> publish(const DraftSource& source, const std::string& commit_id, const CallOptions& options)
      EXCLUDES(mutex_) {
    VersionRef version{source.model, VersionName::parse(source.name).value()};
    PublishResult result{.version = version, .node = {source.model, 1}};
    {
      MutexLock lock(mutex_);
      if (unread_) return Status(*unread_, "the log");
      if (source.resumed && log_.contains(commit_id)) return result;
    }
    source.not_committed();
    {
      MutexLock lock(mutex_);
      if (before_) return Status(*before_, "before");
    }
    wait(Hold::kBefore, options);
    if (options.cancel->cancelled()) return Status(Code::kInterrupted, "cancelled");
    if (!source.before_commit()) return Status(Code::kInterrupted, "given up");
    wait(Hold::kAfter, options);
    MutexLock lock(mutex_);
    if (options.cancel->cancelled()) return Status(Code::kInterrupted, "cancelled");
    if (!after_ || done_) log_.emplace(commit_id, source.name);
    if (after_) return Status(*after_, "after");
    return result;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<Call> calls_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> log_ GUARDED_BY(mutex_);  // name by commit id
  Hold hold_ GUARDED_BY(mutex_) = Hold::kNo;
  Hold held_ GUARDED_BY(mutex_) = Hold::kNo;
  std::optional<Code> before_ GUARDED_BY(mutex_), after_ GUARDED_BY(mutex_);
  bool done_ GUARDED_BY(mutex_) = false;
  std::optional<Code> unread_ GUARDED_BY(mutex_);
  std::size_t running_ GUARDED_BY(mutex_) = 0, most_ GUARDED_BY(mutex_) = 0;
};

class DraftsTest : public ::testing::Test {
 protected:
  static constexpr pid_t kCp = 10, kOther = 20, kForeign = 5000;
  using Hold = FakePublisher::Hold;
  const ModelName model_ = ModelName::parse("m").value();

  void SetUp() override { start(); }
  virtual Cache& cache() { return folder_; }
  DraftsOptions options() {
    DraftsOptions out;
    out.cache = &cache();
    out.clock = &clock_;
    out.timer = false;
    out.publish = [this](auto& source, auto& commit_id, auto& progress, auto& call) {
      return publisher_.run(source, commit_id, progress, call);
    };
    out.is_live = [this](auto&, auto name) { return live_.contains(std::string(name)); };
    out.newest = [this](auto& model) { return std::optional(VersionRef{model, VersionName::parse("newest").value()}); };
    out.changed = [this](auto& id) {
      MutexLock lock(mutex_);
      changed_ids_.insert(id);
    };
    out.take_over = [this](const std::string& root, const PublishResult&) {
      if (on_take_over_) on_take_over_(root);
    };
    out.watcher = [this](ProcessWatcher::Ended ended) -> Result<std::unique_ptr<ProcessWatcher>> {
      auto watcher = std::make_unique<FakeWatcher>(std::move(ended));
      watcher_ = watcher.get();
      return std::unique_ptr<ProcessWatcher>(std::move(watcher));
    };
    return out;
  }
  void start() { start(options()); }
  void start(DraftsOptions with) {
    drafts_ = std::make_unique<DraftManager>(std::move(with));
    ASSERT_OK(drafts_->start());
  }
  void restart() {
    drafts_.reset();
    start();
  }

  DraftPtr mkdir(const std::string& name, pid_t tid = kCp) {
    auto made = drafts_->create(model_, name, tid, 0755);
    EXPECT_OK(made);
    return made ? *made : nullptr;
  }
  void write(const DraftPtr& draft, const std::string& path, pid_t tid = kCp, bool dies = false) {
    auto full = draft->root() + "/" + path;
    ASSERT_OK(draft->begin_change(tid));
    auto file = posix::open(full, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_OK(file);
    auto inode = posix::lstat(full)->st_ino;
    auto handle = ++handle_;
    ASSERT_OK(draft->writer_opened(handle, inode, tid));
    draft->end_change();
    ASSERT_OK(posix::write_exact(file->get(), as_bytes("weights")));
    draft->changed(tid);
    draft->flushed(handle, tid, dies);
    draft->released(handle);
  }
  // As `cp -r` makes a version of one file.
  DraftPtr cp(const std::string& name, pid_t pid = kCp) {
    auto draft = mkdir(name, pid);
    write(draft, "pytorch_model.bin", pid);
    watcher_->end(pid);
    return draft;
  }
  // Time passes, and what it brings is done.
  void pass(Duration time) {
    for (auto left = time; left.count() > 0; left -= std::min<Duration>(left, std::chrono::milliseconds(500))) {
      clock_.advance(std::min<Duration>(left, std::chrono::milliseconds(500)));
      drafts_->run_due();
      drafts_->wait_idle();
    }
  }
  Result<PublishResult> commit(const DraftPtr& draft) {
    auto out = ask(draft);
    drafts_->wait_idle();
    EXPECT_TRUE(out->has_value());
    return out->value_or(Status(Code::kBusy, "no answer"));
  }
  std::shared_ptr<std::optional<Result<PublishResult>>> ask(const DraftPtr& draft) {
    auto out = std::make_shared<std::optional<Result<PublishResult>>>();
    drafts_->commit(draft, [out](auto result) { *out = std::move(result); });
    return out;
  }
  bool was_changed(const DraftPtr& draft) {
    MutexLock lock(mutex_);
    return changed_ids_.erase(draft->id()) > 0;
  }

  FakeClock clock_;
  FolderCache folder_;
  FakePublisher publisher_;
  std::set<std::string> live_;
  std::function<void(const std::string& root)> on_take_over_;
  Mutex mutex_;
  std::set<std::string> changed_ids_ GUARDED_BY(mutex_);
  FakeWatcher* watcher_ = nullptr;
  std::unique_ptr<DraftManager> drafts_;
  WriterHandle handle_ = 0;
};

}  // namespace weightfs
