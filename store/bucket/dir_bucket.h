// A bucket in a directory: local, or shared by several hosts (NFS and the like).
//
// An object is a regular file at ROOT/key. It is written under a name that no key can have ("~…"), fsynced, and given
// its name by link() (kFail) or rename() (kOverwrite). New directories and files take the bucket directory's group and
// mode. No symbolic link below ROOT is followed. A file "~…" over a day old is what a crash left; list() removes it.
//
// What differs from Bucket's contract: kNoSpace when the filesystem is full; a call can take longer than its deadline
// when the filesystem itself hangs (NFS mounted hard). kUnavailable when ROOT itself is gone.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/bucket/bucket.h"
#include "store/bucket/token_bucket.h"

namespace weightfs {

struct DirBucketOptions {
  std::string url;              // for messages; "" is the path
  bool create = true;           // the last component, when its parent exists
  std::uint64_t bandwidth = 0;  // bytes a second, both directions; 0: no limit
  // Names may be cached by the host (NFS keeps a missing name for a minute): look again through a fresh opendir.
  // Absent: as the filesystem's type says.
  std::optional<bool> shared;
  bool use_link = true;  // false: as on a filesystem without hard links
};

class DirBucket final : public Bucket {
 public:
  // kNotFound: no such directory (or parent, with create). kInvalid: not a directory. kPermission: no right to enter
  // it.
  static Result<std::unique_ptr<Bucket>> open(const std::string& path, const DirBucketOptions& options = {});

  Status get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options = {}) override;
  Result<Bytes> get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options = {}) override;
  Result<ObjectInfo> head(const ObjectKey& key, const CallOptions& options = {}) override;
  Status put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options = {}) override;
  Status put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options = {},
                  const std::function<void(std::uint64_t)>& progress = {}) override;
  Status remove(const ObjectKey& key, const CallOptions& options = {}) override;
  Result<std::vector<ListedObject>> list(const std::string& prefix, const CallOptions& options = {}) override;
  Result<std::vector<std::string>> list_prefixes(const std::string& prefix, const CallOptions& options = {}) override;
  Result<WallTime> server_time(const CallOptions& options = {}) override;
  const std::string& url() const override { return url_; }

 private:
  class Call;  // one call's deadline and cancellation
  struct File {
    Fd fd;
    struct stat st;
  };
  DirBucket(std::string root, const DirBucketOptions& options);

  Result<Fd> open_root() const;
  Result<Fd> open_dir(const std::string& relative, bool look_afresh = false) const;  // "" is the root
  static Status find_afresh(int dir, const std::string& name);
  Result<Fd> make_dir(const std::string& relative) EXCLUDES(mutex_);  // with its parents, durable
  Result<File> open_object(const ObjectKey& key) const;
  Result<File> try_open_object(const ObjectKey& key, bool look_afresh) const;
  Status follow_root(int fd, bool is_dir) const;  // group and mode
  Status move_bytes(std::uint64_t count, const Call& call, const std::function<Status(ByteRange)>& move);
  Status write_object(const ObjectKey& key, IfExists if_exists, const Call& call,
                      const std::function<Status(int fd)>& fill);
  Status give_name(int dir, int fd, const std::string& temporary, const std::string& name, IfExists if_exists) const;
  template <typename Visit>
  Result<bool> walk(const std::string& relative, const Call& call, const Visit& visit) const;
  void remove_leftover(int dir, const std::string& name, const struct stat& st) const;

  const std::string root_;
  const std::string url_;
  const std::optional<bool> shared_;
  const bool use_link_;
  TokenBucket rate_;
  Mutex mutex_;
  std::set<std::string> durable_dirs_ GUARDED_BY(mutex_);  // whose entries up to the root are fsynced
};

}  // namespace weightfs
