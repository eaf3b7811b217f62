// A store mounted in this process on a directory of its own. Always unmounts: at its end, when a test throws, and, by a
// child that watches, when the process dies.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "fs/mount.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

class MountSession {
 public:
  // Aborts when the mount fails. `store` outlives this.
  explicit MountSession(Store& store, MountOptions options = {});
  ~MountSession();
  MountSession(const MountSession&) = delete;
  MountSession& operator=(const MountSession&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  Mount& mount() { return *mount_; }
  UnmountReport stop() { return mount_->stop(); }

 private:
  TempDir dir_;
  std::string path_;
  Fd watched_;  // its end tells the child that the process is gone
  pid_t watcher_ = 0;
  std::unique_ptr<Mount> mount_;
};

// Runs `program` (with shell) and returns what it wrote to both outputs. `status` gets the exit code, or 128 + signal.
std::string run_shell(const std::string& command, int* status = nullptr, const std::string& directory = "");

// Until `condition` holds; false after ten seconds. For what other threads do, not for time to pass.
bool eventually(const std::function<bool()>& condition);

}  // namespace weightfs
