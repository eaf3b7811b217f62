#include "tests/support/fake_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "store/base/posix.h"
#include "store/log/state_builder.h"
#include "tests/support/fake_drafts.h"
#include "tests/support/memory_bucket.h"

namespace weightfs {

struct FakeStore::Content {
  VersionPtr version;
  std::vector<std::string> bytes;  // by file
};

struct FakeStore::Read {
  std::string bytes;
  bool page_fault = false;
  std::function<void(Result<Bytes>)> done;
  bool finished = false;  // guarded by the store's mutex
};

namespace {

// A cache that holds nothing: the directory and the figures are all that the filesystem asks for.
class FakeCache final : public Cache {
 public:
  explicit FakeCache(std::string dir) : dir_(std::move(dir)) {}
  std::optional<Bytes> get_blob(const Sha256&) override { return std::nullopt; }
  void put_blob(const Sha256&, ByteSpan) override {}
  std::optional<Bytes> load_state(const std::string&) override { return std::nullopt; }
  void save_state(const std::string&, ByteSpan) override {}
  std::vector<std::string> state_keys(const std::string&) override { return {}; }
  Result<FlatFilePtr> open_file(const FileId&, std::span<const std::uint32_t>) override { return none(); }
  bool has_some(const FileId&) const override { return false; }
  std::vector<std::uint64_t> cached_versions(const std::string&) const override { return {}; }
  std::uint64_t cached_bytes(const std::string&, std::uint64_t) const override { return 0; }
  std::uint64_t cached_bytes(const FileId&) const override { return 0; }
  void touch(const FileId&) override {}
  void set_newest(const std::string&, std::uint64_t) override {}
  void drop_version(const std::string&, std::uint64_t) override {}
  Status set_pinned(const std::string&, std::uint64_t, bool) override { return {}; }
  bool pinned(const std::string&, std::uint64_t) const override { return false; }
  Result<DraftRecord> create_draft(const std::string&, const std::string&) override { return none(); }
  Status update_draft(const DraftRecord&) override { return none(); }
  std::vector<DraftRecord> drafts() override { return {}; }
  Status delete_draft(const std::string&) override { return none(); }
  std::string draft_dir(const std::string& id) const override { return dir_ + "/" + id; }
  std::string draft_spool_dir(const std::string& id) const override { return dir_ + "/" + id; }
  Status adopt_copy(const std::string&, const FileId&, std::span<const std::uint32_t>) override {
    return Status(Code::kUnsupported, "a fake cache takes no copies");
  }
  Status adopt(const std::string&, const FileId&, std::span<const std::uint32_t>) override { return none(); }
  Status charge_draft(std::int64_t) override { return {}; }
  void make_room(std::uint64_t) override {}
  CacheUsage usage() const override {
    return {.quota = 1 << 30,
            .flat_bytes = 64 << 20,
            .draft_bytes = 16 << 20,
            .disk_total = std::uint64_t{8} << 30,
            .disk_free = std::uint64_t{4} << 30};
  }
  const std::string& dir() const override { return dir_; }

 private:
  static Status none() { return {Code::kUnsupported, "a fake"}; }
  const std::string dir_;
};

}  // namespace

class FakeOpenFile final : public OpenFile {
 public:
  FakeOpenFile(FakeStore& store, std::shared_ptr<const FakeStore::Content> content, std::uint32_t file)
      : store_(store), content_(std::move(content)), file_(file) {}
  const FileEntry& entry() const override { return content_->version->manifest().files[file_]; }
  std::optional<Status> try_read(ByteRange range, MutableByteSpan out) override {
    if (!store_.warm_) return std::nullopt;
    auto piece = content_->bytes[file_].substr(range.offset, range.length);
    std::copy_n(as_bytes(piece).begin(), piece.size(), out.begin());
    return Status();
  }
  Ticket read(ByteRange range, bool is_page_fault, std::function<void(Result<Bytes>)> done) override {
    auto read = std::make_shared<FakeStore::Read>();
    read->bytes = content_->bytes[file_].substr(range.offset, range.length);
    read->page_fault = is_page_fault;
    read->done = std::move(done);
    if (is_page_fault) store_.faults_read_++;
    store_.start(read);
    return Ticket([&store = store_, read] { store.finish(read, {Code::kInterrupted, "cancelled"}); });
  }
  void prefetch(ByteRange) override {}
  bool complete() const override { return store_.warm_; }
  std::uint64_t cached_bytes() const override { return store_.warm_ ? entry().size : 0; }
  int fd() const override { return -1; }

