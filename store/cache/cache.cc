#include "store/cache/cache.h"

#include <pwd.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "store/cache/draft_store.h"
#include "store/cache/flat_file.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kBlobsWithoutQuota = 4096 * kMiB, kStatesWithoutQuota = 1024 * kMiB;

// A sixteenth of the quota each, at least 64 MiB; of a tiny quota no more than an eighth.
Index::Caps caps_for(std::uint64_t quota) {
  if (quota == 0) return {kBlobsWithoutQuota, kStatesWithoutQuota};
  auto cap = std::max(quota / 16, std::min(64 * kMiB, quota / 8));
  return {cap, std::min(cap, kStatesWithoutQuota)};
}

Result<std::string> component_of(const std::string& model) {
  auto name = WFS_TRY(ModelName::parse(model));
  return name.key_component();
}

Result<FileKey> key_of(const FileId& id) {
  if (id.number > kMaxNumber) return Status(Code::kInvalid, "version number " + std::to_string(id.number));
  auto component = WFS_TRY(component_of(id.model));
  return FileKey{std::move(component), id.number, id.file};
}

class CacheImpl final : public Cache {
 public:
  CacheImpl(std::shared_ptr<CacheDir> directory, std::uint64_t quota, OpenedIndex opened)
      : dir_(std::move(directory)), table_(std::make_shared<FileTable>(dir_, quota)), drafts_(dir_, table_) {
    auto left_over = posix::remove_tree(copies());
    if (!left_over.is_ok()) spdlog::warn("cache {}: left over: {}", dir_->path(), left_over.message());
    table_->load(opened.contents, dir_->scan_flat());
    drafts_.recover(opened.index, opened.contents.drafts);
    metadata_ = opened.index.metadata_bytes();
    table_->force(Charge::kMetadata, metadata_);
    IndexThread::Hooks hooks{[this](Index& index) { return tick(index); },
                             [this](Index& index) { return refill(index); }};
    index_ = std::make_unique<IndexThread>(std::move(opened.index), opened.on_disk, dir_, caps_for(quota), hooks);
    drafts_.set_index(index_.get());
    table_->make_room(0);  // the quota may be a smaller one now
  }
  ~CacheImpl() override {
    // The last tick uses the members below it: it ends first.
    index_.reset();
    dir_->unlock();  // files still open keep dir_, not the directory
  }

  std::optional<Bytes> get_blob(const Sha256& digest) override {
    auto bytes = get(Index::Kind::kBlob, digest.bytes);
    if (!bytes || Sha256::of(*bytes) == digest) return bytes;
    spdlog::warn("cache {}: metadata {} is damaged: dropped", dir(), digest.hex());
    drop(Index::Kind::kBlob, digest.bytes);
    return std::nullopt;
  }
  void put_blob(const Sha256& digest, ByteSpan bytes) override { put(Index::Kind::kBlob, digest.bytes, bytes, {}); }

  std::optional<Bytes> load_state(const std::string& key) override {
    auto bytes = get(Index::Kind::kState, as_bytes(key));
    if (!bytes) return std::nullopt;
    constexpr auto kGuard = sizeof(Xxh128::bytes);  // in front of the value
    if (bytes->size() >= kGuard) {
      auto value = ByteSpan(*bytes).subspan(kGuard);
      auto digest = Xxh128::of(value);
      if (std::equal(digest.bytes.begin(), digest.bytes.end(), bytes->begin()))
        return Bytes(value.begin(), value.end());
    }
    spdlog::warn("cache {}: state {} is damaged: dropped", dir(), percent_encode(key));
    drop(Index::Kind::kState, as_bytes(key));
    return std::nullopt;
  }
  void save_state(const std::string& key, ByteSpan bytes) override {
    put(Index::Kind::kState, as_bytes(key), Xxh128::of(bytes).bytes, bytes);
  }
  std::vector<std::string> state_keys(const std::string& prefix) override {
    std::vector<std::string> out;
    auto status = index_->run([&](Index& index) -> Status {
      out.clear();
      auto keys = WFS_TRY(index.keys(Index::Kind::kState, as_bytes(prefix)));
      for (const auto& key : keys) out.emplace_back(as_text(key));
      return {};
    });
    if (!status.is_ok()) spdlog::debug("cache {}: states: {}", dir(), status.message());
    return out;
  }

