// The mounts of this machine, as the kernel lists them.
#pragma once

#include <string>
#include <vector>

#include "store/base/status.h"

namespace weightfs::tools {

struct MountPoint {
  std::string dir;
  std::string source;  // the bucket's URL
};

// Every weightfs mount this process can see.
Result<std::vector<MountPoint>> list_mounts();

// Is `path` the top of one of them? Does not touch the filesystem there, which may hang.
bool is_mount(const std::string& path);

// The mount that `path` is in (a file of it need not exist). kInvalid: in none.
Result<MountPoint> mount_of(const std::string& path);

// user.weightfs.state of a directory in a mount: "committed", "draft: …". kNotFound: there is no such directory.
Result<std::string> version_state(const std::string& path);

}  // namespace weightfs::tools
