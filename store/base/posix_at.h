// System calls relative to an open directory, so that a folder of ours is walked without following a link, and those
// that only a local store needs: locks, extents, free space. As in posix.h, errno becomes a Status here.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

#include "store/base/posix.h"

namespace weightfs::posix {

// A directory below `dir`, never through a symlink (kNotFound: missing; a link or a file there is an error).
Result<Fd> open_dir_at(int dir, const std::string& name);
// The same, made with `mode` when missing.
Result<Fd> make_dir_at(int dir, const std::string& name, mode_t mode = 0700);
Status rmdir_at(int dir, const std::string& name);
Status move_at(int from_dir, const std::string& from, int to_dir, const std::string& to);
Status change_owner_to_self(int fd);
// Another description of the same open file, with `flags`, also when its name is gone.
Result<Fd> reopen(int fd, int flags);
// Sum of st_size of all regular files below `dir`; saturates, never follows a link, skips what it cannot look at.
std::uint64_t tree_bytes(int dir, const std::string& name);

// Takes flock(LOCK_EX) without waiting. kBusy: somebody else has it.
Status lock_exclusive(int fd);

// Parts of the file that hold data, in order. A filesystem without such knowledge says all of it.
Result<std::vector<ByteRange>> data_extents(int fd, std::uint64_t size);

// Waits for nothing but says whether writing back this file's pages has failed since the last call (or open).
Status writeback_error(int fd);

struct DiskSpace {
  std::uint64_t total = 0, free = 0;  // free: to us
};
Result<DiskSpace> disk_space(int fd);

}  // namespace weightfs::posix
