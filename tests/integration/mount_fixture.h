// What the tests of the mounted filesystem share: a store in memory, mounted, and system calls on it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/fake_store.h"
#include "tests/support/mount_session.h"
#include "tests/support/status_matchers.h"

namespace weightfs {

inline std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; i++) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

// errno of a call that must fail.
#define EXPECT_ERRNO(expression, error)                                     \
  do {                                                                      \
    errno = 0;                                                              \
    EXPECT_LT((expression), 0) << #expression;                              \
    EXPECT_EQ(errno, error) << #expression << ": " << std::strerror(errno); \
  } while (false)

class MountTest : public testing::Test {
 protected:
  void start(MountOptions options = {}) { session_ = std::make_unique<MountSession>(store_, std::move(options)); }
  std::string at(std::string_view name) const { return *session_ / name; }
  static std::string read_all(const std::string& path) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return "cannot open: " + std::string(std::strerror(errno));
    std::string bytes;
    char buffer[70000];
    while (true) {
      ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
      if (got < 0) return "cannot read: " + std::string(std::strerror(errno));
      if (got == 0) return bytes;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
  }
  static void write_all(const std::string& path, std::string_view bytes) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    ASSERT_TRUE(fd.valid()) << path << ": " << std::strerror(errno);
    ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  static std::vector<std::string> names(const std::string& path) {
    auto listed = posix::list_dir(path);
    if (!listed.is_ok()) return {listed.status().to_string()};
    std::sort(listed->begin(), listed->end());
    return *listed;
  }
  static std::string xattr(const std::string& path, const std::string& name) {
    char value[1024];
    ssize_t length = ::lgetxattr(path.c_str(), ("user.weightfs." + name).c_str(), value, sizeof(value));
    return length < 0 ? std::strerror(errno) : std::string(value, static_cast<std::size_t>(length));
  }
  bool told(const std::string& what) const {
    auto all = store_.told();
    return std::find(all.begin(), all.end(), what) != all.end();
  }
  // Runs `body` in a child, which must not use the heap of this process' threads: plain system calls.
  template <typename Body>
  static pid_t child(Body body) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      ::_exit(body());
    }
    return pid;
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  FakeStore store_;
  std::unique_ptr<MountSession> session_;
};

}  // namespace weightfs