  Result<FlatFilePtr> open_file(const FileId& id, std::span<const std::uint32_t> sizes) override {
    auto key = WFS_TRY(key_of(id));
    return open_cached_file(table_, id, key, sizes);
  }
  bool has_some(const FileId& id) const override {
    auto key = key_of(id);
    return key.is_ok() && table_->has_some(*key);
  }
  std::vector<std::uint64_t> cached_versions(const std::string& model) const override {
    auto component = component_of(model);
    return component.is_ok() ? table_->versions(*component) : std::vector<std::uint64_t>();
  }
  std::uint64_t cached_bytes(const std::string& model, std::uint64_t number) const override {
    auto component = component_of(model);
    return component.is_ok() ? table_->cached_bytes(*component, number) : 0;
  }
  std::uint64_t cached_bytes(const FileId& id) const override {
    auto key = key_of(id);
    return key.is_ok() ? table_->cached_bytes(*key) : 0;
  }
  void touch(const FileId& id) override {
    if (auto key = key_of(id); key.is_ok()) table_->touch(*key);
  }
  void set_newest(const std::string& model, std::uint64_t number) override {
    if (auto component = component_of(model); component.is_ok()) table_->set_newest(*component, number);
  }
  void drop_version(const std::string& model, std::uint64_t number) override {
    auto key = key_of({model, number, 0});
    if (!key.is_ok()) return;
    bool was_pinned = table_->pinned(key->model, number);
    table_->drop_version(key->model, number);
    if (!was_pinned) return;
    index_->post([key = *key](Index& index) { return index.set_pin(key.model, key.number, false); }, 0);
  }

  Status set_pinned(const std::string& model, std::uint64_t number, bool pin) override {
    auto key = WFS_TRY(key_of({model, number, 0}));
    auto record = [&] { return index_->run([&](Index& index) { return index.set_pin(key.model, number, pin); }); };
    auto status = record();
    if (status.code() == Code::kNoSpace && table_->evict(kMiB) > 0) status = record();
    WFS_TRY(std::move(status).with("pin"));
    if (!index_->on_disk()) return {Code::kIo, "pin: the cache's index cannot be written to disk"};
    table_->set_pinned(key.model, number, pin);
    return {};
  }
  bool pinned(const std::string& model, std::uint64_t number) const override {
    auto component = component_of(model);
    return component.is_ok() && table_->pinned(*component, number);
  }

  Result<DraftRecord> create_draft(const std::string& model, const std::string& name) override {
    return drafts_.create(model, name);
  }
  Status update_draft(const DraftRecord& record) override { return drafts_.update(record); }
  std::vector<DraftRecord> drafts() override { return drafts_.list(); }
  Status delete_draft(const std::string& id) override { return drafts_.remove(id); }
  std::string draft_dir(const std::string& id) const override { return drafts_.folder(id) + "/files"; }
  std::string draft_spool_dir(const std::string& id) const override { return drafts_.folder(id) + "/spool"; }

  Status adopt(const std::string& draft_file, const FileId& id, std::span<const std::uint32_t> sizes) override {
    auto key = WFS_TRY(key_of(id));
    auto place = WFS_TRY(drafts_.locate(draft_file));
    return adopt_cached_file(table_, key, place.folder.get(), place.name, sizes);
  }

  Status adopt_copy(const std::string& file, const FileId& id, std::span<const std::uint32_t> sizes) override {
    auto key = WFS_TRY(key_of(id));
    std::uint64_t size = 0;
    for (auto one : sizes) size += one;
    // It counts as a draft's until it is in place.
    WFS_TRY(charge_draft(static_cast<std::int64_t>(size)));
    auto folder = copies(), name = "copy-" + random_id();
    auto status = posix::make_dirs(folder);
    if (status.is_ok()) status = posix::copy_file(file, folder + "/" + name);
    if (status.is_ok()) {
      auto at = posix::open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      status = at.is_ok() ? adopt_cached_file(table_, key, at->get(), name, sizes) : at.status();
    }
    if (status.is_ok()) return status;
    posix::unlink_if_there(folder + "/" + name).ignore("the first error is the one to report");
    charge_draft(-static_cast<std::int64_t>(size)).ignore("giving back does not fail");
    return status;
  }

  Status charge_draft(std::int64_t bytes) override {
    if (bytes <= 0) {
      table_->release(Charge::kDraft, std::uint64_t{0} - static_cast<std::uint64_t>(bytes));
      return {};
    }
    auto wanted = static_cast<std::uint64_t>(bytes);
    WFS_TRY(table_->reserve(Charge::kDraft, wanted));
    if (fits_disk(wanted)) return {};
    table_->release(Charge::kDraft, wanted);
    return {Code::kNoSpace, "the disk of cache " + dir() + " is full"};
  }

  void make_room(std::uint64_t free_bytes) override {
    table_->make_room(free_bytes);
    fits_disk(free_bytes);
  }
  CacheUsage usage() const override {
    auto usage = table_->usage();
    if (auto space = posix::disk_space(dir_->fd()); space.is_ok()) {
      usage.disk_total = space->total;
      usage.disk_free = space->free;
    }
    return usage;
  }
  const std::string& dir() const override { return dir_->path(); }

 private:
  std::string copies() const { return dir_->file("spool"); }

  // Evicts when the disk has less than `bytes` free; true when it has so much then, or does not say.
  bool fits_disk(std::uint64_t bytes) {
    for (int tries = 0;; tries++) {
      auto space = posix::disk_space(dir_->fd());
      if (!space.is_ok() || space->free >= bytes) return true;
      if (tries == 2 || table_->evict(bytes - space->free) == 0) return false;
    }
  }

