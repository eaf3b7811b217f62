// The cache's directory on disk: its lock, its layout, and every path below it. Nothing here follows a symlink inside.
//
//   lock                                   flock; holds the owner's pid
//   index.sqlite, -wal                     the index (index.h)
//   files/<model>/<number>/<file>          flat files; <model> is ModelName::key_component()
//   drafts/<id>/files, /spool, /draft.json
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "store/base/posix_at.h"

namespace weightfs {

// FileId with the model as the path component it has on disk.
struct FileKey {
  std::string model;
  std::uint64_t number = 0;
  std::uint32_t file = 0;
  std::string path() const;  // below the cache's directory
  friend auto operator<=>(const FileKey&, const FileKey&) = default;
};

bool is_model_component(std::string_view text);                     // as key_component() makes them
constexpr std::uint64_t kMaxNumber = (std::uint64_t{1} << 62) - 1;  // fits SQLite's integers

// What a walk over files/ found.
struct FoundFile {
  FileKey key;
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;
};

class CacheDir {
 public:
  // Makes `path` with its parents, 0700, when missing; takes the lock. kPermission, kBusy as Cache::open says.
  static Result<CacheDir> open(const std::string& path);

  void unlock() { lock_.close().ignore("nothing was to be written"); }

  const std::string& path() const { return path_; }
  int fd() const { return dir_.get(); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  // The flat file as it is there. kNotFound; kCorrupt when what is there is not an ordinary file of ours.
  Result<Fd> open_flat(const FileKey& key, int flags) const;
  // A new, empty one of `size`; folders made as needed. kExists: one is there.
  Result<Fd> create_flat(const FileKey& key, std::uint64_t size) const;
  // Puts `name` of `from_dir` there in one step, over what is there.
  Status place_flat(const FileKey& key, int from_dir, const std::string& name) const;
  // Removes it and folders left empty; OK when it was not there.
  Status remove_flat(const FileKey& key) const;
  // All flat files. What cannot be one is removed when it is a link, else left alone and logged.
  std::vector<FoundFile> scan_flat() const;

  // Sets index files aside as index.sqlite.damaged-<n>; only the newest such is kept.
  Status set_index_aside() const;
  // Links where the index's files should be are removed.
  void remove_index_links() const;

 private:
  CacheDir(std::string path, Fd dir, Fd lock);
  Result<Fd> flat_folder(const FileKey& key, bool make) const;
  std::string path_;
  Fd dir_;
  Fd lock_;
};

}  // namespace weightfs
