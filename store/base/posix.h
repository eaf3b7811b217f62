// System calls whose errno becomes a Status, here and nowhere else. Messages name the path.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"

namespace weightfs {

// The Status of `error` (an errno value) for the operation `what`, e.g. "open /x/y".
Status from_errno(int error, std::string_view what);

// A file descriptor that closes itself. Use close() where the close can fail and matters.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  Status close();

 private:
  int fd_ = -1;
};

namespace posix {

Result<Fd> open(const std::string& path, int flags, mode_t mode = 0600);  // adds O_CLOEXEC
Result<Fd> open_at(int dir, const std::string& name, int flags, mode_t mode = 0600);
// kCorrupt when the file ends before `out` is full.
Status pread_exact(int fd, std::uint64_t offset, MutableByteSpan out);
Status pwrite_exact(int fd, std::uint64_t offset, ByteSpan bytes);
Status write_exact(int fd, ByteSpan bytes);
Status fsync(int fd);
Status fdatasync(int fd);
Status fsync_dir(const std::string& dir);
Status fsync_parent(const std::string& path);
Status truncate(int fd, std::uint64_t size);
Result<struct stat> stat(const std::string& path);  // follows links
Result<struct stat> lstat(const std::string& path);
Result<struct stat> fstat(int fd);
Result<bool> exists(const std::string& path);  // lstat; false only on ENOENT or ENOTDIR
Status rename(const std::string& from, const std::string& to);
Status rename_noreplace(const std::string& from, const std::string& to);  // kExists when `to` is there
Status link(const std::string& from, const std::string& to);
Status unlink(const std::string& path);
Status unlink_if_there(const std::string& path);
Status rmdir(const std::string& path);
Status mkdir(const std::string& path, mode_t mode = 0700);
Status make_dirs(const std::string& path, mode_t mode = 0700);  // OK where it is there already as a directory
Status remove_tree(const std::string& path);                    // never follows a link; OK when nothing is there
Result<std::string> read_link(const std::string& path);
Result<std::vector<std::string>> list_dir(const std::string& path);  // names without "." and "..", in no order

// The same relative to an open directory; none follows a link in the last component.
Result<struct stat> lstat_at(int dir, const std::string& name);
Status link_at(int dir, const std::string& from, const std::string& to);
Status rename_at(int dir, const std::string& from, const std::string& to);
// kUnsupported where the filesystem cannot.
Status rename_noreplace_at(int dir, const std::string& from, const std::string& to);
Status unlink_at(int dir, const std::string& name);
Status mkdir_at(int dir, const std::string& name, mode_t mode = 0700);
Result<std::vector<std::string>> list_dir_at(int dir);  // through a new open of the directory
Status set_mode(int fd, mode_t mode);
Status set_group(int fd, gid_t group);
// False for the usual local filesystems. True means that other hosts may change it, and names may be cached (NFS, SMB,
// FUSE, Lustre, what we do not know).
bool is_network_filesystem(int fd);

// All of a file of at most `limit` bytes; kInvalid when it is longer.
Result<Bytes> read_file(const std::string& path, std::uint64_t limit);
// Writes a temporary sibling, fsyncs it, renames it over `path`, fsyncs the directory.
Status write_file_durably(const std::string& path, ByteSpan bytes, mode_t mode = 0600);
// A descriptor of the process, readable when it has ended. kNotFound: there is none.
Result<Fd> pidfd_open(pid_t pid);
// A new file (kExists otherwise) with the same bytes; by reflink or in the kernel where the filesystem can.
Status copy_file(const std::string& from, const std::string& to, mode_t mode = 0600);
// Changes at each boot of the machine.
Result<std::string> boot_id();
std::string absolute(const std::string& path);  // lexically; does not resolve links

}  // namespace posix
}  // namespace weightfs
