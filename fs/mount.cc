#include "fs/mount.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <set>

#include "store/base/threads.h"
#include "store/gc.h"

namespace weightfs {
namespace {

constexpr auto kInitPatience = std::chrono::seconds(15);
constexpr auto kEndPatience = std::chrono::seconds(15);
// Each keeps a buffer for one answer; requests that wait for the network hold none.
constexpr unsigned kWorkers = 32, kIdleWorkers = 8, kFewWorkers = 6;
constexpr std::uint64_t kLittleMemory = 256 << 20;

SteadyTime in(Duration duration) { return std::chrono::steady_clock::now() + duration; }

// Inodes of drafts and cached files hold descriptors.
std::size_t raise_descriptor_limit() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return std::min<std::size_t>(limit.rlim_cur, 1 << 20);
}

// A comma or backslash in a value would begin another option.
std::string escaped(const std::string& value) {
  std::string out;
  for (char c : value) {
    if (c == ',' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

// 0 where /proc does not tell.
std::uint64_t resident_bytes() {
  auto bytes = posix::read_file("/proc/self/statm", 4096);
  if (!bytes) return 0;
  const std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  unsigned long long size = 0, resident = 0;  // in pages
  if (std::sscanf(text.c_str(), "%llu %llu", &size, &resident) != 2) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// As mountinfo has it.
std::string real_path(const std::string& path) {
  auto absolute = posix::absolute(path);
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  if (char* real = ::realpath(absolute.c_str(), nullptr)) {
    absolute = real;
    ::free(real);
  }
  return absolute;
}

Status check_mountpoint(const std::string& path) {
  if (is_dead_mount(path)) {
    auto there = mount_at(path);
    if (!there || there->type != "fuse.weightfs") {
      return {Code::kBusy, path + ": a mount without its daemon is here: fusermount3 -u " + path};
    }
    spdlog::warn("{}: the last mount's daemon is gone; clearing it away", path);
    WFS_TRY(unmount(path, true));
  }
  auto stated = posix::stat(path);
  if (stated.code() == Code::kNotFound) return {Code::kNotFound, path + " is not there; make the directory first"};
  auto st = WFS_TRY(std::move(stated));
  if (!S_ISDIR(st.st_mode)) return {Code::kInvalid, path + " is not a directory; name one to mount on"};
  auto there = mount_at(path);
  if (there && there->type == "fuse.weightfs") {
    return {Code::kBusy,
            path + ": " + there->source + " is mounted here already; `weightfs umount " + path + "` ends it"};
  }
  return {};
}

}  // namespace

Mount::Mount(MountOptions options, Store& store) : options_(std::move(options)), store_(store) {}

Status Mount::check(const std::string& mountpoint) { return check_mountpoint(real_path(mountpoint)); }

Result<std::unique_ptr<Mount>> Mount::start(MountOptions options, Store& store) {
  options.mountpoint = real_path(options.mountpoint);
  if (options.control_socket.empty()) options.control_socket = store.cache().dir() + "/control.sock";
  std::unique_ptr<Mount> mount(new Mount(std::move(options), store));
  WFS_TRY(mount->begin());
  return mount;
}

Status Mount::begin() {
  WFS_TRY(check_mountpoint(options_.mountpoint));
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return from_errno(errno, "eventfd");
  ::umask(0);  // the kernel has applied the writer's to the modes it sends
  FsOptions fs;
  fs.read_only = options_.read_only;
  fs.allow_other = options_.allow_other;
  fs.allow_remove = options_.allow_remove;
  fs.uid = ::geteuid();
  fs.gid = ::getegid();
  fs.may_chown = ::geteuid() == 0;
  auto remove = options_.remove_version;
  if (!remove) {
    remove = [this](const VersionRef& version, const CallOptions& call) {
      return weightfs::remove_version(store_, version, call);
    };
  }
  dispatch_ = std::make_unique<Dispatch>(store_, fs, data_, notifier_, options_.control_socket,
                                         raise_descriptor_limit() / 2, std::move(remove));
  data_.dispatch = dispatch_.get();
  dispatch_->set_on_init([this] {
    MutexLock lock(mutex_);
    initialized_ = true;
    changed_.notify_all();
  });
  store_.set_listener(&dispatch_->follower());
  WFS_TRY(mount_session());
  notifier_.start(session_);
  session_thread_ = start_thread("fs-session", [this](const std::stop_token&) { serve(); });
  {
    auto deadline = in(kInitPatience);
    MutexLock lock(mutex_);
    while (!initialized_ && !ended_) {
      if (!changed_.wait_until(mutex_, deadline)) break;
    }
    // libfuse says so before it answers; what was granted is known after that.
    while (initialized_ && !ended_ && !data_.channel.answered() && std::chrono::steady_clock::now() < deadline) {
      changed_.wait_until(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    }
    if (!initialized_) return {Code::kUnavailable, options_.mountpoint + ": the kernel does not answer the mount"};
  }
  if (auto entry = mount_at(options_.mountpoint)) dispatch_->reads().set_device(device_number(*entry));
  set_read_ahead();
  dispatch_->reads().passthrough().start(fuse_session_fd(session_), data_.channel.passthrough(),
                                         ::geteuid() == 0 ? "the kernel has none (before Linux 6.9)" : "only root may");
  control_ = WFS_TRY(ControlServer::start(options_.control_socket, *this, store_));
  spdlog::info("mount {} on {}{}", store_.bucket().url(), options_.mountpoint, options_.read_only ? " read-only" : "");
  return {};
}

Status Mount::mount_session() {
  std::string list =
      "fsname=" + escaped(options_.fsname) + ",subtype=weightfs,max_read=" + std::to_string(kMaxTransfer);
  if (options_.read_only) list += ",ro";
  // With other users the kernel must check modes. Without, the mount is its owner's, and a change in a version is
  // answered "read-only" instead of "no permission".
  if (options_.allow_other) list += ",allow_other,default_permissions";
  for (const auto& option : options_.fuse) list += "," + option;
  fuse_args args = FUSE_ARGS_INIT(0, nullptr);
  fuse_opt_add_arg(&args, "weightfs");
  fuse_opt_add_arg(&args, "-o");
  fuse_opt_add_arg(&args, list.c_str());
  session_ = fuse_session_new(&args, &Dispatch::operations(), sizeof(fuse_lowlevel_ops), &data_);
  fuse_opt_free_args(&args);
  if (session_ == nullptr) return {Code::kInvalid, "mount options not understood: " + list};
  errno = 0;
  if (fuse_session_mount(session_, options_.mountpoint.c_str()) != 0) {
    int error = errno;
    if (::access("/dev/fuse", R_OK | W_OK) != 0) {
      return {Code::kPermission, "/dev/fuse may not be opened: load the fuse module, or as root: chmod 666 /dev/fuse"};
    }
    if (options_.allow_other && ::geteuid() != 0) {
      return {Code::kPermission,
              "fusermount3 refused to mount on " + options_.mountpoint +
                  ": with --allow-other /etc/fuse.conf must have user_allow_other, and the directory must be yours"};
    }
    if (error != 0) return from_errno(error, "mount on " + options_.mountpoint);
    return {Code::kPermission,
            "fusermount3 refused to mount on " + options_.mountpoint + ": the directory must be yours"};
  }
  mounted_ = true;
  return data_.channel.take_over(session_, ::geteuid() == 0);
}

void Mount::serve() {
  auto* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(config, 1);  // a queue for each worker's answers
  bool little = store_.options().memory < kLittleMemory;
  fuse_loop_cfg_set_max_threads(config, little ? kFewWorkers : kWorkers);
  fuse_loop_cfg_set_idle_threads(config, little ? kFewWorkers : kIdleWorkers);
  int result = fuse_session_loop_mt(session_, config);
  fuse_loop_cfg_destroy(config);
  if (result < 0) spdlog::error("session: {}", from_errno(-result, "loop").message());
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  eventfd_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

// The kernel caps read-ahead at 128 KiB whatever a filesystem asks for; only root may say more.
void Mount::set_read_ahead() {
  auto entry = mount_at(options_.mountpoint);
  if (!entry) return;
  auto path = "/sys/class/bdi/" + entry->device + "/read_ahead_kb";
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  auto kb = std::to_string(kMaxTransfer / 1024);
  if (!fd.valid() || ::write(fd.get(), kb.data(), kb.size()) < 0) {
    spdlog::debug("{} stays as it is: {}", path, Errno::last().name());
  }
}

void Mount::request_stop() {
  stop_requested_.store(true);
  eventfd_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

UnmountReport Mount::run() {
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stop_signals, signal);
  Fd signals(::signalfd(-1, &stop_signals, SFD_CLOEXEC | SFD_NONBLOCK));
  while (true) {
    {
      MutexLock lock(mutex_);
      if (ended_) break;
    }
    if (stop_requested_.load()) break;
    pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    eventfd_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof(count));
    signalfd_siginfo info;
    if (::read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
      spdlog::info("signal {}: unmounting {}", info.ssi_signo, options_.mountpoint);
      break;
    }
  }
  return stop();
}

UnmountReport Mount::report() const {
  UnmountReport report;
  for (const auto& draft : store_.drafts().list()) {
    auto status = draft->status();
    auto name = draft->model().str() + "/" + draft->name();
    if (status.state == DraftState::kCommitted) {
      report.published.push_back(name);
    } else {
      report.kept.push_back(name + " (" + status.text() + ")");
    }
  }
  return report;
}

Result<UnmountReport> Mount::unmount_if_idle(bool lazy) {
  auto status = unmount(options_.mountpoint, lazy);
  if (!status.is_ok() && mount_at(options_.mountpoint)) {
    std::string who;
    for (const auto& process : busy_processes(options_.mountpoint)) {
      who += fmt::format("{}{} ({}, {})", who.empty() ? "" : "; ", process.pid, process.name, process.what);
    }
    if (who.empty()) return std::move(status).with(options_.mountpoint);
    return Status(Code::kBusy, options_.mountpoint + " is in use by " + who);
  }
  request_stop();
  // run() or stop() makes the report; whoever owns the mount is in one of them, or will be.
  auto deadline = in(options_.shut_down + kEndPatience);
  MutexLock lock(mutex_);
  while (!report_) {
    if (!changed_.wait_until(mutex_, deadline)) return Status(Code::kUnavailable, "drafts are still being finished");
  }
  return *report_;
}

UnmountReport Mount::stop() {
  {
    MutexLock lock(mutex_);
    if (stopped_) return report_.value_or(UnmountReport{});
    stopped_ = true;
  }
  if (!mounted_) {
    end_session();  // start() failed: nothing was served, drafts go on
    return {};
  }
  std::set<std::string> before;
  for (const auto& draft : store_.drafts().list()) before.insert(draft->model().str() + "/" + draft->name());
  {
    // The polite way first: where nothing is open the kernel writes back what is dirty and closes everything.
    bool ended = false;
    {
      MutexLock lock(mutex_);
      ended = ended_;
    }
    if (!ended) unmount(options_.mountpoint, false).ignore("in use: the session is ended below all the same");
  }
  store_.drafts().shut_down(in(options_.shut_down));
  auto report = this->report();
  for (const auto& name : before) {
    // Drafts that are versions now may have left the list.
    bool listed = false;
    for (const auto& kept : report.kept) listed = listed || kept.starts_with(name + " (");
    for (const auto& done : report.published) listed = listed || done == name;
    if (!listed) report.published.push_back(name);
  }
  for (const auto& name : report.published) spdlog::info("unmount: published {}", name);
  for (const auto& name : report.kept) spdlog::info("unmount: kept draft {}", name);
  {
    MutexLock lock(mutex_);
    report_ = report;
  }
  changed_.notify_all();
  end_session();
  return report;
}

// The order: no new requests, no waiting ones, no thread that could use the session, then the session itself.
void Mount::end_session() {
  control_.reset();
  if (session_ == nullptr) {
    store_.set_listener(nullptr);
    return;
  }
  bool ended = false;
  {
    auto deadline = in(std::chrono::seconds(1));
    MutexLock lock(mutex_);
    while (session_thread_.joinable() && !ended_ && changed_.wait_until(mutex_, deadline)) {
    }
    ended = ended_ || !session_thread_.joinable();
  }
  std::jthread waker;
  if (!ended) {
    // Still in use somewhere. Workers look at the exit flag after each request, so give them one; its answer, or the
    // end of the connection, ends the waker.
    fuse_session_exit(session_);
    waker = start_thread("fs-waker", [path = options_.mountpoint](const std::stop_token&) {
      struct statvfs st;
      (void)!::statvfs(path.c_str(), &st);
    });
  }
  auto deadline = in(kEndPatience);
  bool idle = false;
  while (!idle && std::chrono::steady_clock::now() < deadline) {
    data_.interrupts.cancel_all();
    MutexLock lock(mutex_);
    idle = ended_ || !session_thread_.joinable();
    if (!idle) changed_.wait_until(mutex_, in(Duration(50)));
  }
  if (idle && session_thread_.joinable()) session_thread_.join();
  while (idle && !data_.in_flight.wait_for_none(in(Duration(50))) && std::chrono::steady_clock::now() < deadline) {
    data_.interrupts.cancel_all();
  }
  store_.set_listener(nullptr);
  dispatch_->stop_pools();
  if (mount_at(options_.mountpoint)) unmount(options_.mountpoint, true).ignore("the daemon's end ends the connection");
  idle = idle && data_.in_flight.count() == 0;
  if (idle) {
    notifier_.stop();  // before the descriptor it writes to is closed
    fuse_session_unmount(session_);
    fuse_session_destroy(session_);
    session_ = nullptr;
    dispatch_->inodes().clear();
  } else {
    // Something of ours does not answer; what it holds must stay. The process is about to end.
    spdlog::critical("unmount {}: {} requests without an answer", options_.mountpoint, data_.in_flight.count());
    std::fflush(nullptr);
    ::_exit(1);
  }
  spdlog::info("unmounted {}", options_.mountpoint);
}

Mount::~Mount() { stop(); }

std::map<std::string, std::uint64_t> Mount::counters() const {
  auto counters = store_.counters();
  counters["reads_from_disk"] = dispatch_->reads().reads_from_disk();
  counters["reads_waited"] = dispatch_->reads().reads_waited();
  counters["inodes"] = dispatch_->inodes().size();
  counters["requests_in_flight"] = data_.in_flight.count();
  counters["reads_passthrough"] = dispatch_->reads().passthrough().opens();  // opens: the reads do not come here
  counters["resident_bytes"] = resident_bytes();
  return counters;
}

}  // namespace weightfs
