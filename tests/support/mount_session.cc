#include "tests/support/mount_session.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace weightfs {

MountSession::MountSession(Store& store, MountOptions options) : path_(dir_ / "mnt") {
  WFS_CHECK(posix::mkdir(path_, 0755).is_ok());
  if (char* real = ::realpath(path_.c_str(), nullptr)) {
    path_ = real;
    ::free(real);
  }
  int ends[2];
  WFS_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  watched_ = Fd(ends[1]);
  watcher_ = ::fork();
  if (watcher_ == 0) {
    ::close(ends[1]);
    char byte;
    while (::read(ends[0], &byte, 1) < 0) {
    }
    if (::umount2(path_.c_str(), MNT_DETACH) != 0 && ::geteuid() != 0) {
      ::execlp("fusermount3", "fusermount3", "-uzq", path_.c_str(), nullptr);
    }
    ::_exit(0);
  }
  ::close(ends[0]);
  options.mountpoint = path_;
  auto mount = Mount::start(std::move(options), store);
  if (!mount.is_ok()) {
    std::fprintf(stderr, "mount: %s\n", mount.status().to_string().c_str());
    std::abort();
  }
  mount_ = std::move(*mount);
}

MountSession::~MountSession() {
  mount_.reset();
  watched_ = Fd();
  ::waitpid(watcher_, nullptr, 0);
}

std::string run_shell(const std::string& command, int* status, const std::string& directory) {
  auto line = (directory.empty() ? "" : "cd '" + directory + "' && ") + "{ " + command + "\n} 2>&1";
  std::string output;
  FILE* pipe = ::popen(line.c_str(), "re");
  WFS_CHECK(pipe != nullptr);
  char buffer[4096];
  while (auto got = ::fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  int result = ::pclose(pipe);
  if (status != nullptr) *status = WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
  return output;
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; i++) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

}  // namespace weightfs