 private:
  FakeStore& store_;
  const std::shared_ptr<const FakeStore::Content> content_;
  const std::uint32_t file_;
};

FakeStore::FakeStore()
    : bucket_(std::make_unique<MemoryBucket>()),
      cache_(std::make_unique<FakeCache>(dir_.path())),
      drafts_(std::make_unique<FakeDrafts>(*this, dir_ / "drafts")),
      pool_(std::make_unique<WorkerPool>("fake-store", 4)) {
  options_.poll = std::chrono::milliseconds(200);
}

FakeStore::~FakeStore() {
  hold_reads(false);
  hold_commits(false);
  hold_refresh(false);
  set_down(false);
  pool_->stop();
}

Drafts& FakeStore::drafts() { return *drafts_; }
Bucket& FakeStore::bucket() { return *bucket_; }
Cache& FakeStore::cache() { return *cache_; }

std::uint64_t FakeStore::publish_files(const std::string& model_name, const std::string& version_name,
                                       std::vector<FakeFile> files) {
  auto model = *ModelName::parse(model_name);
  auto version = *VersionName::parse(version_name);
  std::map<std::string, FakeFile> by_path;
  for (auto& file : files) {
    for (auto slash = file.path.find('/'); slash != file.path.npos; slash = file.path.find('/', slash + 1)) {
      auto parent = file.path.substr(0, slash);
      by_path.emplace(parent, FakeFile{parent, "", FileKind::kDirectory, 0755, ""});
    }
    by_path.insert_or_assign(file.path, std::move(file));
  }
  Manifest manifest{model, version, {}, {}};
  auto content = std::make_shared<Content>();
  std::uint64_t total = 0;
  for (auto& [path, file] : by_path) {
    FileEntry entry{.path = *FilePath::parse(path)};
    entry.kind = file.kind;
    entry.mode = file.mode;
    entry.mtime_ns = 1'764'595'745'123'456'789;
    entry.size = file.kind == FileKind::kFile ? file.bytes.size() : 0;
    entry.target = file.target;
    total += entry.size;
    manifest.files.push_back(std::move(entry));
    content->bytes.push_back(std::move(file.bytes));
  }
  ModelStatePtr before, after;
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    auto found = models_.find(model);
    if (found != models_.end()) before = found->second;
    number = (before ? before->head : 0) + 1;
    auto builder = before ? StateBuilder(*before) : StateBuilder(model);
    LogEntry entry{.number = number,
                   .id = random_id(),
                   .previous = before ? before->head_digest : std::nullopt,
                   .time = std::chrono::system_clock::now(),
                   .model = model,
                   .body = RemoveEntry{0, version}};
    PublishEntry publish{.version = version};
    publish.edge.to = number;
    publish.edge.pack = random_id();
    publish.plain_bytes = total;
    if (before && before->latest() != nullptr) {
      publish.parent = NodeRef{model, before->latest()->number};
      publish.parent_version = before->latest()->name;
      publish.edge.from = publish.parent;
    }
    entry.body = publish;
    auto applied = builder.apply(entry, Sha256::of(as_bytes(entry.id)));
    WFS_CHECK(applied.is_ok());
    after = std::move(builder).build();
    content->version = std::make_shared<Version>(NodeRef{model, number}, *after->version(number), std::move(manifest));
    models_.insert_or_assign(model, after);
    contents_.insert_or_assign(NodeRef{model, number}, content);
  }
  if (auto* listener = listener_.load()) listener->model_changed(model, before, after);
  return number;
}

