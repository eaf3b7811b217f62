#include "fs/caller.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string>

#include "store/base/posix.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kPfIoWorker = 0x10;      // io_uring's helpers read for a ring, they do not fault
constexpr std::uint64_t kPfUserWorker = 0x4000;  // the same since 6.4

std::optional<std::string> proc_file(pid_t tid, const char* name) {
  if (tid <= 0) return std::nullopt;
  auto path = "/proc/" + std::to_string(tid) + "/" + name;
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  char buffer[16384];
  while (true) {
    ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

template <typename T>
T number(std::string_view text, int base) {
  T value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

std::string_view field(std::string_view status, std::string_view label) {
  auto at = status.find(label);
  if (at == status.npos) return {};
  auto value = status.substr(at + label.size());
  value = value.substr(0, value.find('\n'));
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  return value;
}

constexpr std::uint64_t bit(int signal) { return std::uint64_t{1} << (signal - 1); }

}  // namespace

namespace internal {

bool syscall_is_page_fault(std::string_view syscall_text, std::uint64_t task_flags) {
  if ((task_flags & (kPfIoWorker | kPfUserWorker)) != 0) return false;
  return syscall_text.starts_with("-1 ");
}

std::uint64_t task_flags(std::string_view stat_text) {
  auto at = stat_text.rfind(')');  // the name may hold anything, also ')'
  if (at == stat_text.npos) return 0;
  // after "(name)": state ppid pgrp session tty tpgid flags
  std::string_view rest = stat_text.substr(at + 1);
  for (int i = 0; i < 7; i++) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    if (i == 6) return number<std::uint64_t>(rest, 10);
    rest.remove_prefix(std::min(rest.find(' '), rest.size()));
  }
  return 0;
}

PendingSignal pending_signal(std::string_view status_text) {
  auto mask = [&](std::string_view label) { return number<std::uint64_t>(field(status_text, label), 16); };
  auto pending = mask("SigPnd:") | mask("ShdPnd:");
  if ((pending & bit(SIGKILL)) != 0) return PendingSignal::kFatal;
  auto caught = mask("SigCgt:"), open = pending & ~mask("SigBlk:") & ~mask("SigIgn:");
  // By default these end nothing.
  constexpr std::uint64_t kHarmless = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT) | bit(SIGSTOP) |
                                      bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
  if ((open & ~caught & ~kHarmless) != 0) return PendingSignal::kFatal;
  if ((open & caught & (bit(SIGINT) | bit(SIGTERM) | bit(SIGHUP) | bit(SIGQUIT))) != 0) return PendingSignal::kPerson;
  return PendingSignal::kNone;
}

bool maps_file(std::string_view maps_text, dev_t dev, std::uint64_t inode) {
  while (!maps_text.empty()) {
    auto line = maps_text.substr(0, maps_text.find('\n'));
    maps_text.remove_prefix(std::min(line.size() + 1, maps_text.size()));
    // address perms offset maj:min inode path
    for (int i = 0; i < 3; i++) {
      line.remove_prefix(std::min(line.find(' '), line.size()));
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    }
    auto colon = line.find(':'), space = line.find(' ');
    if (colon == line.npos || space == line.npos || colon > space) continue;
    if (number<unsigned>(line.substr(0, colon), 16) != major(dev)) continue;
    if (number<unsigned>(line.substr(colon + 1, space - colon - 1), 16) != minor(dev)) continue;
    if (number<std::uint64_t>(line.substr(space + 1), 10) == inode) return true;
  }
  return false;
}

}  // namespace internal

bool waits_in_page_fault(pid_t tid, dev_t dev, std::uint64_t inode) {
  auto syscall = proc_file(tid, "syscall");
  if (syscall) {
    auto stat = proc_file(tid, "stat");
    return internal::syscall_is_page_fault(*syscall, stat ? internal::task_flags(*stat) : 0);
  }
  auto maps = proc_file(tid, "maps");
  return maps && internal::maps_file(*maps, dev, inode);
}

// Not by the flags in /proc/TID/stat: that waits for the end of an execve, which waits for our answer when it closes a
// file (O_CLOEXEC) here. /proc/TID/status waits for nobody. A dying thread gives its memory up before its files.
bool is_exiting(pid_t tid) {
  auto status = proc_file(tid, "status");
  return status && status->find("\nVmSize:") == status->npos;
}

PendingSignal pending_signal(pid_t tid) {
  auto status = proc_file(tid, "status");
  return status ? internal::pending_signal(*status) : PendingSignal::kFatal;
}

}  // namespace weightfs
