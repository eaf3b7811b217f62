// What is mounted where, as /proc/self/mountinfo tells, and who keeps a mount busy.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/status.h"

namespace weightfs {

struct MountEntry {
  std::string mountpoint;
  std::string device;  // "0:52"
  std::string type;    // "fuse.weightfs"
  std::string source;
};

std::vector<MountEntry> parse_mountinfo(std::string_view text);
Result<std::vector<MountEntry>> mounted();
// The mount on exactly this directory (the topmost one).
std::optional<MountEntry> mount_at(const std::string& mountpoint);
// The weightfs mount that `path` is in, and the path below it. Asks nothing of the mount itself.
std::optional<std::pair<MountEntry, std::string>> mount_of(const std::string& path);

dev_t device_number(const MountEntry& entry);

struct BusyProcess {
  pid_t pid = 0;
  std::string name;
  std::string what;  // "cwd", "fd 7: /mnt/m/x", "map: …"
};
// Processes with an open file, a map or a directory below the mount point; those that may not be looked at are missing.
std::vector<BusyProcess> busy_processes(const std::string& mountpoint);

// umount(2), or fusermount3 for who is not root. kBusy: something is open there.
Status unmount(const std::string& mountpoint, bool lazy);

// Whether the mount there is one whose daemon is gone (its directory answers ENOTCONN).
bool is_dead_mount(const std::string& mountpoint);

}  // namespace weightfs