void FakeStore::remove_version(const std::string& model_name, const std::string& version_name) {
  auto model = *ModelName::parse(model_name);
  auto version = *VersionName::parse(version_name);
  ModelStatePtr before, after;
  {
    MutexLock lock(mutex_);
    before = models_.at(model);
    StateBuilder builder(*before);
    LogEntry entry{.number = before->head + 1,
                   .id = random_id(),
                   .previous = before->head_digest,
                   .time = std::chrono::system_clock::now(),
                   .model = model,
                   .body = RemoveEntry{before->live(version)->number, version}};
    auto applied = builder.apply(entry, Sha256::of(as_bytes(entry.id)));
    WFS_CHECK(applied.is_ok());
    after = std::move(builder).build();
    models_.insert_or_assign(model, after);
  }
  if (auto* listener = listener_.load()) listener->model_changed(model, before, after);
}

// --- what a test does

void FakeStore::hold_reads(bool hold) {
  {
    MutexLock lock(mutex_);
    hold_reads_ = hold;
  }
  pump();
}
std::size_t FakeStore::held_reads() const {
  MutexLock lock(mutex_);
  return reads_.size();
}
void FakeStore::set_down(bool down) {
  {
    MutexLock lock(mutex_);
    down_ = down;
  }
  changed_.notify_all();
  pump();
}
void FakeStore::hold_refresh(bool hold) {
  {
    MutexLock lock(mutex_);
    hold_refresh_ = hold;
  }
  changed_.notify_all();
}
void FakeStore::hold_commits(bool hold) {
  {
    MutexLock lock(mutex_);
    hold_commits_ = hold;
  }
  changed_.notify_all();
}
void FakeStore::hide_manifests() {
  MutexLock lock(mutex_);
  for (const auto& [node, content] : contents_) hidden_.insert(node);
}
void FakeStore::set_quota(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  quota_ = bytes;
}
std::int64_t FakeStore::charged() const {
  MutexLock lock(mutex_);
  return charged_;
}
std::vector<std::string> FakeStore::told() const {
  MutexLock lock(mutex_);
  return told_;
}
void FakeStore::tell(std::string what) {
  MutexLock lock(mutex_);
  told_.push_back(std::move(what));
}
Status FakeStore::charge(std::int64_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > 0 && static_cast<std::uint64_t>(charged_ + bytes) > quota_) return {Code::kNoSpace, "quota is full"};
  charged_ += bytes;
  return {};
}

// --- reads

void FakeStore::start(std::shared_ptr<Read> read) {
  {
    MutexLock lock(mutex_);
    reads_.push_back(std::move(read));
  }
  pump();
}

// Answers what can be answered now.
void FakeStore::pump() {
  std::vector<std::shared_ptr<Read>> ready;
  bool down = false;
  {
    MutexLock lock(mutex_);
    if (hold_reads_) return;
    down = down_;
    auto waits = [&](const std::shared_ptr<Read>& read) { return down && read->page_fault; };
    std::copy_if(reads_.begin(), reads_.end(), std::back_inserter(ready), [&](const auto& r) { return !waits(r); });
    std::erase_if(reads_, [&](const auto& r) { return !waits(r); });
  }
  for (auto& read : ready) {
    auto error = down ? Status(Code::kUnavailable, "the bucket is out of reach") : Status();
    pool_->post([this, read, error] { finish(read, error); });
  }
}

void FakeStore::finish(const std::shared_ptr<Read>& read, Status error) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(read->finished, true)) return;
    std::erase(reads_, read);
  }
  auto done = std::move(read->done);
  if (!error.is_ok()) return done(std::move(error));
  done(to_bytes(read->bytes));
}

// --- Store

std::vector<ModelName> FakeStore::models() const {
  MutexLock lock(mutex_);
  std::vector<ModelName> names;
  for (const auto& [name, state] : models_) names.push_back(name);
  return names;
}
ModelStatePtr FakeStore::model(const ModelName& name) const {
  MutexLock lock(mutex_);
  auto found = models_.find(name);
  return found == models_.end() ? nullptr : found->second;
}
VersionPtr FakeStore::opened(const NodeRef& node) const {
  MutexLock lock(mutex_);
  auto found = contents_.find(node);
  return found == contents_.end() || hidden_.contains(node) ? nullptr : found->second->version;
}
std::uint64_t FakeStore::cached_bytes(const NodeRef& node, std::uint32_t file) const {
  MutexLock lock(mutex_);
  auto found = contents_.find(node);
  return warm_ && found != contents_.end() ? found->second->bytes[file].size() : 0;
}
Result<std::vector<ModelName>> FakeStore::refresh_models(const CallOptions& /*options*/) { return models(); }

