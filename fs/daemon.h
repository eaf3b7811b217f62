// Turns the process into a daemon that tells its starter how the start went, with a guard beside it. Forks first: no
// thread may exist before, and everything that starts one comes after.
#pragma once

#include <memory>
#include <string>

#include "fs/connection_guard.h"
#include "store/base/posix.h"

namespace weightfs {

class Daemon {
 public:
  // Blocks the signals that stop a daemon (Mount::run takes them), ignores SIGPIPE and starts the guard. Unless
  // `foreground`, forks before: the child returns from here, leader of a new session; the parent waits until the child
  // calls ready() or failed() or dies, prints what went wrong to stderr, and exits with 0 or the child's code: it never
  // returns.
  static Result<Daemon> start(bool foreground);

  // The mount answers: the starter exits with 0, and standard input, output and error become /dev/null.
  void ready();
  // The guard looks after the connection of the mount there from now on.
  void guard(const std::string& mountpoint);
  // The starter prints `message` and exits with `code`; in the foreground this prints it.
  void failed(int code, const std::string& message);

 private:
  Daemon(Fd starter, ConnectionGuard guard) : starter_(std::move(starter)), guard_(std::move(guard)) {}
  Fd starter_;
  ConnectionGuard guard_;
};

}  // namespace weightfs