  std::optional<Bytes> get(Index::Kind kind, ByteSpan key) {
    Bytes out;
    auto status = index_->run([&](Index& index) -> Status {
      out = WFS_TRY(index.get(kind, key));
      return {};
    });
    if (status.is_ok()) return out;
    if (status.code() != Code::kNotFound) spdlog::debug("cache {}: metadata: {}", dir(), status.to_string());
    return std::nullopt;
  }

  // Charges, then lets the index thread write `head` + `tail`; what it did not use is given back.
  void put(Index::Kind kind, ByteSpan key, ByteSpan head, ByteSpan tail) {
    auto value = std::make_shared<Bytes>(head.begin(), head.end());
    value->insert(value->end(), tail.begin(), tail.end());
    auto size = value->size();
    if (size > Index::kMaxMetadataBytes || !table_->reserve(Charge::kMetadata, size).is_ok()) {
      spdlog::debug("cache {}: no room for {} bytes of metadata", dir(), size);
      return;
    }
    auto charged = std::make_shared<std::uint64_t>(size);
    auto job = [this, kind, key = Bytes(key.begin(), key.end()), value, charged](Index& index) {
      auto status = index.put(kind, key, *value);
      auto unused = std::exchange(*charged, 0);
      table_->release(Charge::kMetadata, unused);
      settle_metadata(index);
      return status.code() == Code::kNoSpace ? Status() : status;
    };
    index_->post(std::move(job), size + 256);
  }

  void drop(Index::Kind kind, ByteSpan key) {
    index_->post(
        [this, kind, key = Bytes(key.begin(), key.end())](Index& index) {
          auto status = index.remove(kind, key);
          settle_metadata(index);
          return status;
        },
        0);
  }

  // On the index thread: the charge follows what the index holds.
  void settle_metadata(Index& index) {
    auto now = index.metadata_bytes();
    if (now > metadata_) table_->force(Charge::kMetadata, now - metadata_);
    if (now < metadata_) table_->release(Charge::kMetadata, metadata_ - now);
    metadata_ = now;
  }

  Status tick(Index& index) {
    table_->check_writeback();
    WFS_TRY(index.flush_uses());
    auto changes = table_->take_changes();
    return index.store_files(changes.changed, changes.gone);
  }

  Status refill(Index& index) {
    settle_metadata(index);
    table_->all_changed();
    for (const auto& [model, number] : table_->pins()) WFS_TRY(index.set_pin(model, number, true));
    WFS_TRY(drafts_.refill(index));
    return tick(index);
  }

  const std::shared_ptr<CacheDir> dir_;
  const std::shared_ptr<FileTable> table_;
  DraftStore drafts_;
  std::uint64_t metadata_ = 0;  // the index thread's, once that runs
  std::unique_ptr<IndexThread> index_;
};

std::string cache_root() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (auto root = variable("WEIGHTFS_CACHE"); !root.empty()) return root;
  if (auto root = variable("XDG_CACHE_HOME"); !root.empty()) return root + "/weightfs";
  if (::geteuid() == 0) return "/var/cache/weightfs";
  if (auto home = variable("HOME"); !home.empty()) return home + "/.cache/weightfs";
  return "/var/tmp/weightfs-" + std::to_string(::geteuid());
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::open(const CacheOptions& options) {
  auto locked = WFS_TRY(CacheDir::open(options.dir));
  auto dir = std::make_shared<CacheDir>(std::move(locked));
  auto opened = WFS_TRY(open_index(*dir, caps_for(options.quota)).with("cache " + dir->path()));
  if (opened.contents.skipped > 0) {
    spdlog::warn("cache {}: {} rows of the index make no sense: ignored", dir->path(), opened.contents.skipped);
  }
  return std::unique_ptr<Cache>(std::make_unique<CacheImpl>(dir, options.quota, std::move(opened)));
}

std::string default_cache_dir(const std::string& bucket_url) {
  auto url = bucket_url;
  if (url.starts_with("file://")) url.erase(0, 7);
  if (url.find("://") == url.npos) url = posix::absolute(url);  // one cache for all ways to write a directory
  while (url.size() > 1 && url.back() == '/') url.pop_back();
  std::string readable;
  for (char c : url) {
    bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (plain) readable.push_back(c);
    if (!plain && !readable.empty() && readable.back() != '-') readable.push_back('-');
  }
  while (!readable.empty() && (readable.front() == '.' || readable.front() == '-')) readable.erase(0, 1);
  if (readable.size() > 60) readable.erase(0, readable.size() - 60);  // the end tells more
  while (!readable.empty() && (readable.front() == '.' || readable.front() == '-')) readable.erase(0, 1);
  return posix::absolute(cache_root()) + "/" + readable + "-" + Sha256::of(as_bytes(url)).hex().substr(0, 16);
}

}  // namespace weightfs