Result<ModelStatePtr> FakeStore::refresh_model(const ModelName& name, const CallOptions& options) {
  refreshes_++;
  MutexLock lock(mutex_);
  while (hold_refresh_) {
    if (options.cancel && options.cancel->cancelled()) return Status(Code::kInterrupted, "cancelled");
    changed_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  }
  if (down_) return Status(Code::kUnavailable, "the bucket is out of reach");
  auto found = models_.find(name);
  if (found == models_.end()) return Status(Code::kNotFound, "no such model");
  return found->second;
}

Result<VersionPtr> FakeStore::open_version(const NodeRef& node, const CallOptions& /*options*/) {
  MutexLock lock(mutex_);
  if (down_) return Status(Code::kUnavailable, "the bucket is out of reach");
  auto found = contents_.find(node);
  if (found == contents_.end()) return Status(Code::kNotFound, "no such version");
  hidden_.erase(node);
  return found->second->version;
}

Result<OpenFilePtr> FakeStore::open_file(const VersionPtr& version, std::uint32_t file,
                                         const CallOptions& /*options*/) {
  MutexLock lock(mutex_);
  return OpenFilePtr(std::make_shared<FakeOpenFile>(*this, contents_.at(version->node()), file));
}

Result<VersionPtr> FakeStore::find_version(const ModelName& name, std::string_view version,
                                           const CallOptions& options) {
  auto state = WFS_TRY(refresh_model(name, options));
  const auto* record = state->latest();
  if (version != "latest") record = state->live(WFS_TRY(VersionName::parse(version)));
  if (record == nullptr) return Status(Code::kNotFound, "no such version");
  return open_version({name, record->number}, options);
}

Result<PublishResult> FakeStore::publish(const std::string& source_dir, const VersionRef& version,
                                         const ParentChoice& /*parent*/, const Progress& progress,
                                         const CallOptions& /*options*/) {
  std::vector<FakeFile> files;
  std::uint64_t total = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(source_dir)) {
    FakeFile file{.path = std::filesystem::relative(item.path(), source_dir).string()};
    auto st = WFS_TRY(posix::lstat(item.path()));
    file.mode = st.st_mode & 07777;
    if (S_ISDIR(st.st_mode)) {
      file.kind = FileKind::kDirectory;
    } else if (S_ISLNK(st.st_mode)) {
      file.kind = FileKind::kSymlink;
      file.target = WFS_TRY(posix::read_link(item.path()));
    } else {
      auto bytes = WFS_TRY(posix::read_file(item.path(), 1 << 30));
      file.bytes = as_text(bytes);
      total += bytes.size();
    }
    files.push_back(std::move(file));
    if (progress) progress(total, total);
  }
  auto state = model(version.model);
  if (state && state->live(version.version) != nullptr) return Status(Code::kExists, "the name is taken");
  auto number = publish_files(version.model.str(), version.version.str(), std::move(files));
  return PublishResult{.version = version, .node = {version.model, number}, .plain_bytes = total};
}

Status FakeStore::get(const VersionPtr& version, const std::string& dest_dir, const Progress& progress,
                      const CallOptions& /*options*/) {
  WFS_TRY(posix::make_dirs(dest_dir, 0755));
  if (progress) progress(version->record().plain_bytes, version->record().plain_bytes);
  return {};
}
Status FakeStore::warm(const VersionPtr& /*version*/, const std::vector<std::uint32_t>& /*files*/,
                       const Progress& progress, const CallOptions& /*options*/) {
  if (progress) progress(1, 1);
  set_warm(true);
  return {};
}
Status FakeStore::set_pinned(const NodeRef& /*node*/, bool pinned) {
  tell(pinned ? "pinned" : "unpinned");
  return {};
}

}  // namespace weightfs
