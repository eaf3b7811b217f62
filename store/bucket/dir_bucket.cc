#include "store/bucket/dir_bucket.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "store/base/digest.h"

namespace weightfs {
namespace {

constexpr char kTemporary = '~';  // no key holds it
constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
constexpr auto kLeftoverAge = std::chrono::hours(24);

// What a filesystem says, in a bucket's words.
Status as_bucket_error(Status status) {
  switch (status.code()) {
    case Code::kIo:
    case Code::kBusy:
      return {Code::kUnavailable, status.message()};
    case Code::kReadOnly:
      return {Code::kPermission, status.message()};
    default:
      return status;
  }
}
template <typename T>
Result<T> as_bucket_error(Result<T> result) {
  if (result.is_ok()) return result;
  return as_bucket_error(std::move(result).status());
}

std::string parent_of(const std::string& relative) {
  auto slash = relative.rfind('/');
  return slash == std::string::npos ? "" : relative.substr(0, slash);
}
std::string leaf_of(const std::string& relative) { return relative.substr(relative.rfind('/') + 1); }

// "" or "a/b/" -> "" or "a/b".
Result<std::string> directory_of_prefix(const std::string& prefix) {
  if (prefix.empty()) return std::string();
  if (prefix.back() != '/') return Status(Code::kInvalid, "prefix '" + prefix + "' does not end with '/'");
  auto key = WFS_TRY(ObjectKey::parse(prefix.substr(0, prefix.size() - 1)));
  return key.str();
}

WallTime modified_of(const struct stat& st) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(st.st_mtim.tv_sec) +
                                                                 std::chrono::nanoseconds(st.st_mtim.tv_nsec)));
}

// Some filesystems cannot fsync a directory; then there is nothing better to do.
Status fsync_directory(int fd) {
  auto status = posix::fsync(fd);
  if (status.code() == Code::kInvalid || status.code() == Code::kUnsupported) return {};
  return status;
}

}  // namespace

class DirBucket::Call {
 public:
  explicit Call(const CallOptions& options)
      : options_(options), end_(std::chrono::steady_clock::now() + options.deadline) {}
  Status check() const {
    if (options_.cancel && options_.cancel->cancelled()) return {Code::kInterrupted, "cancelled"};
    if (std::chrono::steady_clock::now() >= end_) return {Code::kUnavailable, "the deadline passed"};
    return {};
  }
  // Sleeps in small steps, to notify a cancellation soon.
  Status sleep(Duration duration) const {
    auto until = std::chrono::steady_clock::now() + duration;
    while (true) {
      WFS_TRY(check());
      auto left = std::chrono::duration_cast<Duration>(until - std::chrono::steady_clock::now());
      if (left <= Duration(0)) return {};
      std::this_thread::sleep_for(std::min(left, Duration(100)));
    }
  }

 private:
  const CallOptions& options_;
  const SteadyTime end_;
};

DirBucket::DirBucket(std::string root, const DirBucketOptions& options)
    : root_(std::move(root)),
      url_(options.url.empty() ? root_ : options.url),
      shared_(options.shared),
      use_link_(options.use_link),
      rate_(options.bandwidth) {}

Result<std::unique_ptr<Bucket>> DirBucket::open(const std::string& path, const DirBucketOptions& options) {
  auto root = posix::absolute(path);
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  if (options.create) {
    auto made = posix::mkdir(root, 0777);
    if (made.is_ok()) {
      WFS_TRY(posix::fsync_parent(root));
    } else if (made.code() != Code::kExists) {
      auto there = posix::exists(root);  // mkdir may lack a right that is not needed when it is there
      if (made.code() == Code::kNotFound) {
        return Status(Code::kNotFound, root + ": the directory it should be made in is not there; make that first");
      }
      if (!there.is_ok() || !*there) return made;
    }
  }
  auto found = posix::stat(root);
  if (found.code() == Code::kNotFound) {
    return Status(Code::kNotFound, root + ": no such directory; `weightfs publish` makes a new bucket");
  }
  auto st = WFS_TRY(std::move(found));
  if (!S_ISDIR(st.st_mode))
    return Status(Code::kInvalid, root + " is not a directory; a bucket is one, or an s3:// or hf:// URL");
  WFS_TRY(posix::open(root, O_RDONLY | O_DIRECTORY));
  return std::unique_ptr<Bucket>(new DirBucket(std::move(root), options));
}

Result<Fd> DirBucket::open_root() const {
  auto root = posix::open(root_, O_RDONLY | O_DIRECTORY);
  if (root.code() == Code::kNotFound) return Status(Code::kUnavailable, "the bucket's directory is gone: " + root_);
  return root;
}

