#include "store/cache/file_table.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <tuple>

namespace weightfs {
namespace {

// The kernel writes dirty pages back after 30 s by default.
constexpr std::chrono::seconds kWritebackTime{120};

// Charges come from sizes that anybody may have set: their sums stay far from wrapping round.
void add(std::uint64_t& charge, std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 61;
  charge = std::min(kMost, charge + std::min(kMost, bytes));
}

}  // namespace

void FileTable::load(const Index::Contents& contents, const std::vector<FoundFile>& found) {
  MutexLock lock(mutex_);
  std::map<FileKey, const FileRow*> rows;
  for (const auto& row : contents.files) rows[row.key] = &row;
  std::vector<EntryPtr> entries;
  for (const auto& file : found) {
    auto entry = std::make_shared<FileEntry>(file.key);
    entry->size = file.size;
    entry->charged = std::min(file.size, file.allocated);
    add(charge(Charge::kFlat), entry->charged);
    auto row = rows.find(file.key);
    if (row == rows.end()) {
      dirty_.insert(file.key);
    } else {
      entry->used = row->second->used;
      if (contents.clean && row->second->size == file.size) {
        entry->hint = row->second->present;
        entry->hint_blocks = row->second->blocks;
      }
      rows.erase(row);
    }
    models_[file.key.model].versions[file.key.number][file.key.file] = entry;
    entries.push_back(std::move(entry));
  }
  for (const auto& [key, row] : rows) dirty_.insert(key);  // recorded, but not on disk: to be forgotten
  // Ticks are counted anew: those of the index may be any number.
  std::sort(entries.begin(), entries.end(),
            [](const EntryPtr& a, const EntryPtr& b) { return std::tie(a->used, a->key) < std::tie(b->used, b->key); });
  for (auto& entry : entries) entry->used = ++tick_;
  for (const auto& [model, number] : contents.pins) models_[model].pins.insert(number);
}

EntryPtr FileTable::find(const FileKey& key) const {
  auto model = models_.find(key.model);
  if (model == models_.end()) return nullptr;
  auto version = model->second.versions.find(key.number);
  if (version == model->second.versions.end()) return nullptr;
  auto file = version->second.find(key.file);
  return file == version->second.end() ? nullptr : file->second;
}

void FileTable::erase(const FileEntry& entry) {
  auto model = models_.find(entry.key.model);
  if (model == models_.end()) return;
  auto version = model->second.versions.find(entry.key.number);
  if (version == model->second.versions.end()) return;
  version->second.erase(entry.key.file);
  if (version->second.empty()) model->second.versions.erase(version);
  if (model->second.versions.empty() && model->second.pins.empty() && !model->second.knows_newest) models_.erase(model);
  dirty_.insert(entry.key);
}

void FileTable::uncharge(FileEntry& entry) {
  auto bytes = entry.charged.exchange(0);
  charge(Charge::kFlat) -= std::min(charge(Charge::kFlat), bytes);
}

FileTable::Taken FileTable::take(const FileKey& key) {
  MutexLock lock(mutex_);
  while (true) {
    auto entry = find(key);
    if (entry == nullptr) {
      entry = std::make_shared<FileEntry>(key);
      entry->busy = true;
      entry->used = ++tick_;
      models_[key.model].versions[key.number][key.file] = entry;
      return {entry, nullptr, true};
    }
    if (entry->busy) {
      changed_.wait(mutex_);
      continue;
    }
    entry->used = ++tick_;
    entry->stuck = false;
    if (auto live = entry->live.lock()) return {nullptr, std::move(live), false};
    entry->busy = true;
    return {entry, nullptr, false};
  }
}

void FileTable::give_back(const EntryPtr& entry, const FlatFilePtr& opened, bool keep) {
  MutexLock lock(mutex_);
  entry->busy = false;
  if (opened != nullptr) {
    entry->live = opened;
    entry->open++;
  }
  if (!keep) {
    uncharge(*entry);
    erase(*entry);
  } else {
    dirty_.insert(entry->key);
  }
  changed_.notify_all();
}

void FileTable::closed(const EntryPtr& entry) {
  MutexLock lock(mutex_);
  entry->open--;
  entry->used = ++tick_;
  if (entry->detached && entry->open == 0) uncharge(*entry);
  if (!entry->detached) dirty_.insert(entry->key);
}

void FileTable::recount(FileEntry& entry, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  auto& flat = charge(Charge::kFlat);
  flat -= std::min(flat, entry.charged.exchange(bytes));
  add(flat, bytes);
}

Status FileTable::reserve(Charge kind, std::uint64_t bytes) {
  while (true) {
    std::vector<EntryPtr> victims;
    {
      MutexLock lock(mutex_);
      if (quota_ == 0 || (bytes <= quota_ && used() <= quota_ - bytes)) {
        add(charge(kind), bytes);
        return {};
      }
      auto full = [&] {
        return Status(Code::kNoSpace, "cache quota of " + std::to_string(quota_) + " bytes is used up");
      };
      if (bytes > quota_) return full();
      auto staying = used() - leaving_;
      if (staying > quota_ - bytes) victims = pick(staying - (quota_ - bytes), quota_ / kSlackPart, false);
      if (victims.empty()) {
        if (leaving_ == 0) return full();
        changed_.wait(mutex_);  // another thread is removing files: see what that gives
        continue;
      }
    }
    remove(victims);
  }
}

void FileTable::force(Charge kind, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  add(charge(kind), bytes);
}

void FileTable::release(Charge kind, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  charge(kind) -= std::min(charge(kind), bytes);
}

void FileTable::transfer(Charge from, Charge to, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  charge(from) -= std::min(charge(from), bytes);
  add(charge(to), bytes);
}

std::uint64_t FileTable::evict(std::uint64_t bytes) {
  std::vector<EntryPtr> victims;
  {
    MutexLock lock(mutex_);
    victims = pick(bytes, 0, true);
  }
  return remove(victims);
}

void FileTable::make_room(std::uint64_t bytes) {
  if (quota_ == 0) return;
  std::uint64_t over = 0;
  {
    MutexLock lock(mutex_);
    auto wanted = quota_ - std::min(quota_, bytes);
    auto staying = used() - leaving_;
    if (staying > wanted) over = staying - wanted;
  }
  if (over > 0) evict(over);
}

// In the order in which they go. rank: what kind of version it is (CACHE.md, "What goes first").
struct FileTable::Candidate {
  int rank;
  std::uint64_t version_used;
  std::uint64_t number;
  std::uint64_t file_used;
  EntryPtr entry;
  auto order() const { return std::tie(rank, version_used, number, file_used); }
};

void FileTable::candidates_of(const Model& model, std::vector<Candidate>& out) const {
  enum Rank { kOrdinary, kOpen, kBaseOfNewest, kNewest };
  // The newest version with anything here, not above the marked one; while it is incomplete, also the one below it:
  // its blocks are still being built from there.
  const auto& versions = model.versions;
  auto has_bytes = [](const auto& version) {
    return std::any_of(version.second.begin(), version.second.end(),
                       [](const auto& f) { return f.second->charged > 0; });
  };
  auto end = model.knows_newest ? versions.upper_bound(model.newest) : versions.end();
  auto newest = std::find_if(std::make_reverse_iterator(end), versions.rend(), has_bytes);
  auto base = versions.rend();
  if (newest != versions.rend()) {
    bool incomplete = std::any_of(newest->second.begin(), newest->second.end(),
                                  [](const auto& f) { return f.second->charged < f.second->size; });
    if (incomplete) base = std::find_if(std::next(newest), versions.rend(), has_bytes);
  }
  for (const auto& version : versions) {
    if (model.pins.contains(version.first)) continue;
    bool open = false;
    std::uint64_t version_used = 0;
    for (const auto& [index, entry] : version.second) {
      open = open || entry->open > 0;
      version_used = std::max(version_used, entry->used);
    }
    int rank = open ? kOpen : kOrdinary;
    if (base != versions.rend() && base->first == version.first) rank = kBaseOfNewest;
    if (newest != versions.rend() && newest->first == version.first) rank = kNewest;
    for (const auto& [index, entry] : version.second) {
      if (entry->open > 0 || entry->busy || entry->stuck || entry->charged == 0) continue;
      out.push_back({rank, version_used, version.first, entry->used, entry});
    }
  }
}

std::vector<EntryPtr> FileTable::pick(std::uint64_t bytes, std::uint64_t slack, bool partial) {
  std::vector<Candidate> candidates;
  for (const auto& [name, model] : models_) candidates_of(model, candidates);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.order() < b.order(); });
  std::vector<EntryPtr> victims;
  std::uint64_t found = 0;
  for (const auto& candidate : candidates) {
    if (found >= bytes && found >= slack) break;
    if (found >= bytes && candidate.rank > 0) break;  // slack is not worth what is likely to be needed
    victims.push_back(candidate.entry);
    found += candidate.entry->charged;
  }
  if (found < bytes && !partial) return {};
  for (auto& entry : victims) entry->busy = true;
  leaving_ += found;
  return victims;
}

