#include "store/base/posix.h"

#include <dirent.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "store/base/digest.h"

namespace weightfs {

Status from_errno(int error, std::string_view what) {
  auto code = [&] {
    switch (error) {
      case ENOENT:
      case ENOTDIR:
      case ENXIO:
      case ENODATA:
      case ESRCH:
        return Code::kNotFound;
      case EEXIST:
      case ENOTEMPTY:
        return Code::kExists;
      case EINVAL:
      case ENAMETOOLONG:
      case ELOOP:
      case EISDIR:
      case EFBIG:
      case EBADF:
        return Code::kInvalid;
      case EACCES:
      case EPERM:
        return Code::kPermission;
      case ENOSPC:
      case EDQUOT:
        return Code::kNoSpace;
      case EBUSY:
      case ETXTBSY:
      case EAGAIN:
        return Code::kBusy;
      case EROFS:
        return Code::kReadOnly;
      case EINTR:
        return Code::kInterrupted;
      case EOPNOTSUPP:
      case ENOSYS:
      case EXDEV:
        return Code::kUnsupported;
      case ETIMEDOUT:
      case ECONNRESET:
      case ECONNREFUSED:
      case EPIPE:
      case ESTALE:
      case ENOMEM:
      case EMFILE:
      case ENFILE:
        return Code::kUnavailable;
      default:
        return Code::kIo;
    }
  }();
  char buffer[128];
  return {code, std::string(what) + ": " + strerror_r(error, buffer, sizeof(buffer))};
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Status Fd::close() {
  if (fd_ < 0) return {};
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return from_errno(errno, "close");
  return {};
}

namespace posix {
namespace {

Status result_of(int outcome, const char* call, const std::string& path) {
  return outcome == 0 ? Status() : from_errno(errno, std::string(call) + " " + path);
}

}  // namespace

Result<Fd> open(const std::string& path, int flags, mode_t mode) { return open_at(AT_FDCWD, path, flags, mode); }

Result<Fd> open_at(int dir, const std::string& name, int flags, mode_t mode) {
  int fd;
  do {
    fd = ::openat(dir, name.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return from_errno(errno, "open " + name);
  return Fd(fd);
}

Status pread_exact(int fd, std::uint64_t offset, MutableByteSpan out) {
  while (!out.empty()) {
    ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return from_errno(errno, "read");
    if (got == 0) return {Code::kCorrupt, "the file ends early"};
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status pwrite_exact(int fd, std::uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty()) {
    ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return from_errno(errno, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Status write_exact(int fd, ByteSpan bytes) {
  while (!bytes.empty()) {
    ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return from_errno(errno, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Status fsync(int fd) { return result_of(::fsync(fd), "fsync", ""); }
Status fdatasync(int fd) { return result_of(::fdatasync(fd), "fdatasync", ""); }

Status fsync_dir(const std::string& dir) {
  auto fd = WFS_TRY(open(dir, O_RDONLY | O_DIRECTORY));
  return posix::fsync(fd.get()).with(dir);
}

Status fsync_parent(const std::string& path) {
  auto parent = std::filesystem::path(path).parent_path().string();
  return fsync_dir(parent.empty() ? "." : parent);
}

Status truncate(int fd, std::uint64_t size) {
  return result_of(::ftruncate(fd, static_cast<off_t>(size)), "truncate", "");
}

Result<struct stat> stat(const std::string& path) {
  struct stat st;
  WFS_TRY(result_of(::stat(path.c_str(), &st), "stat", path));
  return st;
}

Result<struct stat> lstat(const std::string& path) {
  struct stat st;
  WFS_TRY(result_of(::lstat(path.c_str(), &st), "stat", path));
  return st;
}

Result<struct stat> fstat(int fd) {
  struct stat st;
  WFS_TRY(result_of(::fstat(fd, &st), "fstat", ""));
  return st;
}

Result<bool> exists(const std::string& path) {
  auto st = posix::lstat(path);
  if (st.is_ok()) return true;
  if (st.code() == Code::kNotFound) return false;
  return std::move(st).status();
}

Status rename(const std::string& from, const std::string& to) {
  return result_of(::rename(from.c_str(), to.c_str()), "rename", from + " to " + to);
}
Status rename_noreplace(const std::string& from, const std::string& to) {
  return result_of(::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE), "rename",
                   from + " to " + to);
}
Status link(const std::string& from, const std::string& to) {
  return result_of(::link(from.c_str(), to.c_str()), "link", from + " to " + to);
}
Status unlink(const std::string& path) { return result_of(::unlink(path.c_str()), "unlink", path); }
Status unlink_if_there(const std::string& path) {
  auto status = posix::unlink(path);
  return status.code() == Code::kNotFound ? Status() : status;
}
Status rmdir(const std::string& path) { return result_of(::rmdir(path.c_str()), "rmdir", path); }
Status mkdir(const std::string& path, mode_t mode) { return result_of(::mkdir(path.c_str(), mode), "mkdir", path); }

Status make_dirs(const std::string& path, mode_t mode) {
  auto st = posix::stat(path);
  if (st.is_ok()) {
    return S_ISDIR(st->st_mode) ? Status() : Status(Code::kExists, path + " is there and not a directory");
  }
  auto parent = std::filesystem::path(path).parent_path().string();
  if (!parent.empty() && parent != path) WFS_TRY(make_dirs(parent, mode));
  auto status = posix::mkdir(path, mode);
  if (status.code() == Code::kExists) return {};  // somebody else was as quick
  return status;
}

namespace {

Status empty_dir(int dir_fd, const std::string& path) {
  Fd copy(::fcntl(dir_fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return from_errno(errno, "dup " + path);
  DIR* dir = ::fdopendir(copy.release());
  if (dir == nullptr) return from_errno(errno, "opendir " + path);
  Status status;
  while (status.is_ok()) {
    errno = 0;
    struct dirent* entry = ::readdir(dir);
    if (entry == nullptr) {
      if (errno != 0) status = from_errno(errno, "readdir " + path);
      break;
    }
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (::unlinkat(dir_fd, name.c_str(), 0) == 0 || errno == ENOENT) continue;
    if (errno != EISDIR && errno != EPERM) {
      status = from_errno(errno, "unlink " + path + "/" + name);
      break;
    }
    auto child = open_at(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!child.is_ok()) {
      if (::fchmodat(dir_fd, name.c_str(), 0700, 0) == 0)
        child = open_at(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    }
    if (!child.is_ok()) {
      status = std::move(child).status();
      break;
    }
    ::fchmod(child->get(), 0700);
    status = empty_dir(child->get(), path + "/" + name);
    if (status.is_ok() && ::unlinkat(dir_fd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
      status = from_errno(errno, "rmdir " + path + "/" + name);
    }
  }
  ::closedir(dir);
  return status;
}

}  // namespace

Status remove_tree(const std::string& path) {
  auto st = posix::lstat(path);
  if (!st.is_ok()) return st.code() == Code::kNotFound ? Status() : std::move(st).status();
  if (!S_ISDIR(st->st_mode)) return unlink_if_there(path);
  auto dir = WFS_TRY(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  ::fchmod(dir.get(), 0700);
  WFS_TRY(empty_dir(dir.get(), path));
  auto status = posix::rmdir(path);
  return status.code() == Code::kNotFound ? Status() : status;
}

Result<std::string> read_link(const std::string& path) {
  std::string target(4096, '\0');
  ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return from_errno(errno, "readlink " + path);
  target.resize(static_cast<std::size_t>(length));
  return target;
}

namespace {

// Closes `dir`. `path` is for messages.
Result<std::vector<std::string>> read_names(DIR* dir, const std::string& path) {
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    struct dirent* entry = ::readdir(dir);
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  int error = errno;
  ::closedir(dir);
  if (error != 0) return from_errno(error, "readdir " + path);
  return names;
}

}  // namespace

Result<std::vector<std::string>> list_dir(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return from_errno(errno, "opendir " + path);
  return read_names(dir, path);
}

Result<std::vector<std::string>> list_dir_at(int dir_fd) {
  auto fd = WFS_TRY(open_at(dir_fd, ".", O_RDONLY | O_DIRECTORY));
  DIR* dir = ::fdopendir(fd.get());
  if (dir == nullptr) return from_errno(errno, "fdopendir");
  fd.release();  // the DIR's now
  return read_names(dir, "directory");
}

Result<struct stat> lstat_at(int dir, const std::string& name) {
  struct stat st;
  WFS_TRY(result_of(::fstatat(dir, name.c_str(), &st, AT_SYMLINK_NOFOLLOW), "stat", name));
  return st;
}
Status link_at(int dir, const std::string& from, const std::string& to) {
  return result_of(::linkat(dir, from.c_str(), dir, to.c_str(), 0), "link", to);
}
Status rename_at(int dir, const std::string& from, const std::string& to) {
  return result_of(::renameat(dir, from.c_str(), dir, to.c_str()), "rename", to);
}
Status rename_noreplace_at(int dir, const std::string& from, const std::string& to) {
  auto status = result_of(::renameat2(dir, from.c_str(), dir, to.c_str(), RENAME_NOREPLACE), "rename", to);
  // EINVAL: the filesystem does not know the flag.
  if (status.code() == Code::kInvalid) return {Code::kUnsupported, status.message()};
  return status;
}
Status unlink_at(int dir, const std::string& name) {
  return result_of(::unlinkat(dir, name.c_str(), 0), "unlink", name);
}
Status mkdir_at(int dir, const std::string& name, mode_t mode) {
  return result_of(::mkdirat(dir, name.c_str(), mode), "mkdir", name);
}
Status set_mode(int fd, mode_t mode) { return result_of(::fchmod(fd, mode), "chmod", ""); }
Status set_group(int fd, gid_t group) { return result_of(::fchown(fd, static_cast<uid_t>(-1), group), "chgrp", ""); }

bool is_network_filesystem(int fd) {
  constexpr long kZfs = 0x2FC12FC1, kRamfs = RAMFS_MAGIC;
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0) return true;
  switch (static_cast<long>(fs.f_type)) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case kZfs:
    case kRamfs:
      return false;
    default:
      return true;
  }
}

Result<Bytes> read_file(const std::string& path, std::uint64_t limit) {
  auto fd = WFS_TRY(open(path, O_RDONLY));
  auto st = WFS_TRY(posix::fstat(fd.get()));
  auto size = static_cast<std::uint64_t>(st.st_size);
  if (size > limit) return Status(Code::kInvalid, path + " is longer than " + std::to_string(limit) + " bytes");
  // To its end, whatever stat says: files of /proc have size 0 there.
  Bytes bytes(size + 1);
  std::size_t at = 0;
  while (true) {
    ssize_t got = ::pread(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return from_errno(errno, path);
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
    if (at > limit) return Status(Code::kInvalid, path + " is longer than " + std::to_string(limit) + " bytes");
    if (at == bytes.size()) bytes.resize(std::min<std::uint64_t>(2 * at + 511, limit) + 1);
  }
  bytes.resize(at);
  return bytes;
}

Status write_file_durably(const std::string& path, ByteSpan bytes, mode_t mode) {
  auto temporary = path + ".tmp" + random_id().substr(0, 8);
  auto attempt = [&]() -> Status {
    auto fd = WFS_TRY(open(temporary, O_WRONLY | O_CREAT | O_EXCL, mode));
    WFS_TRY(write_exact(fd.get(), bytes).with(temporary));
    WFS_TRY(posix::fsync(fd.get()).with(temporary));
    WFS_TRY(fd.close());
    WFS_TRY(posix::rename(temporary, path));
    return fsync_parent(path);
  };
  auto status = attempt();
  if (!status.is_ok()) unlink_if_there(temporary).ignore("the write's own error is the one to report");
  return status;
}

Result<Fd> pidfd_open(pid_t pid) {
  int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));  // close-on-exec by itself
  if (fd < 0) return from_errno(errno, "pidfd_open " + std::to_string(pid));
  return Fd(fd);
}

Status copy_file(const std::string& from, const std::string& to, mode_t mode) {
  auto in = WFS_TRY(open(from, O_RDONLY));
  auto out = WFS_TRY(open(to, O_WRONLY | O_CREAT | O_EXCL, mode));
  std::uint64_t at = 0;
  while (true) {
    auto copied = ::copy_file_range(in.get(), nullptr, out.get(), nullptr, std::size_t{1} << 30, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) break;  // not between these filesystems: by hand
    if (copied == 0) return out.close().with(to);
    at += static_cast<std::uint64_t>(copied);
  }
  Bytes buffer(1 << 20);
  while (true) {
    auto got = ::pread(in.get(), buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return from_errno(errno, "read " + from);
    if (got == 0) return out.close().with(to);
    WFS_TRY(pwrite_exact(out.get(), at, ByteSpan(buffer).first(static_cast<std::size_t>(got))).with(to));
    at += static_cast<std::uint64_t>(got);
  }
}

Result<std::string> boot_id() {
  auto fd = WFS_TRY(open("/proc/sys/kernel/random/boot_id", O_RDONLY));
  char buffer[64];
  ssize_t length = ::read(fd.get(), buffer, sizeof(buffer));
  if (length < 0) return from_errno(errno, "read boot_id");
  std::string id(buffer, static_cast<std::size_t>(length));
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

}  // namespace posix
}  // namespace weightfs
