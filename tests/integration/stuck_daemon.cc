// stuck_daemon MOUNTPOINT CONNECTIONS - a filesystem that never answers MKDIR. Once one is under way it sends a
// notification for the same directory, which waits in the kernel for that call's lock; prints "stuck" when it does.
// From then on kill -9 alone cannot end this process, and nothing but fs/connection_guard.h ends the connection.
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "fs/connection_guard.h"

namespace weightfs {
namespace {

std::atomic<bool> mkdir_came = false;
std::atomic<pid_t> notifier = 0;

void lookup(fuse_req_t request, fuse_ino_t, const char*) { fuse_reply_err(request, ENOENT); }

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  struct stat st{};
  st.st_ino = inode;
  st.st_mode = S_IFDIR | 0777;
  st.st_nlink = 2;
  fuse_reply_attr(request, &st, 3600);
}

void mkdir(fuse_req_t, fuse_ino_t, const char*, mode_t) { mkdir_came = true; }

// Uninterruptible, says /proc.
bool waits_in_the_kernel(pid_t thread) {
  auto stat = posix::read_file("/proc/self/task/" + std::to_string(thread) + "/stat", 4096);
  if (!stat) return false;
  std::string text(reinterpret_cast<const char*>(stat->data()), stat->size());
  return text.find(") D ") != text.npos;
}

Status run(const std::string& mountpoint, const std::string& connections) {
  auto guard = WFS_TRY(ConnectionGuard::start(connections));
  fuse_args args = FUSE_ARGS_INIT(0, nullptr);
  for (const char* word : {"stuck_daemon", "-o", "subtype=weightfs"}) fuse_opt_add_arg(&args, word);
  fuse_lowlevel_ops operations{};
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.mkdir = mkdir;
  fuse_session* session = fuse_session_new(&args, &operations, sizeof(operations), nullptr);
  if (session == nullptr || fuse_session_mount(session, mountpoint.c_str()) != 0) return from_errno(EIO, "mount");
  WFS_TRY(guard.watch(mountpoint));
  std::jthread loop([session] { fuse_session_loop(session); });
  auto tick = std::chrono::milliseconds(5);
  while (!mkdir_came) std::this_thread::sleep_for(tick);
  std::jthread notify([session] {
    notifier = ::gettid();
    fuse_lowlevel_notify_inval_entry(session, FUSE_ROOT_ID, "other", 5);
  });
  while (notifier == 0 || !waits_in_the_kernel(notifier)) std::this_thread::sleep_for(tick);
  std::puts("stuck");
  std::fflush(stdout);
  while (true) ::pause();
}

}  // namespace
}  // namespace weightfs

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto done = weightfs::run(argv[1], argv[2]);
  std::fprintf(stderr, "stuck_daemon: %s\n", done.message().c_str());
  return 1;
}
