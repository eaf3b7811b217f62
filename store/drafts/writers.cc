#include "store/drafts/writers.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <map>
#include <set>

#include "store/base/posix.h"
#include "store/base/threads.h"

namespace weightfs {
namespace {

// linux/pidfd.h of 6.15; the headers of our oldest system do not have it.
struct PidfdInfo {
  std::uint64_t mask, cgroup;
  std::uint32_t ids[11];
  std::int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr std::uint64_t kInfoExit = 1 << 3;

// "" when it cannot be read: gone, or hidden.
std::string read_proc(const std::string& path) {
  auto file = posix::open(path, O_RDONLY);
  if (!file) return {};
  std::string text(4096, '\0');
  auto length = ::read(file->get(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

// The text after "\nkey:" of a /proc/…/status, up to its line's end.
std::string_view field(std::string_view status, std::string_view key) {
  auto at = status.find(fmt::format("\n{}:", key));
  if (at == status.npos) return {};
  auto rest = status.substr(at + key.size() + 2);
  return rest.substr(0, rest.find('\n'));
}

std::string_view next_word(std::string_view& text) {
  auto start = text.find_first_not_of(" \t");
  if (start == text.npos) return text = {};
  text.remove_prefix(start);
  auto word = text.substr(0, text.find_first_of(" \t\n"));
  text.remove_prefix(word.size());
  return word;
}

template <typename T>
T number(std::string_view text, int base = 10) {
  T value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

// Of /proc/PID/stat.
struct Stat {
  std::string name;
  char state = 0;
  std::uint64_t start = 0;
  int exit_code = 0;
};
std::optional<Stat> read_stat(pid_t pid) {
  auto text = read_proc(fmt::format("/proc/{}/stat", pid));
  auto open = text.find('('), close = text.rfind(')');  // the name may hold both
  if (open == text.npos || close == text.npos || close < open) return std::nullopt;
  Stat out{.name = text.substr(open + 1, close - open - 1)};
  std::string_view rest = std::string_view(text).substr(close + 1);
  for (int index = 3; !rest.empty() && index <= 52; index++) {
    auto word = next_word(rest);
    if (index == 3 && !word.empty()) out.state = word[0];
    if (index == 22) out.start = number<std::uint64_t>(word);
    if (index == 52) out.exit_code = number<int>(word);
  }
  return out.start ? std::optional(out) : std::nullopt;
}

ProcessEnd from_wait_status(int status) {
  if (WIFSIGNALED(status)) return {ProcessEnd::How::kKilled, WTERMSIG(status)};
  return {ProcessEnd::How::kExited, WEXITSTATUS(status)};
}

// May we see the exit code of this process in /proc? (Where not, it reads as 0.)
bool may_see_exit_code(pid_t pid) {
  constexpr int kCapSysPtrace = 19;
  auto own = read_proc("/proc/self/status");
  auto caps = field(own, "CapEff");
  if (number<std::uint64_t>(next_word(caps), 16) >> kCapSysPtrace & 1) return true;
  auto theirs = read_proc(fmt::format("/proc/{}/status", pid));
  for (auto [key, id] : {std::pair("Uid", ::geteuid()), std::pair("Gid", ::getegid())}) {
    auto ids = field(theirs, key);
    for (int i = 0; i < 4; i++) {
      auto word = next_word(ids);
      if (word.empty() || number<unsigned>(word) != id) return false;
    }
  }
  return true;
}

std::optional<ProcessEnd> end_of_zombie(const ProcessId& process) {
  if (!may_see_exit_code(process.pid)) return std::nullopt;
  auto stat = read_stat(process.pid);
  if (!stat || stat->start != process.start || stat->state != 'Z') return std::nullopt;
  return from_wait_status(stat->exit_code);
}

class SystemWatcher final : public ProcessWatcher {
 public:
  SystemWatcher(Ended ended, Fd epoll, Fd stop)
      : ended_(std::move(ended)), epoll_(std::move(epoll)), stop_(std::move(stop)) {
    add(stop_.get(), 0);
    thread_ = start_thread("writers", [this](const std::stop_token&) { run(); });
  }
  ~SystemWatcher() override {
    std::uint64_t one = 1;
    WFS_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }

  std::optional<ProcessId> process_of(pid_t tid) override {
    if (tid <= 0) return std::nullopt;
    auto status = read_proc(fmt::format("/proc/{}/status", tid));
    auto tgid = field(status, "Tgid");
    auto pid = number<pid_t>(next_word(tgid));
    if (pid <= 0) return std::nullopt;
    auto stat = read_stat(pid);
    return stat ? std::optional(ProcessId{pid, stat->start}) : std::nullopt;
  }

  void watch(const ProcessId& process) override {
    {
      MutexLock lock(mutex_);
      if (!known_.insert(process).second) return;
    }
    auto fd = posix::pidfd_open(process.pid);
    auto stat = fd ? read_stat(process.pid) : std::nullopt;
    bool gone = fd ? !stat || stat->start != process.start : fd.code() == Code::kNotFound;
    if (gone || !fd) forget(process);
    if (gone) ended_(process, {}, "");
    if (gone || !fd) return;  // out of descriptors: its end stays unknown, the long settle time holds
    int raw = fd->get();
    std::uint64_t token;
    {
      MutexLock lock(mutex_);
      token = ++last_token_;
      watched_.emplace(token, Watched{process, std::move(*fd), stat->name});
    }
    if (!add(raw, token)) {
      MutexLock lock(mutex_);
      watched_.erase(token);
      known_.erase(process);
    }
  }

 private:
  struct Watched {
    ProcessId process;
    Fd fd;
    std::string name;
  };

  bool add(int fd, std::uint64_t token) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = token}};
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void forget(const ProcessId& process) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    known_.erase(process);
  }

  void run() {
    while (true) {
      epoll_event event;
      if (::epoll_wait(epoll_.get(), &event, 1, -1) < 1) continue;
      if (event.data.u64 == 0) return;
      on_event(event.data.u64, (event.events & EPOLLHUP) != 0);
    }
  }

  // A pidfd is readable from the process's end on, and hangs up when its parent has taken note (then, and only then,
  // the kernel tells how it ended; of a zombie /proc does).
  void on_event(std::uint64_t token, bool hung_up) EXCLUDES(mutex_) {
    int fd;
    ProcessId process;
    {
      MutexLock lock(mutex_);
      auto found = watched_.find(token);
      if (found == watched_.end()) return;
      fd = found->second.fd.get();  // only this thread erases what has been added
      process = found->second.process;
    }
    bool kernel_tells = false;
    auto end = end_by_pidfd(fd, kernel_tells);
    if (!end) end = end_of_zombie(process);
    if (!end) end = end_by_pidfd(fd, kernel_tells);  // the parent was faster
    if (!end && kernel_tells && !hung_up) {
      epoll_event event{.events = 0, .data = {.u64 = token}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
    }
    Watched done;
    {
      MutexLock lock(mutex_);
      auto node = watched_.extract(token);
      done = std::move(node.mapped());
      known_.erase(process);
    }
    ended_(done.process, end.value_or(ProcessEnd{}), done.name);
  }

  static std::optional<ProcessEnd> end_by_pidfd(int fd, bool& kernel_tells) {
    PidfdInfo info{.mask = kInfoExit};
    kernel_tells = ::ioctl(fd, kPidfdGetInfo, &info) == 0;
    if (!kernel_tells || !(info.mask & kInfoExit)) return std::nullopt;
    return from_wait_status(info.exit_code);
  }

  const Ended ended_;
  Fd epoll_, stop_;
  Mutex mutex_;
  std::set<ProcessId> known_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Watched> watched_ GUARDED_BY(mutex_);
  std::uint64_t last_token_ GUARDED_BY(mutex_) = 0;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<ProcessWatcher>> ProcessWatcher::start(Ended ended) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return from_errno(errno, "epoll_create1");
  Fd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return from_errno(errno, "eventfd");
  return std::unique_ptr<ProcessWatcher>(
      std::make_unique<SystemWatcher>(std::move(ended), std::move(epoll), std::move(stop)));
}

}  // namespace weightfs