std::uint64_t FileTable::remove(const std::vector<EntryPtr>& victims) {
  std::uint64_t freed = 0;
  for (const auto& entry : victims) {
    auto bytes = entry->charged.load();  // constant: it is not open, and busy
    auto status = dir_->remove_flat(entry->key);
    MutexLock lock(mutex_);
    leaving_ -= std::min(leaving_, bytes);
    entry->busy = false;
    if (status.is_ok()) {
      uncharge(*entry);
      erase(*entry);
      freed += bytes;
    } else {
      entry->stuck = true;
      spdlog::warn("cache {}: cannot evict: {}", dir_->path(), status.message());
    }
    changed_.notify_all();
  }
  if (freed > 0) spdlog::info("cache {}: evicted files={} bytes={}", dir_->path(), victims.size(), freed);
  return freed;
}

bool FileTable::has_some(const FileKey& key) const {
  MutexLock lock(mutex_);
  auto entry = find(key);
  return entry != nullptr && entry->charged > 0;
}

std::vector<std::uint64_t> FileTable::versions(const std::string& name) const {
  MutexLock lock(mutex_);
  std::vector<std::uint64_t> out;
  auto model = models_.find(name);
  if (model == models_.end()) return out;
  for (const auto& [number, files] : model->second.versions) {
    bool any = std::any_of(files.begin(), files.end(), [](const auto& file) { return file.second->charged > 0; });
    if (any) out.push_back(number);
  }
  return out;
}

