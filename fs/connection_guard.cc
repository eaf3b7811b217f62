#include "fs/connection_guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>

#include "fs/mount_table.h"

namespace weightfs {
namespace {

constexpr int kParentEnded = SIGUSR1;
constexpr int kThreadsEnd = 500;  // milliseconds that the threads of a killed process get to end by themselves

// What the guard does; it never returns. Its fork was made before any thread, so it may use the heap.
class Guard {
 public:
  Guard(Fd from_daemon, pid_t daemon, std::string connections)
      : from_daemon_(std::move(from_daemon)), daemon_(daemon), connections_(std::move(connections)) {}

  [[noreturn]] void run() {
    leave();
    while (true) {
      pollfd fds[2] = {{from_daemon_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;  // EINTR: of a stop and continue
      if (fds[0].revents != 0) listen();
      signalfd_siginfo info;
      bool told = fds[1].revents != 0 && ::read(signals_.get(), &info, sizeof(info)) == sizeof(info);
      if (!told) continue;
      pollfd end{from_daemon_.get(), POLLIN, 0};
      while (::poll(&end, 1, kThreadsEnd) > 0) listen();
      if (!main_thread_ended()) continue;  // somebody else sent the signal
      abort_connection();
      ::_exit(0);
    }
  }

 private:
  // A process of its own: no signal of a terminal or a service manager but SIGKILL ends it before the daemon.
  void leave() {
    sigset_t all, one;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    sigemptyset(&one);
    sigaddset(&one, kParentEnded);
    signals_ = Fd(::signalfd(-1, &one, SFD_CLOEXEC));
    ::prctl(PR_SET_NAME, "wfs-guard");  // not found by pkill weightfs
    if (!signals_.valid() || ::prctl(PR_SET_PDEATHSIG, kParentEnded) != 0 || ::getppid() != daemon_) ::_exit(1);
    ::setsid();
    Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      if (!null.valid() || ::dup2(null.get(), fd) < 0) ::close(fd);  // whoever reads its end of file waits for it
    }
    (void)!::chdir("/");
    unsigned int first = STDERR_FILENO + 1;
    for (unsigned int keep : kept()) {
      if (keep > first) ::close_range(first, keep - 1, 0);
      first = keep + 1;
    }
    ::close_range(first, UINT_MAX, 0);
  }

  std::vector<unsigned int> kept() const {
    auto one = static_cast<unsigned int>(from_daemon_.get()), other = static_cast<unsigned int>(signals_.get());
    return {std::min(one, other), std::max(one, other)};
  }

  // The mount to watch, or the end of file.
  void listen() {
    char buffer[4096];
    ssize_t got = ::read(from_daemon_.get(), buffer, sizeof(buffer));
    if (got == 0) ::_exit(0);
    if (got > 0) word_.append(buffer, static_cast<std::size_t>(got));
  }

  // "pid (name) state …" in proc(5); the state of a process is its main thread's.
  bool main_thread_ended() const {
    if (::getppid() != daemon_) return true;
    auto stat = posix::read_file("/proc/" + std::to_string(daemon_) + "/stat", 4096);
    if (!stat) return false;
    std::string text(reinterpret_cast<const char*>(stat->data()), stat->size());
    auto state = text.rfind(") ");
    return state != text.npos && state + 2 < text.size() && (text[state + 2] == 'Z' || text[state + 2] == 'X');
  }

  void abort_connection() {
    auto space = word_.find(' ');
    if (space == word_.npos || word_.back() != '\0') return;  // nothing was mounted yet
    auto device = word_.substr(0, space), mountpoint = word_.substr(space + 1, word_.size() - space - 2);
    auto there = mount_at(mountpoint);  // the number may be another filesystem's by now
    if (!there || there->type != "fuse.weightfs" || there->device != device) return;
    auto minor = device.substr(device.find(':') + 1);
    Fd abort(::open((connections_ + "/" + minor + "/abort").c_str(), O_WRONLY | O_CLOEXEC));
    if (abort.valid() && ::write(abort.get(), "1", 1) == 1) return;
    // Held open, so that the mount stays: who comes next must see that something is wrong there.
    Fd held(::open(mountpoint.c_str(), O_PATH | O_CLOEXEC));
    ::umount2(mountpoint.c_str(), MNT_FORCE | UMOUNT_NOFOLLOW);
  }

  Fd from_daemon_, signals_;
  pid_t daemon_;
  std::string connections_;
  std::string word_;  // "0:52 /mnt/models\0"
};

}  // namespace

Result<ConnectionGuard> ConnectionGuard::start(std::string connections) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return from_errno(errno, "pipe");
  Fd from_daemon(ends[0]), to_guard(ends[1]);
  pid_t daemon = ::getpid();
  std::fflush(nullptr);
  pid_t pid = ::fork();
  if (pid < 0) return from_errno(errno, "fork");
  if (pid == 0) {
    to_guard = Fd();
    Guard(std::move(from_daemon), daemon, std::move(connections)).run();
  }
  return ConnectionGuard(std::move(to_guard), pid);
}

Status ConnectionGuard::watch(const std::string& mountpoint) {
  auto entry = mount_at(mountpoint);
  if (!entry) return {Code::kNotFound, mountpoint + " is not mounted"};
  return posix::write_exact(to_guard_.get(), as_bytes(entry->device + ' ' + mountpoint + '\0'));
}

ConnectionGuard::~ConnectionGuard() {
  if (pid_ < 0) return;
  to_guard_ = Fd();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace weightfs
