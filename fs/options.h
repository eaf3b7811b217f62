// How a mounted filesystem behaves; MountOptions (mount.h) has how it is mounted.
#pragma once

#include <sys/types.h>

namespace weightfs {

struct FsOptions {
  bool read_only = false;     // no drafts
  bool allow_other = false;   // other users may come; the kernel then checks modes (default_permissions)
  bool allow_remove = false;  // unlinks in committed versions are whiteouts until the version's rmdir
  uid_t uid = 0;              // who mounted: owns what is committed
  gid_t gid = 0;
  bool may_chown = false;  // the daemon is root: what other users make in drafts is theirs
};

// Bytes of one READ or WRITE: as much as the kernel does at once.
inline constexpr unsigned kMaxTransfer = 1 << 20;

// Seconds that the kernel may keep what it was told.
inline constexpr double kForever = 365.0 * 86400;
inline constexpr double kNotCached = 0;
inline constexpr double kVersionName = 30;  // a version's name: it can be removed and published again elsewhere
inline constexpr double kDraftFor = 1;  // names and attributes in drafts: only a commit changes them behind the kernel
inline constexpr double kGrowing = 1;   // attributes of a file whose st_blocks still grow

}  // namespace weightfs