Result<Fd> DirBucket::open_dir(const std::string& relative, bool look_afresh) const {
  auto dir = WFS_TRY(open_root());
  for (std::size_t start = 0; start < relative.size();) {
    auto slash = std::min(relative.find('/', start), relative.size());
    auto name = relative.substr(start, slash - start);
    if (look_afresh) WFS_TRY(find_afresh(dir.get(), name));
    auto next = posix::open_at(dir.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!next.is_ok()) {
      auto st = posix::lstat_at(dir.get(), name);
      if (st.is_ok() && S_ISLNK(st->st_mode)) {
        return Status(Code::kPermission, relative + ": links in a bucket are not followed");
      }
      return next;
    }
    dir = std::move(next).value();
    start = slash + 1;
  }
  return dir;
}

// Opening and reading the directory makes the host ask the server anew.
Status DirBucket::find_afresh(int dir, const std::string& name) {
  auto names = WFS_TRY(posix::list_dir_at(dir));
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  return {Code::kNotFound, "no such object"};
}

Result<Fd> DirBucket::make_dir(const std::string& relative) {
  if (relative.empty()) return open_root();
  bool known;
  {
    MutexLock lock(mutex_);
    known = durable_dirs_.contains(relative);
  }
  if (known) {
    auto dir = open_dir(relative);
    if (dir.code() != Code::kNotFound) return dir;
  }
  auto parent = WFS_TRY(make_dir(parent_of(relative)));
  auto made = posix::mkdir_at(parent.get(), leaf_of(relative), 0777);
  if (!made.is_ok() && made.code() != Code::kExists) return made;
  auto dir = WFS_TRY(open_dir(relative));
  if (made.is_ok()) WFS_TRY(follow_root(dir.get(), true));
  // Also when another made it, who may not have come so far.
  WFS_TRY(fsync_directory(parent.get()));
  MutexLock lock(mutex_);
  durable_dirs_.insert(relative);
  return dir;
}

Status DirBucket::follow_root(int fd, bool is_dir) const {
  auto root = WFS_TRY(posix::stat(root_));
  auto st = WFS_TRY(posix::fstat(fd));
  if (st.st_gid != root.st_gid) {
    posix::set_group(fd, root.st_gid).ignore("not a member of the group: the mode still follows");
  }
  return posix::set_mode(fd, is_dir ? root.st_mode & 03777 : root.st_mode & 0666);
}

Result<DirBucket::File> DirBucket::try_open_object(const ObjectKey& key, bool look_afresh) const {
  auto dir = WFS_TRY(open_dir(parent_of(key.str()), look_afresh));
  auto leaf = leaf_of(key.str());
  if (look_afresh) WFS_TRY(find_afresh(dir.get(), leaf));
  auto fd = posix::open_at(dir.get(), leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (fd.code() == Code::kInvalid) return Status(Code::kPermission, "links in a bucket are not followed");
  if (!fd.is_ok()) return std::move(fd).status();
  auto st = WFS_TRY(posix::fstat(fd->get()));
  if (S_ISDIR(st.st_mode)) return Status(Code::kNotFound, "no such object");
  if (!S_ISREG(st.st_mode)) return Status(Code::kCorrupt, "not a regular file");
  return File{std::move(fd).value(), st};
}

Result<DirBucket::File> DirBucket::open_object(const ObjectKey& key) const {
  auto file = try_open_object(key, false);
  // A handle gone stale (another host replaced a directory) is looked up anew, once.
  if (file.code() == Code::kUnavailable) file = try_open_object(key, false);
  if (file.code() == Code::kNotFound) {
    bool shared = shared_ ? *shared_ : posix::is_network_filesystem(WFS_TRY(open_root()).get());
    if (shared) file = try_open_object(key, true);
  }
  return as_bucket_error(std::move(file)).with(key.str());
}

Status DirBucket::move_bytes(std::uint64_t count, const Call& call, const std::function<Status(ByteRange)>& move) {
  for (std::uint64_t at = 0; at < count;) {
    WFS_TRY(call.check());
    auto length = std::min(kChunk, count - at);
    WFS_TRY(call.sleep(rate_.reserve(length, std::chrono::steady_clock::now())));
    WFS_TRY(move({at, length}));
    at += length;
  }
  return {};
}

Status DirBucket::get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options) {
  WFS_CHECK(out.size() == range.length && range.length > 0);
  Call call(options);
  counters_.requests++;
  auto file = WFS_TRY(open_object(key));
  auto size = static_cast<std::uint64_t>(file.st.st_size);
  if (range.offset > size || size - range.offset < range.length) {
    return {Code::kCorrupt, key.str() + ": the object ends before the range does"};
  }
  auto status = move_bytes(range.length, call, [&](ByteRange part) {
    counters_.get_bytes += part.length;
    return posix::pread_exact(file.fd.get(), range.offset + part.offset, out.subspan(part.offset, part.length));
  });
  return as_bucket_error(std::move(status)).with(key.str());
}

