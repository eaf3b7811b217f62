#include "fs/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace weightfs {
namespace {

// The child's word: one byte of exit code, then the message.
[[noreturn]] void wait_for_child(pid_t child, int from_child) {
  std::string word;
  char buffer[4096];
  while (true) {
    ssize_t got = ::read(from_child, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    word.append(buffer, static_cast<std::size_t>(got));
  }
  if (!word.empty()) {
    if (word.size() > 1) std::fprintf(stderr, "%s\n", word.c_str() + 1);
    ::_exit(static_cast<unsigned char>(word[0]));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "weightfs: the daemon was killed by signal %d before it was ready\n", WTERMSIG(status));
  } else {
    std::fprintf(stderr, "weightfs: the daemon ended with code %d before it was ready\n", WEXITSTATUS(status));
  }
  ::_exit(1);
}

}  // namespace

Result<Daemon> Daemon::start(bool foreground) {
  sigset_t stop;
  sigemptyset(&stop);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop, signal);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  if (foreground) return Daemon(Fd(), WFS_TRY(ConnectionGuard::start()));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return from_errno(errno, "pipe");
  Fd from_child(ends[0]), to_parent(ends[1]);
  std::fflush(nullptr);
  pid_t child = ::fork();
  if (child < 0) return from_errno(errno, "fork");
  if (child > 0) {
    to_parent = Fd();
    ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);  // Ctrl-C ends the waiting, not the daemon
    wait_for_child(child, from_child.get());
  }
  ::setsid();
  if (::chdir("/") != 0) return from_errno(errno, "chdir /");
  return Daemon(std::move(to_parent), WFS_TRY(ConnectionGuard::start()));
}

void Daemon::ready() {
  if (!starter_.valid()) return;
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null.valid()) {
    std::fflush(nullptr);
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
  }
  char code = 0;
  posix::write_exact(starter_.get(), as_bytes({&code, 1})).ignore("the starter may have been killed: the mount is up");
  starter_ = Fd();
}

void Daemon::guard(const std::string& mountpoint) {
  auto watched = guard_.watch(mountpoint);
  if (!watched) spdlog::warn("no guard ends the connection if this daemon is killed: {}", watched.message());
}

void Daemon::failed(int code, const std::string& message) {
  if (!starter_.valid()) {
    std::fprintf(stderr, "%s\n", message.c_str());
    return;
  }
  std::string word(1, static_cast<char>(code));
  word += message;
  posix::write_exact(starter_.get(), as_bytes(word)).ignore("nobody is there to be told");
  starter_ = Fd();
}

}  // namespace weightfs
