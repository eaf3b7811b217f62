#include "store/cache/flat_file.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

namespace weightfs {
namespace {

constexpr mode_t kSealed = 0400, kWritable = 0600;
constexpr std::uint64_t kRoomWhenDiskIsFull = 64 << 20;

// One more attempt after evicting something when the disk is full.
template <typename Attempt>
auto with_room(FileTable& table, std::uint64_t bytes, Attempt attempt) {
  auto outcome = attempt();
  if (outcome.code() != Code::kNoSpace || table.evict(std::max(bytes, kRoomWhenDiskIsFull)) == 0) return outcome;
  return attempt();
}

Result<std::uint64_t> sum_of(std::span<const std::uint32_t> sizes) {
  std::uint64_t sum = 0;
  for (auto size : sizes) sum += size;  // under 2^64: a span of 2^32 sizes does not fit in memory
  if (sum > kMaxNumber) return Status(Code::kInvalid, "a file of " + std::to_string(sum) + " bytes");
  return sum;
}

using State = FlatFile::Presence;

// Blocks wholly inside data are worth a look at their digest; others cannot be right.
Result<std::shared_ptr<Presence>> presence_by_extents(int fd, std::uint64_t size,
                                                      std::span<const std::uint32_t> sizes) {
  auto extents = WFS_TRY(posix::data_extents(fd, size));
  auto presence = std::make_shared<Presence>(sizes.size());
  std::uint64_t offset = 0;
  std::size_t at = 0;
  for (std::size_t block = 0; block < sizes.size(); offset += sizes[block], block++) {
    while (at < extents.size() && extents[at].end() <= offset) at++;
    bool inside = at < extents.size() && extents[at].offset <= offset && offset + sizes[block] <= extents[at].end();
    if (inside) presence->set(block, State::kUnverified);
  }
  return presence;
}

std::shared_ptr<Presence> presence_by_hint(ByteSpan hint, std::size_t blocks) {
  auto presence = std::make_shared<Presence>(blocks);
  for (std::size_t block = 0; block < blocks; block++) {
    if ((hint[block / 8] >> (block % 8) & std::byte{1}) != std::byte{0}) presence->set(block, State::kUnverified);
  }
  return presence;
}

std::uint64_t bytes_present(const Presence& presence, std::span<const std::uint32_t> sizes) {
  std::uint64_t sum = 0;
  for (std::size_t block = 0; block < sizes.size(); block++) {
    if (presence.at(block) != State::kAbsent) sum += sizes[block];
  }
  return sum;
}

Result<Fd> create(FileTable& table, const FileKey& key, std::uint64_t size) {
  auto file = WFS_TRY(with_room(table, 0, [&] { return table.dir().create_flat(key, size); }));
  return posix::reopen(file.get(), O_RDONLY);
}

// What is there, when it can be this file; else a new one in its place.
struct Opened {
  Fd fd;
  bool created = false;
};
Result<Opened> open_or_create(FileTable& table, const FileKey& key, std::uint64_t size) {
  auto file = table.dir().open_flat(key, O_RDONLY);
  if (file.is_ok()) {
    auto st = WFS_TRY(posix::fstat(file->get()));
    if (static_cast<std::uint64_t>(st.st_size) == size && posix::writeback_error(file->get()).is_ok()) {
      return Opened{std::move(file).value(), false};
    }
    spdlog::warn("cache {}: has another size, or was not written back: begun anew", table.dir().file(key.path()));
    WFS_TRY(table.dir().remove_flat(key));
  } else if (file.code() != Code::kNotFound) {
    spdlog::warn("cache: {}: begun anew", file.status().message());
    WFS_TRY(table.dir().remove_flat(key));
  }
  auto fd = WFS_TRY(create(table, key, size));
  return Opened{std::move(fd), true};
}

// On an entry that the caller has taken: opens the file and finds out what of it is there.
Result<Fd> prepare(FileTable& table, FileEntry& entry, std::span<const std::uint32_t> sizes) {
  auto size = WFS_TRY(sum_of(sizes));
  auto known = entry.presence;
  if (known != nullptr && (known->blocks() != sizes.size() || entry.size != size)) {
    return Status(Code::kInvalid, entry.key.path() + ": opened before with other blocks");
  }
  auto opened = WFS_TRY(open_or_create(table, entry.key, size));
  std::shared_ptr<Presence> presence;
  if (opened.created) {
    presence = std::make_shared<Presence>(sizes.size());
  } else if (known != nullptr) {
    presence = known;
  } else if (entry.hint_blocks == sizes.size() && entry.hint.size() == (sizes.size() + 7) / 8) {
    presence = presence_by_hint(entry.hint, sizes.size());
  } else {
    presence = WFS_TRY(presence_by_extents(opened.fd.get(), size, sizes));
  }
  entry.size = size;
  if (presence != known) table.recount(entry, bytes_present(*presence, sizes));
  entry.presence = std::move(presence);
  return std::move(opened.fd);
}

}  // namespace

CachedFile::CachedFile(FileId id, EntryPtr entry, std::shared_ptr<FileTable> table, Fd reader)
    : id_(std::move(id)),
      entry_(std::move(entry)),
      presence_(entry_->presence),
      table_(std::move(table)),
      reader_(std::move(reader)) {}

CachedFile::~CachedFile() { table_->closed(entry_); }

FlatFile::Presence CachedFile::presence(std::size_t block) const {
  return block < presence_->blocks() ? presence_->at(block) : Presence::kAbsent;
}

bool CachedFile::complete() const {
  if (was_complete_.load(std::memory_order_acquire)) return true;
  if (!presence_->complete()) return false;
  was_complete_.store(true, std::memory_order_release);
  return true;
}

Status CachedFile::read(std::uint64_t offset, MutableByteSpan out) const {
  return posix::pread_exact(reader_.get(), offset, out).with(table_->dir().file(entry_->key.path()));
}

Result<std::shared_ptr<Fd>> CachedFile::writer() {
  {
    MutexLock lock(mutex_);
    if (writer_ != nullptr) return writer_;
  }
  // By the open file, not by its name: the name may be gone. Sealed files are opened up again for a repair.
  auto st = WFS_TRY(posix::fstat(reader_.get()));
  if ((st.st_mode & 0200) == 0) WFS_TRY(posix::set_mode(reader_.get(), kWritable));
  auto reopened = WFS_TRY(posix::reopen(reader_.get(), O_RDWR));
  auto fd = std::make_shared<Fd>(std::move(reopened));
  MutexLock lock(mutex_);
  if (writer_ == nullptr) writer_ = std::move(fd);
  return writer_;
}

Status CachedFile::put(std::uint64_t offset, ByteSpan bytes) {
  auto fd = WFS_TRY(writer());
  return with_room(*table_, bytes.size(), [&] { return posix::pwrite_exact(fd->get(), offset, bytes); });
}

Status CachedFile::write(std::size_t block, std::uint64_t offset, ByteSpan bytes) {
  if (block >= blocks() || offset > size() || bytes.size() > size() - offset) {
    return {Code::kInvalid, entry_->key.path() + ": block " + std::to_string(block) + " is outside"};
  }
  auto before = presence_->at(block);
  if (before == Presence::kVerified) return {};
  bool charged = before == Presence::kAbsent;
  if (charged) WFS_TRY(table_->reserve(Charge::kFlat, bytes.size()));
  auto status = put(offset, bytes);
  if (!status.is_ok()) {
    if (charged) table_->release(Charge::kFlat, bytes.size());
    return std::move(status).with(table_->dir().file(entry_->key.path()));
  }
  set_verified(block, bytes.size(), charged);
  return {};
}

void CachedFile::set_verified(std::size_t block, std::uint64_t length, bool charged) {
  auto was = presence_->set(block, Presence::kVerified);
  if (was == Presence::kAbsent) {
    if (!charged) table_->force(Charge::kFlat, length);
    entry_->charged += length;
  } else if (charged) {
    table_->release(Charge::kFlat, length);  // two wrote the same block
  }
  table_->mark_dirty(*entry_);
  if (was != Presence::kVerified && complete()) seal();
}

void CachedFile::verified(std::size_t block, std::uint64_t length) {
  if (block < blocks()) set_verified(block, length, false);
}

void CachedFile::damaged(std::size_t block, std::uint64_t length) {
  if (block >= blocks() || presence_->set(block, Presence::kAbsent) == Presence::kAbsent) return;
  auto part = std::min<std::uint64_t>(length, entry_->charged);
  entry_->charged -= part;
  table_->release(Charge::kFlat, part);
  table_->mark_dirty(*entry_);
}

void CachedFile::seal() {
  std::shared_ptr<Fd> last;
  {
    MutexLock lock(mutex_);
    last = std::exchange(writer_, nullptr);
  }
  auto status = posix::set_mode(reader_.get(), kSealed);
  if (!status.is_ok()) spdlog::debug("cache {}: not sealed: {}", entry_->key.path(), status.message());
}

Result<FlatFilePtr> open_cached_file(const std::shared_ptr<FileTable>& table, const FileId& id, const FileKey& key,
                                     std::span<const std::uint32_t> sizes) {
  auto taken = table->take(key);
  if (taken.live != nullptr) {
    auto size = WFS_TRY(sum_of(sizes));
    if (taken.live->blocks() == sizes.size() && taken.live->size() == size) return taken.live;
    return Status(Code::kInvalid, key.path() + ": open with other blocks");
  }
  auto reader = prepare(*table, *taken.entry, sizes);
  if (!reader.is_ok()) {
    table->give_back(taken.entry, nullptr, !taken.fresh);
    return std::move(reader).status();
  }
  auto file = std::make_shared<CachedFile>(id, taken.entry, table, std::move(reader).value());
  table->give_back(taken.entry, file, true);
  return FlatFilePtr(std::move(file));
}

namespace {

// On an entry that the caller has taken.
Status adopt_into(FileTable& table, FileEntry& entry, int folder, const std::string& name,
                  std::span<const std::uint32_t> sizes) {
  auto size = WFS_TRY(sum_of(sizes));
  auto file = WFS_TRY(posix::open_at(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  auto st = WFS_TRY(posix::fstat(file.get()));
  if (!S_ISREG(st.st_mode)) return {Code::kInvalid, name + " is not a regular file"};
  if (st.st_nlink != 1) return {Code::kUnsupported, name + " has other names (hard links)"};
  if (static_cast<std::uint64_t>(st.st_size) != size) {
    return {Code::kInvalid, name + " has " + std::to_string(st.st_size) + " bytes, not " + std::to_string(size)};
  }
  if (::geteuid() == 0 && st.st_uid != 0) posix::change_owner_to_self(file.get()).ignore("0700 above it guards it");
  WFS_TRY(posix::set_mode(file.get(), kSealed));
  WFS_TRY(table.dir().place_flat(entry.key, folder, name));
  auto presence = std::make_shared<Presence>(sizes.size());
  for (std::size_t block = 0; block < sizes.size(); block++) presence->set(block, State::kUnverified);
  entry.presence = std::move(presence);
  entry.size = size;
  table.release(Charge::kDraft, size);
  table.recount(entry, size);
  return {};
}

}  // namespace

Status adopt_cached_file(const std::shared_ptr<FileTable>& table, const FileKey& key, int folder,
                         const std::string& name, std::span<const std::uint32_t> sizes) {
  auto taken = table->take(key);
  if (taken.live != nullptr) return {Code::kBusy, key.path() + " is open"};
  auto status = adopt_into(*table, *taken.entry, folder, name, sizes);
  table->give_back(taken.entry, nullptr, status.is_ok() || !taken.fresh);
  return status;
}

}  // namespace weightfs