Result<Bytes> DirBucket::get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options) {
  Call call(options);
  counters_.requests++;
  auto file = WFS_TRY(open_object(key));
  auto size = static_cast<std::uint64_t>(file.st.st_size);
  if (size > limit) return Status(Code::kInvalid, key.str() + ": longer than " + std::to_string(limit) + " bytes");
  Bytes bytes(size);
  auto status = move_bytes(size, call, [&](ByteRange part) {
    counters_.get_bytes += part.length;
    return posix::pread_exact(file.fd.get(), part.offset, MutableByteSpan(bytes).subspan(part.offset, part.length));
  });
  WFS_TRY(as_bucket_error(std::move(status)).with(key.str()));
  return bytes;
}

Result<ObjectInfo> DirBucket::head(const ObjectKey& key, const CallOptions& options) {
  WFS_TRY(Call(options).check());
  counters_.requests++;
  auto file = WFS_TRY(open_object(key));
  return ObjectInfo{static_cast<std::uint64_t>(file.st.st_size), modified_of(file.st)};
}

// Whether OK is sure: the name of a file made by link() or rename() tells. An answer that was lost and asked for again
// (NFS) says EEXIST although it was us: then the file has two names, or the name is that of our file.
Status DirBucket::give_name(int dir, int fd, const std::string& temporary, const std::string& name,
                            IfExists if_exists) const {
  if (if_exists == IfExists::kOverwrite) return posix::rename_at(dir, temporary, name);
  Status status(Code::kUnsupported, "no links");
  if (use_link_) status = posix::link_at(dir, temporary, name);
  if (status.code() == Code::kUnsupported || status.code() == Code::kPermission) {
    status = posix::rename_noreplace_at(dir, temporary, name);
    if (status.code() == Code::kUnsupported) {
      return {Code::kUnsupported, "the filesystem has neither link() nor RENAME_NOREPLACE"};
    }
  }
  if (status.code() != Code::kExists) return status;
  auto ours = posix::fstat(fd);
  auto there = posix::lstat_at(dir, name);
  bool won = ours.is_ok() && there.is_ok() && ours->st_ino == there->st_ino && ours->st_dev == there->st_dev;
  if (won || (ours.is_ok() && ours->st_nlink > 1)) return {};
  return {Code::kExists, "the object exists"};
}

Status DirBucket::write_object(const ObjectKey& key, IfExists if_exists, const Call& call,
                               const std::function<Status(int fd)>& fill) {
  counters_.requests++;
  auto attempt = [&]() -> Status {
    WFS_TRY(call.check());
    auto dir = WFS_TRY(make_dir(parent_of(key.str())));
    auto temporary = kTemporary + random_id();
    auto fd = WFS_TRY(posix::open_at(dir.get(), temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    auto write = [&]() -> Status {
      WFS_TRY(fill(fd.get()));
      WFS_TRY(follow_root(fd.get(), false));
      WFS_TRY(posix::fsync(fd.get()));
      WFS_TRY(call.check());
      return give_name(dir.get(), fd.get(), temporary, leaf_of(key.str()), if_exists);
    };
    auto status = write();
    posix::unlink_at(dir.get(), temporary).ignore("renamed away, or a leftover that list() removes");
    WFS_TRY(std::move(status));
    WFS_TRY(fd.close());
    return fsync_directory(dir.get());
  };
  auto status = attempt();
  // The parent went away between make_dir and now.
  if (status.code() == Code::kNotFound) status = {Code::kUnavailable, status.message()};
  return as_bucket_error(std::move(status)).with(key.str());
}

Status DirBucket::put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options) {
  Call call(options);
  return write_object(key, if_exists, call, [&](int out) {
    return move_bytes(bytes.size(), call, [&](ByteRange part) {
      counters_.put_bytes += part.length;
      return posix::write_exact(out, bytes.subspan(part.offset, part.length));
    });
  });
}

Status DirBucket::put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options,
                           const std::function<void(std::uint64_t)>& progress) {
  Call call(options);
  return write_object(key, IfExists::kOverwrite, call, [&](int out) {
    Bytes buffer(std::min(kChunk, size));
    return move_bytes(size, call, [&](ByteRange part) -> Status {
      auto chunk = MutableByteSpan(buffer).first(part.length);
      WFS_TRY(posix::pread_exact(fd, part.offset, chunk).with("the file to upload"));
      WFS_TRY(posix::write_exact(out, chunk));
      counters_.put_bytes += part.length;
      if (progress) progress(part.length);
      return {};
    });
  });
}

