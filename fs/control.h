// The daemon's control socket: commands beside a mount work through it (control_protocol.h).
#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "fs/control_protocol.h"
#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/draft.h"

namespace weightfs {

class Mount;

class ControlServer {
 public:
  // Listens on `path`, 0600; a socket that a killed daemon left there is replaced. The mount outlives this.
  static Result<std::unique_ptr<ControlServer>> start(const std::string& path, Mount& mount, Store& store);
  ~ControlServer();  // hangs up on every client, cancels what they asked for, joins

 private:
  struct Connection {
    Fd socket;
    std::shared_ptr<CancelToken> cancel = std::make_shared<CancelToken>();
    std::atomic<bool> done = false;
    std::jthread thread;
  };
  ControlServer(std::string path, Fd listener, Fd wake, Mount& mount, Store& store);
  void listen();
  void accept_one() EXCLUDES(mutex_);
  void reap(bool all) EXCLUDES(mutex_);
  void serve(Connection& connection);
  Result<control::Json> answer(Connection& connection, const control::Json& request);

  Result<control::Json> status();
  Result<control::Json> commit(Connection& connection, const control::Json& request);
  Result<control::Json> publish(Connection& connection, const control::Json& request);
  Result<control::Json> get(Connection& connection, const control::Json& request);
  Result<control::Json> warm(Connection& connection, const control::Json& request);
  Result<control::Json> pin(Connection& connection, const control::Json& request, bool pinned);
  Result<control::Json> wait(Connection& connection, const control::Json& request);
  Result<control::Json> log(Connection& connection, const control::Json& request);
  Result<control::Json> umount(const control::Json& request);

  const std::string path_;
  const Fd listener_, wake_;
  Mount& mount_;
  Store& store_;
  Mutex mutex_;
  std::list<std::unique_ptr<Connection>> connections_ GUARDED_BY(mutex_);
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

}  // namespace weightfs
