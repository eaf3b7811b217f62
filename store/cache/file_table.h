// All flat files that are here, in memory: the truth while the cache is open; the index only remembers it. Also the
// quota: who is charged what, and which files go when room is needed. Any thread; its lock is never held across disk.
//
// An entry is *busy* while one thread makes, opens, adopts or removes its file; others wait for that. An *open* entry
// has a FlatFile; it is never evicted. A *detached* entry was dropped while open: it keeps its charge until closed.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/cache/index.h"
#include "store/cache/presence.h"

namespace weightfs {

struct FileEntry {
  explicit FileEntry(FileKey k) : key(std::move(k)) {}
  const FileKey key;
  std::atomic<std::uint64_t> size = 0;
  std::atomic<std::uint64_t> charged = 0;  // part of the table's flat bytes
  std::atomic<bool> dirty = false;         // differs from the index
  std::shared_ptr<Presence> presence;      // null until opened by this process; set while busy, then constant

  // The table's lock guards the rest.
  Bytes hint;  // the index's bitmap, until `presence` is made
  std::uint64_t hint_blocks = 0;
  std::uint64_t used = 0;
  int open = 0;
  bool busy = false;
  bool detached = false;
  bool stuck = false;  // could not be removed: no candidate until it is used again
  std::weak_ptr<FlatFile> live;
};
using EntryPtr = std::shared_ptr<FileEntry>;

enum class Charge : std::uint8_t { kFlat, kDraft, kMetadata };

class FileTable {
 public:
  FileTable(std::shared_ptr<CacheDir> dir, std::uint64_t quota) : dir_(std::move(dir)), quota_(quota) {}
  const CacheDir& dir() const { return *dir_; }

  // Before any thread: what index and disk say. Hints count only when `clean`.
  void load(const Index::Contents& contents, const std::vector<FoundFile>& found);

  // Takes the entry, made when missing, for the caller alone (busy); give it back by give_back(). With `live` set there
  // is an open FlatFile instead, and nothing was taken.
  struct Taken {
    EntryPtr entry;
    FlatFilePtr live;
    bool fresh = false;
  };
  Taken take(const FileKey& key) EXCLUDES(mutex_);
  // `opened`: the FlatFile made of it, or null; `keep` false removes the entry (its file is gone).
  void give_back(const EntryPtr& entry, const FlatFilePtr& opened, bool keep) EXCLUDES(mutex_);
  void closed(const EntryPtr& entry) EXCLUDES(mutex_);
  // The charge of an entry the caller has taken becomes `bytes`, whatever the quota says.
  void recount(FileEntry& entry, std::uint64_t bytes) EXCLUDES(mutex_);

  // Makes room, evicting when needed, and charges. kNoSpace: it cannot be made. Disk.
  Status reserve(Charge kind, std::uint64_t bytes) EXCLUDES(mutex_);
  void force(Charge kind, std::uint64_t bytes) EXCLUDES(mutex_);    // charges without asking
  void release(Charge kind, std::uint64_t bytes) EXCLUDES(mutex_);  // not below zero
  void transfer(Charge from, Charge to, std::uint64_t bytes) EXCLUDES(mutex_);
  // Removes files of at least so many bytes if it can, whatever the quota says (the disk is full). Returns bytes freed.
  std::uint64_t evict(std::uint64_t bytes) EXCLUDES(mutex_);
  // Until `bytes` more fit the quota, as far as possible.
  void make_room(std::uint64_t bytes) EXCLUDES(mutex_);

  bool has_some(const FileKey& key) const EXCLUDES(mutex_);
  std::vector<std::uint64_t> versions(const std::string& model) const EXCLUDES(mutex_);
  std::uint64_t cached_bytes(const std::string& model, std::uint64_t number) const EXCLUDES(mutex_);
  std::uint64_t cached_bytes(const FileKey& key) const EXCLUDES(mutex_);
  void touch(const FileKey& key) EXCLUDES(mutex_);
  void set_newest(const std::string& model, std::uint64_t number) EXCLUDES(mutex_);
  void drop_version(const std::string& model, std::uint64_t number) EXCLUDES(mutex_);
  void set_pinned(const std::string& model, std::uint64_t number, bool pinned) EXCLUDES(mutex_);
  bool pinned(const std::string& model, std::uint64_t number) const EXCLUDES(mutex_);
  std::vector<std::pair<std::string, std::uint64_t>> pins() const EXCLUDES(mutex_);
  CacheUsage usage() const EXCLUDES(mutex_);  // without the disk's part

  void mark_dirty(FileEntry& entry) EXCLUDES(mutex_);
  struct Changes {
    std::vector<FileRow> changed;
    std::vector<FileKey> gone;
  };
  Changes take_changes() EXCLUDES(mutex_);  // since the last call
  void all_changed() EXCLUDES(mutex_);      // the index was made anew
  // Blocks are written without a flush. When the disk refuses them later, the kernel tells only who asks: files written
  // to within the last minutes are asked, and one that failed has no block any more. Disk, but waits for nothing.
  void check_writeback() EXCLUDES(mutex_);

  static constexpr std::uint64_t kSlackPart = 128;  // an eviction frees quota / 128 at least, so that they are rare

 private:
  struct Model {
    std::uint64_t newest = 0;
    bool knows_newest = false;
    std::set<std::uint64_t> pins;
    std::map<std::uint64_t, std::map<std::uint32_t, EntryPtr>> versions;
  };
  EntryPtr find(const FileKey& key) const REQUIRES(mutex_);
  void erase(const FileEntry& entry) REQUIRES(mutex_);
  void uncharge(FileEntry& entry) REQUIRES(mutex_);
  std::uint64_t used() const REQUIRES(mutex_) { return charged_[0] + charged_[1] + charged_[2]; }
  std::uint64_t& charge(Charge kind) REQUIRES(mutex_) { return charged_[static_cast<int>(kind)]; }
  struct Candidate;
  void candidates_of(const Model& model, std::vector<Candidate>& out) const REQUIRES(mutex_);
  // Marks as busy the entries that go first, until `bytes` are found and about `slack` more; none when all together
  // have less than `bytes`, unless `partial`.
  std::vector<EntryPtr> pick(std::uint64_t bytes, std::uint64_t slack, bool partial) REQUIRES(mutex_);
  std::uint64_t remove(const std::vector<EntryPtr>& victims) EXCLUDES(mutex_);  // disk

  const std::shared_ptr<CacheDir> dir_;
  const std::uint64_t quota_;
  mutable Mutex mutex_;
  CondVar changed_;  // an entry is no longer busy; bytes were freed
  std::map<std::string, Model> models_ GUARDED_BY(mutex_);
  std::set<FileKey> dirty_ GUARDED_BY(mutex_);
  std::map<FileKey, std::chrono::steady_clock::time_point> written_ GUARDED_BY(mutex_);  // and until when to ask
  std::uint64_t charged_[3] GUARDED_BY(mutex_) = {0, 0, 0};
  std::uint64_t leaving_ GUARDED_BY(mutex_) = 0;  // charge of entries being removed
  std::uint64_t tick_ GUARDED_BY(mutex_) = 0;
};

}  // namespace weightfs
