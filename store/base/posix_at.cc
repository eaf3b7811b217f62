#include "store/base/posix_at.h"

#include <stdio.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace weightfs::posix {
namespace {

Status result_of(int outcome, const char* call, const std::string& name) {
  return outcome == 0 ? Status() : from_errno(errno, std::string(call) + " " + name);
}

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

constexpr int kMaxDepth = 128;  // of a folder we walk: a descriptor is open for each level

std::uint64_t tree_bytes_below(int dir, const std::string& name, int depth) {
  auto folder = open_dir_at(dir, name);
  if (!folder.is_ok() || depth > kMaxDepth) return 0;
  auto names = list_dir_at(folder->get());
  if (!names.is_ok()) return 0;
  std::uint64_t sum = 0;
  for (const auto& entry : *names) {
    auto st = lstat_at(folder->get(), entry);
    if (!st.is_ok()) continue;
    if (S_ISREG(st->st_mode)) sum = saturating_add(sum, static_cast<std::uint64_t>(st->st_size));
    if (S_ISDIR(st->st_mode)) sum = saturating_add(sum, tree_bytes_below(folder->get(), entry, depth + 1));
  }
  return sum;
}

}  // namespace

Result<Fd> open_dir_at(int dir, const std::string& name) {
  return open_at(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

Result<Fd> make_dir_at(int dir, const std::string& name, mode_t mode) {
  if (::mkdirat(dir, name.c_str(), mode) != 0 && errno != EEXIST) return from_errno(errno, "mkdir " + name);
  return open_dir_at(dir, name);
}

Status rmdir_at(int dir, const std::string& name) {
  return result_of(::unlinkat(dir, name.c_str(), AT_REMOVEDIR), "rmdir", name);
}
Status move_at(int from_dir, const std::string& from, int to_dir, const std::string& to) {
  return result_of(::renameat(from_dir, from.c_str(), to_dir, to.c_str()), "rename", from + " to " + to);
}

Status change_owner_to_self(int fd) { return result_of(::fchown(fd, ::geteuid(), ::getegid()), "chown", ""); }

Result<Fd> reopen(int fd, int flags) { return posix::open("/proc/self/fd/" + std::to_string(fd), flags); }

std::uint64_t tree_bytes(int dir, const std::string& name) { return tree_bytes_below(dir, name, 0); }

Status lock_exclusive(int fd) {
  int outcome;
  do {
    outcome = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (outcome != 0 && errno == EINTR);
  return result_of(outcome, "lock", "");
}

Result<std::vector<ByteRange>> data_extents(int fd, std::uint64_t size) {
  std::vector<ByteRange> extents;
  std::uint64_t at = 0;
  while (at < size) {
    off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // only a hole is left
    if (data < 0 && errno == EINVAL) return std::vector<ByteRange>{{0, size}};
    if (data < 0) return from_errno(errno, "seek");
    off_t hole = ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return from_errno(errno, "seek");
    auto begin = std::max<std::uint64_t>(at, static_cast<std::uint64_t>(data));
    auto end = std::min<std::uint64_t>(size, static_cast<std::uint64_t>(hole));
    if (end <= begin) break;
    extents.push_back({begin, end - begin});
    at = end;
  }
  return extents;
}

Status writeback_error(int fd) {
  // Waits for the first page alone, then reports the whole file's error (file_check_and_advance_wb_err).
  int outcome = ::sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WAIT_BEFORE);
  if (outcome != 0 && (errno == ESPIPE || errno == ENOSYS || errno == EINVAL)) return {};
  return result_of(outcome, "write back", "");
}

Result<DiskSpace> disk_space(int fd) {
  struct statvfs st;
  WFS_TRY(result_of(::fstatvfs(fd, &st), "statvfs", ""));
  return DiskSpace{static_cast<std::uint64_t>(st.f_blocks) * st.f_frsize,
                   static_cast<std::uint64_t>(st.f_bavail) * st.f_frsize};
}

}  // namespace weightfs::posix