Status DirBucket::remove(const ObjectKey& key, const CallOptions& options) {
  counters_.requests++;
  auto attempt = [&]() -> Status {
    WFS_TRY(Call(options).check());
    auto dir = WFS_TRY(open_dir(parent_of(key.str())));
    auto st = WFS_TRY(posix::lstat_at(dir.get(), leaf_of(key.str())));
    if (S_ISDIR(st.st_mode)) return {};  // keys begin with this one, but it is no object
    WFS_TRY(posix::unlink_at(dir.get(), leaf_of(key.str())));
    return fsync_directory(dir.get());
  };
  auto status = attempt();
  if (status.code() == Code::kNotFound) return {};
  return as_bucket_error(std::move(status)).with(key.str());
}

void DirBucket::remove_leftover(int dir, const std::string& name, const struct stat& st) const {
  if (std::chrono::system_clock::now() - modified_of(st) < kLeftoverAge) return;
  auto status = posix::unlink_at(dir, name);
  if (status.is_ok()) spdlog::info("bucket {}: removed {}, left by a crash", url_, name);
}

// Calls visit(relative, stat) for each object below `relative` until it returns false; then this is false, too. What
// vanishes meanwhile is skipped, and so is what cannot be an object of ours.
template <typename Visit>
Result<bool> DirBucket::walk(const std::string& relative, const Call& call, const Visit& visit) const {
  auto opened = open_dir(relative);
  if (opened.code() == Code::kNotFound) return true;
  auto dir = WFS_TRY(std::move(opened));
  for (const auto& name : WFS_TRY(posix::list_dir_at(dir.get()))) {
    WFS_TRY(call.check());
    auto st = posix::lstat_at(dir.get(), name);
    if (st.code() == Code::kNotFound) continue;
    if (!st.is_ok()) return std::move(st).status();
    if (name.front() == kTemporary) {
      if (S_ISREG(st->st_mode)) remove_leftover(dir.get(), name, *st);
      continue;
    }
    auto path = relative.empty() ? name : relative + "/" + name;
    if (!ObjectKey::parse(path).is_ok()) continue;
    if (S_ISDIR(st->st_mode)) {
      if (!WFS_TRY(walk(path, call, visit))) return false;
    } else if (S_ISREG(st->st_mode) && !visit(path, *st)) {
      return false;
    }
  }
  return true;
}

Result<std::vector<ListedObject>> DirBucket::list(const std::string& prefix, const CallOptions& options) {
  counters_.requests++;
  std::vector<ListedObject> found;
  auto relative = WFS_TRY(directory_of_prefix(prefix));
  auto walked = walk(relative, Call(options), [&](const std::string& path, const struct stat& st) {
    found.push_back({ObjectKey::of(path), {static_cast<std::uint64_t>(st.st_size), modified_of(st)}});
    return true;
  });
  WFS_TRY(as_bucket_error(std::move(walked)).with("list " + prefix));
  return found;
}

Result<std::vector<std::string>> DirBucket::list_prefixes(const std::string& prefix, const CallOptions& options) {
  counters_.requests++;
  Call call(options);
  auto relative = WFS_TRY(directory_of_prefix(prefix));
  auto attempt = [&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> names;
    auto opened = open_dir(relative);
    if (opened.code() == Code::kNotFound) return names;
    auto dir = WFS_TRY(std::move(opened));
    for (auto& name : WFS_TRY(posix::list_dir_at(dir.get()))) {
      auto st = posix::lstat_at(dir.get(), name);
      if (!st.is_ok() || !S_ISDIR(st->st_mode) || !ObjectKey::parse(prefix + name).is_ok()) continue;
      // S3 has no empty directories, so we show none.
      bool empty = WFS_TRY(walk(prefix + name, call, [](const std::string&, const struct stat&) { return false; }));
      if (!empty) names.push_back(std::move(name));
    }
    return names;
  };
  return as_bucket_error(attempt()).with("list " + prefix);
}

Result<WallTime> DirBucket::server_time(const CallOptions& options) {
  WFS_TRY(Call(options).check());
  counters_.requests++;
  auto attempt = [&]() -> Result<WallTime> {
    auto root = WFS_TRY(open_root());
    auto name = kTemporary + random_id();
    auto fd = WFS_TRY(posix::open_at(root.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    auto st = posix::fstat(fd.get());
    posix::unlink_at(root.get(), name).ignore("a leftover that list() removes");
    return modified_of(WFS_TRY(std::move(st)));
  };
  return as_bucket_error(attempt()).with("the time of the filesystem");
}

}  // namespace weightfs
