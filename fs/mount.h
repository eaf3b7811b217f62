// A mounted bucket: the session with the kernel and everything that serves it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fs/control.h"
#include "fs/dispatch.h"
#include "fs/mount_table.h"
#include "fs/options.h"
#include "store/draft.h"
#include "store/store.h"

namespace weightfs {

struct MountOptions {
  std::string mountpoint;           // an existing directory
  std::string fsname = "weightfs";  // as df shows it
  bool read_only = false;
  bool allow_other = false;
  bool allow_remove = false;
  // What allow_remove calls when a version's directory is removed; empty: remove_version of store/gc.h.
  std::function<Status(const VersionRef&, const CallOptions&)> remove_version;
  std::vector<std::string> fuse;                  // further options of fuse(8) and mount(8): "noatime", "nodev"
  std::string control_socket;                     // "": control.sock in the cache directory
  Duration shut_down = std::chrono::seconds(20);  // bound of waiting for commits under way when the mount ends
};

// Drafts when a mount ends: kept for the next one, with their states; and those that were published meanwhile.
struct UnmountReport {
  std::vector<std::string> published, kept;
};

class Mount {
 public:
  // Mounts, starts threads, and returns when the kernel has had its first answer. Daemon::start comes before this, and
  // before the Store is opened, for both start threads. `store` outlives the mount; its listener is the mount from here
  // on, null afterwards.
  // kNotFound: no such directory. kPermission: no rights to it, to /dev/fuse or to allow_other. kBusy: something else
  // is wrong with the mount point; the message says what.
  static Result<std::unique_ptr<Mount>> start(MountOptions options, Store& store);
  // What start() would say of the mount point, before a store is opened for it. Clears away a mount without a daemon.
  static Status check(const std::string& mountpoint);
  ~Mount();  // as stop()

  // Serves until somebody unmounts, or SIGTERM, SIGINT or SIGHUP comes (Daemon::start has them blocked), or
  // request_stop(). Then ends as stop() does.
  UnmountReport run();
  // Any thread, returns at once.
  void request_stop();
  // Ends the mount in bounded time: publishing stops, what is under way gets `shut_down`; drafts are kept. Files that
  // processes still have open there answer errors from then on. Idempotent.
  UnmountReport stop();

  // Unmounts if nothing is open there, and then ends as above; kBusy names the processes. For the control socket.
  Result<UnmountReport> unmount_if_idle(bool lazy);

  const std::string& mountpoint() const { return options_.mountpoint; }
  const std::string& control_socket() const { return options_.control_socket; }
  Dispatch& dispatch() { return *dispatch_; }
  std::map<std::string, std::uint64_t> counters() const;

 private:
  Mount(MountOptions options, Store& store);
  Status begin();
  Status mount_session();
  void serve();  // the session's thread
  void set_read_ahead();
  void end_session();
  UnmountReport report() const;

  MountOptions options_;
  Store& store_;
  SessionData data_;
  Notifier notifier_;
  std::unique_ptr<Dispatch> dispatch_;
  std::unique_ptr<ControlServer> control_;
  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  std::jthread session_thread_;
  Mutex mutex_;
  CondVar changed_;
  bool initialized_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;    // the loop is over
  bool stopped_ GUARDED_BY(mutex_) = false;  // by stop()
  std::optional<UnmountReport> report_ GUARDED_BY(mutex_);
  Fd wake_;  // eventfd: look at ended_ and the request to stop
  std::atomic<bool> stop_requested_ = false;
};

}  // namespace weightfs
