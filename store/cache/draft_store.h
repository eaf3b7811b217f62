// Drafts' folders and records. The sidecar drafts/<id>/draft.json is the record; the index holds a second copy. The
// steps are ordered so that a crash leaves a draft whole or not at all: a new one is made as <id>.new and renamed, one
// to be deleted is renamed to <id>.deleted first; leftovers of both go at open. A folder whose record is lost in both
// places gets one that says so: a draft's files are never thrown away unasked.
#pragma once

#include <map>

#include "store/cache/file_table.h"
#include "store/cache/index_thread.h"

namespace weightfs {

class DraftStore {
 public:
  DraftStore(std::shared_ptr<CacheDir> dir, std::shared_ptr<FileTable> table)
      : dir_(std::move(dir)), table_(std::move(table)) {}
  // Before any thread: finds what is there, brings folders, sidecars and index in line, charges the bytes.
  void recover(Index& index, const std::map<std::string, Bytes>& recorded);
  void set_index(IndexThread* index) { index_ = index; }

  Result<DraftRecord> create(const std::string& model, const std::string& name) EXCLUDES(mutex_);
  Status update(const DraftRecord& record) EXCLUDES(mutex_);
  Status remove(const std::string& id) EXCLUDES(mutex_);
  std::vector<DraftRecord> list() const EXCLUDES(mutex_);
  std::string folder(const std::string& id) const { return dir_->file("drafts/" + id); }
  // For adopt(): the folder of a file below a draft's files/, and its name there.
  struct Place {
    Fd folder;
    std::string name;
  };
  Result<Place> locate(const std::string& path) const;
  Status refill(Index& index) EXCLUDES(mutex_);  // on the index thread

 private:
  std::optional<DraftRecord> recover_one(const std::string& id, Index& index,
                                         const std::map<std::string, Bytes>& recorded);
  Status write_sidecar(const DraftRecord& record, const std::string& folder);
  Status make_folder(const DraftRecord& record);
  Status store(Index& index, const DraftRecord& record) EXCLUDES(mutex_);
  std::uint64_t bytes_of(const std::string& id) const;

  const std::shared_ptr<CacheDir> dir_;
  const std::shared_ptr<FileTable> table_;
  IndexThread* index_ = nullptr;  // records change on its thread only, one after the other
  mutable Mutex mutex_;
  std::map<std::string, DraftRecord> drafts_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
