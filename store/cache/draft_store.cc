#include "store/cache/draft_store.h"

#include <spdlog/spdlog.h>

#include "store/cache/draft_record.h"

namespace weightfs {
namespace {

constexpr char kSidecar[] = "draft.json";
constexpr char kNew[] = ".new";
constexpr char kDeleted[] = ".deleted";
constexpr std::uint64_t kRoomForRecords = 4 << 20;

// A draft whose record is gone: under a hidden name, so that nothing publishes it by itself.
DraftRecord lost_record(const std::string& id) {
  DraftRecord record;
  record.id = id;
  record.model = "recovered";
  record.name = ".recovered-" + id.substr(0, 8);
  record.reason = "its record was lost; the files are all there";
  return record;
}

Result<Bytes> read_sidecar(int folder) {
  auto file = WFS_TRY(posix::open_at(folder, kSidecar, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  auto st = WFS_TRY(posix::fstat(file.get()));
  if (!S_ISREG(st.st_mode) || static_cast<std::uint64_t>(st.st_size) > kMaxDraftRecordBytes) {
    return Status(Code::kCorrupt, "not a record");
  }
  Bytes bytes(static_cast<std::size_t>(st.st_size));
  WFS_TRY(posix::pread_exact(file.get(), 0, bytes));
  return bytes;
}

// Sidecars that a crash kept from being renamed.
void remove_unfinished(int folder) {
  auto names = posix::list_dir_at(folder);
  if (!names.is_ok()) return;
  for (const auto& name : *names) {
    if (!name.starts_with(std::string(kSidecar) + ".tmp")) continue;
    posix::unlink_at(folder, name).ignore("a small file too many");
  }
}

Result<DraftRecord> decode_for(const std::string& id, Result<Bytes> bytes) {
  auto encoded = WFS_TRY(std::move(bytes));
  auto record = WFS_TRY(decode_draft_record(encoded));
  if (record.id != id) return Status(Code::kCorrupt, "record of another draft");
  return record;
}

}  // namespace

void DraftStore::recover(Index& index, const std::map<std::string, Bytes>& recorded) {
  auto drafts = posix::make_dir_at(dir_->fd(), "drafts");
  auto names = drafts.is_ok() ? posix::list_dir_at(drafts->get()) : std::move(drafts).status();
  if (!names.is_ok()) {
    spdlog::error("cache {}: drafts cannot be read: {}", dir_->path(), names.status().message());
    return;  // records in the index stay for the next start
  }
  posix::fsync(dir_->fd()).ignore("drafts/ was there before, or a create will fail on this disk");
  std::map<std::string, DraftRecord> found;
  std::set<std::string> there;
  for (const auto& name : *names) {
    auto stem = name.substr(0, name.find('.'));
    auto rest = name.substr(stem.size());
    if (is_draft_id(stem) && (rest == kNew || rest == kDeleted)) {
      auto status = posix::remove_tree(folder(name));
      if (!status.is_ok()) spdlog::warn("cache {}: left over: {}", dir_->path(), status.message());
      continue;
    }
    auto st = posix::lstat_at(drafts->get(), name);
    if (!is_draft_id(name) || !st.is_ok() || !S_ISDIR(st->st_mode)) {
      spdlog::warn("cache {}: drafts/{} is not ours: left alone", dir_->path(), percent_encode(name));
      continue;
    }
    there.insert(name);
    if (auto record = recover_one(name, index, recorded)) found[name] = std::move(*record);
    table_->force(Charge::kDraft, bytes_of(name));
  }
  for (const auto& [id, bytes] : recorded) {
    if (there.contains(id)) continue;
    index.remove_draft(id).ignore("tried again at the next open");
  }
  MutexLock lock(mutex_);
  drafts_ = std::move(found);
}

std::optional<DraftRecord> DraftStore::recover_one(const std::string& id, Index& index,
                                                   const std::map<std::string, Bytes>& recorded) {
  auto folder_fd = posix::open_dir_at(dir_->fd(), "drafts/" + id);
  if (!folder_fd.is_ok()) {
    spdlog::error("cache {}: draft {}: {}", dir_->path(), id, folder_fd.status().message());
    return std::nullopt;
  }
  for (const char* part : {"files", "spool"}) {
    auto made = posix::make_dir_at(folder_fd->get(), part);
    if (!made.is_ok()) spdlog::warn("cache {}: draft {}: {}", dir_->path(), id, made.status().message());
  }
  remove_unfinished(folder_fd->get());
  auto in_index = recorded.find(id);
  auto record = decode_for(id, read_sidecar(folder_fd->get()));
  bool rewrite = !record.is_ok();
  if (record.code() == Code::kUnsupported || record.code() == Code::kIo) {
    spdlog::error("cache {}: draft {} is left alone: {}", dir_->path(), id, record.status().message());
    return std::nullopt;
  }
  if (!record.is_ok() && in_index != recorded.end()) record = decode_for(id, in_index->second);
  if (!record.is_ok()) {
    spdlog::error("cache {}: draft {}: its record is lost ({}); it is kept as {}/{}", dir_->path(), id,
                  record.status().message(), lost_record(id).model, lost_record(id).name);
    record = lost_record(id);
  }
  if (rewrite) {
    auto status = write_sidecar(*record, folder(id));
    if (!status.is_ok()) spdlog::warn("cache {}: draft {}: {}", dir_->path(), id, status.message());
  }
  auto encoded = encode_draft_record(*record);
  if (in_index == recorded.end() || in_index->second != encoded) {
    index.store_draft(id, encoded).ignore("the sidecar has it");
  }
  return std::move(record).value();
}

Status DraftStore::write_sidecar(const DraftRecord& record, const std::string& in_folder) {
  auto encoded = encode_draft_record(record);
  if (encoded.size() > kMaxDraftRecordBytes) return {Code::kInvalid, "draft " + record.id + ": record too long"};
  auto path = in_folder + "/" + kSidecar;
  auto status = posix::write_file_durably(path, encoded);
  if (status.code() == Code::kNoSpace && table_->evict(kRoomForRecords) > 0) {
    status = posix::write_file_durably(path, encoded);
  }
  return status;
}

Status DraftStore::make_folder(const DraftRecord& record) {
  auto temporary = folder(record.id + kNew);
  auto attempt = [&]() -> Status {
    auto drafts = WFS_TRY(posix::make_dir_at(dir_->fd(), "drafts"));
    auto made = WFS_TRY(posix::make_dir_at(drafts.get(), record.id + kNew));
    WFS_TRY(posix::make_dir_at(made.get(), "files"));
    WFS_TRY(posix::make_dir_at(made.get(), "spool"));
    WFS_TRY(write_sidecar(record, temporary));
    WFS_TRY(posix::rename_at(drafts.get(), record.id + kNew, record.id));
    return posix::fsync(drafts.get());
  };
  auto status = attempt();
  if (status.code() == Code::kNoSpace && table_->evict(kRoomForRecords) > 0) {
    posix::remove_tree(temporary).ignore("made again");
    status = attempt();
  }
  if (!status.is_ok()) posix::remove_tree(temporary).ignore("goes at the next open");
  return status;
}

Status DraftStore::store(Index& index, const DraftRecord& record) {
  {
    MutexLock lock(mutex_);
    drafts_[record.id] = record;
  }
  auto status = index.store_draft(record.id, encode_draft_record(record));
  if (status.code() == Code::kCorrupt) return status;  // again, on a new index
  if (!status.is_ok()) spdlog::debug("draft {}: the sidecar alone has its record: {}", record.id, status.message());
  return {};
}

Result<DraftRecord> DraftStore::create(const std::string& model, const std::string& name) {
  DraftRecord record;
  record.id = random_id();
  record.model = model;
  record.name = name;
  bool made = false;
  auto status = index_->run([&](Index& index) -> Status {
    if (!made) WFS_TRY(make_folder(record).with("draft of " + percent_encode(model)));
    made = true;
    return store(index, record);
  });
  if (!status.is_ok()) return status;
  return record;
}

Status DraftStore::update(const DraftRecord& record) {
  return index_->run([&](Index& index) -> Status {
    {
      MutexLock lock(mutex_);
      auto found = drafts_.find(record.id);
      if (found == drafts_.end()) return {Code::kNotFound, "no draft " + percent_encode(record.id)};
    }
    WFS_TRY(write_sidecar(record, folder(record.id)));
    return store(index, record);
  });
}

Status DraftStore::remove(const std::string& id) {
  {
    MutexLock lock(mutex_);
    if (!drafts_.contains(id)) return {Code::kNotFound, "no draft " + percent_encode(id)};
  }
  auto bytes = bytes_of(id);
  bool renamed = false;
  auto forgotten = index_->run([&](Index& index) -> Status {
    if (!renamed) {
      auto drafts = WFS_TRY(posix::open_dir_at(dir_->fd(), "drafts"));
      WFS_TRY(posix::rename_at(drafts.get(), id, id + kDeleted));
      renamed = true;
      MutexLock lock(mutex_);
      drafts_.erase(id);
    }
    WFS_TRY(posix::fsync_dir(dir_->file("drafts")));
    auto status = index.remove_draft(id);
    return status.code() == Code::kCorrupt ? status : Status();  // a record without a folder goes at the next open
  });
  WFS_TRY(std::move(forgotten));
  table_->release(Charge::kDraft, bytes);
  auto status = posix::remove_tree(folder(id + kDeleted));
  if (!status.is_ok()) spdlog::warn("cache {}: goes at the next start: {}", dir_->path(), status.message());
  return {};
}

std::vector<DraftRecord> DraftStore::list() const {
  MutexLock lock(mutex_);
  std::vector<DraftRecord> out;
  for (const auto& [id, record] : drafts_) out.push_back(record);
  return out;
}

Result<DraftStore::Place> DraftStore::locate(const std::string& path) const {
  auto bad = [&] { return Status(Code::kInvalid, percent_encode(path) + " is not a draft's file"); };
  auto prefix = dir_->file("drafts/");
  if (!path.starts_with(prefix)) return bad();
  auto rest = path.substr(prefix.size());
  auto slash = rest.find('/');
  if (slash == rest.npos || !is_draft_id(rest.substr(0, slash)) || rest.compare(slash, 7, "/files/") != 0) return bad();
  auto inside = FilePath::parse(rest.substr(slash + 7));
  if (!inside.is_ok()) return bad();
  auto at = WFS_TRY(posix::open_dir_at(dir_->fd(), "drafts/" + rest.substr(0, slash)));
  at = WFS_TRY(posix::open_dir_at(at.get(), "files"));
  auto left = std::string(inside->str());
  for (auto cut = left.find('/'); cut != left.npos; cut = left.find('/')) {
    at = WFS_TRY(posix::open_dir_at(at.get(), left.substr(0, cut)));
    left.erase(0, cut + 1);
  }
  return Place{std::move(at), std::move(left)};
}

Status DraftStore::refill(Index& index) {
  for (const auto& record : list()) WFS_TRY(index.store_draft(record.id, encode_draft_record(record)));
  return {};
}

std::uint64_t DraftStore::bytes_of(const std::string& id) const {
  auto draft = posix::open_dir_at(dir_->fd(), "drafts/" + id);
  if (!draft.is_ok()) return 0;
  return checked_add(posix::tree_bytes(draft->get(), "files"), posix::tree_bytes(draft->get(), "spool"))
      .value_or(~std::uint64_t{0});
}

}  // namespace weightfs