std::uint64_t FileTable::cached_bytes(const std::string& name, std::uint64_t number) const {
  MutexLock lock(mutex_);
  auto model = models_.find(name);
  if (model == models_.end()) return 0;
  auto version = model->second.versions.find(number);
  if (version == model->second.versions.end()) return 0;
  std::uint64_t sum = 0;
  for (const auto& [index, entry] : version->second) sum += entry->charged;
  return sum;
}

std::uint64_t FileTable::cached_bytes(const FileKey& key) const {
  MutexLock lock(mutex_);
  auto entry = find(key);
  return entry == nullptr ? 0 : entry->charged.load();
}

void FileTable::touch(const FileKey& key) {
  MutexLock lock(mutex_);
  auto entry = find(key);
  if (entry == nullptr) return;
  entry->used = ++tick_;
  entry->stuck = false;
  dirty_.insert(key);
}

void FileTable::set_newest(const std::string& model, std::uint64_t number) {
  MutexLock lock(mutex_);
  auto& entry = models_[model];
  entry.newest = number;
  entry.knows_newest = true;
}

void FileTable::drop_version(const std::string& name, std::uint64_t number) {
  std::vector<EntryPtr> entries;
  {
    MutexLock lock(mutex_);
    while (true) {
      auto model = models_.find(name);
      if (model == models_.end()) return;
      model->second.pins.erase(number);
      auto version = model->second.versions.find(number);
      if (version == model->second.versions.end()) return;
      bool busy = std::any_of(version->second.begin(), version->second.end(),
                              [](const auto& file) { return file.second->busy; });
      if (busy) {
        changed_.wait(mutex_);
        continue;
      }
      for (auto& [index, entry] : version->second) {
        entry->busy = true;
        entries.push_back(entry);
      }
      break;
    }
  }
  for (const auto& entry : entries) {
    auto status = dir_->remove_flat(entry->key);
    MutexLock lock(mutex_);
    entry->busy = false;
    changed_.notify_all();
    if (!status.is_ok()) {
      spdlog::warn("cache {}: cannot remove: {}", dir_->path(), status.message());
      continue;
    }
    erase(*entry);
    entry->detached = true;
    if (entry->open == 0) uncharge(*entry);
  }
}

