// weightfs umount DIR
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/mount_table.h"
#include "store/base/posix.h"
#include "tools/beside.h"

namespace weightfs::tools {
namespace {

constexpr int kDaemonEnds = 30'000;  // milliseconds

struct Options {
  std::string dir;
  bool json = false;
};

// The daemon answers before it has ended; a next mount on the same cache waits for that.
Status wait_for_end(pid_t pid) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return {};  // gone already, or it lives in another pid namespace
  struct pollfd wait{process.get(), POLLIN, 0};
  if (::poll(&wait, 1, kDaemonEnds) != 0) return {};
  return {Code::kUnavailable, fmt::format("unmounted, but its daemon (pid {}) has not ended yet", pid)};
}

void print(const control::Json& report, bool as_json) {
  auto names = [&](const char* field) { return report.value(field, std::vector<std::string>()); };
  if (as_json) return print_json({{"published", names("published")}, {"kept", names("kept")}});
  for (const std::string& name : names("published")) fmt::print("published {}\n", printable(name));
  for (const std::string& name : names("kept")) fmt::print("kept for the next mount: {}\n", printable(name));
}

Result<int> run(const Options& options) {
  std::string dir = posix::absolute(options.dir);
  if (is_dead_mount(dir)) {
    // Its daemon is gone; drafts are in the cache, for the next mount.
    WFS_TRY(unmount(dir, true));
    print(control::Json::object(), options.json);
    return kDone;
  }
  auto asked = WFS_TRY(daemon_of_mount(options.dir))
  .call({{"op", "status"}});
  pid_t pid = WFS_TRY(std::move(asked))
  .value("pid", 0);
  ControlClient daemon = WFS_TRY(daemon_of_mount(options.dir));
  control::Json report = WFS_TRY(daemon.call({{"op", "umount"}}));
  if (pid > 0) WFS_TRY(wait_for_end(pid));
  print(report, options.json);
  return kDone;
}

}  // namespace

Run add_umount(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("DIR", options->dir, "Where the bucket is mounted")->required();
  add_json(app, &options->json);
  set_examples(app,
               {{"weightfs umount /mnt/models",
                 "says which drafts were published and which are kept for the next mount; when a process has files "
                 "open there it fails and names it"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