void FileTable::set_pinned(const std::string& model, std::uint64_t number, bool pinned) {
  MutexLock lock(mutex_);
  if (pinned) {
    models_[model].pins.insert(number);
  } else if (auto found = models_.find(model); found != models_.end()) {
    found->second.pins.erase(number);
  }
}

bool FileTable::pinned(const std::string& model, std::uint64_t number) const {
  MutexLock lock(mutex_);
  auto found = models_.find(model);
  return found != models_.end() && found->second.pins.contains(number);
}

std::vector<std::pair<std::string, std::uint64_t>> FileTable::pins() const {
  MutexLock lock(mutex_);
  std::vector<std::pair<std::string, std::uint64_t>> out;
  for (const auto& [name, model] : models_) {
    for (auto number : model.pins) out.emplace_back(name, number);
  }
  return out;
}

CacheUsage FileTable::usage() const {
  MutexLock lock(mutex_);
  CacheUsage usage;
  usage.quota = quota_;
  usage.flat_bytes = charged_[static_cast<int>(Charge::kFlat)];
  usage.draft_bytes = charged_[static_cast<int>(Charge::kDraft)];
  usage.blob_bytes = charged_[static_cast<int>(Charge::kMetadata)];
  return usage;
}

void FileTable::mark_dirty(FileEntry& entry) {
  if (entry.dirty.exchange(true)) return;
  MutexLock lock(mutex_);
  if (!entry.detached) dirty_.insert(entry.key);
}

FileTable::Changes FileTable::take_changes() {
  Changes changes;
  std::vector<std::pair<std::shared_ptr<Presence>, FileRow>> rows;
  std::set<FileKey> later;
  {
    MutexLock lock(mutex_);
    for (const auto& key : dirty_) {
      auto entry = find(key);
      if (entry == nullptr) {
        changes.gone.push_back(key);
        continue;
      }
      if (entry->busy) {  // not known yet: next time
        later.insert(key);
        continue;
      }
      if (entry->dirty.exchange(false)) written_[key] = std::chrono::steady_clock::now() + kWritebackTime;
      rows.emplace_back(entry->presence, FileRow{key, entry->size, entry->hint_blocks, entry->hint, entry->used});
    }
    dirty_ = std::move(later);
  }
  for (auto& [presence, row] : rows) {
    if (presence != nullptr) {
      row.blocks = presence->blocks();
      row.present = presence->bitmap();
    }
    changes.changed.push_back(std::move(row));
  }
  return changes;
}

void FileTable::check_writeback() {
  struct Written {
    EntryPtr entry;
    FlatFilePtr file;
  };
  std::vector<Written> written;
  {
    MutexLock lock(mutex_);
    auto now = std::chrono::steady_clock::now();
    for (auto it = written_.begin(); it != written_.end();) {
      auto entry = find(it->first);
      auto file = entry != nullptr ? entry->live.lock() : nullptr;
      if (file != nullptr) written.push_back({entry, std::move(file)});
      // One that is closed is asked when it is opened again.
      it = entry == nullptr || it->second < now ? written_.erase(it) : std::next(it);
    }
  }
  for (const auto& [entry, file] : written) {
    auto status = posix::writeback_error(file->fd());
    if (status.is_ok()) continue;
    spdlog::error("cache {}: {}: blocks were lost on their way to the disk: {}", dir_->path(), entry->key.path(),
                  status.message());
    for (std::size_t block = 0; block < file->blocks(); block++) {
      entry->presence->set(block, FlatFile::Presence::kAbsent);
    }
    recount(*entry, 0);
    mark_dirty(*entry);
  }
}

void FileTable::all_changed() {
  MutexLock lock(mutex_);
  for (const auto& [name, model] : models_) {
    for (const auto& [number, files] : model.versions) {
      for (const auto& [index, entry] : files) dirty_.insert(entry->key);
    }
  }
}

}  // namespace weightfs
