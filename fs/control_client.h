// Asks the daemon that owns a cache.
#pragma once

#include <functional>
#include <string>

#include "fs/control_protocol.h"
#include "store/base/posix.h"

namespace weightfs {

class ControlClient {
 public:
  // kNotFound: no daemon listens there (or one that was killed left its socket).
  static Result<ControlClient> connect(const std::string& socket_path);
  // The daemon of the mount that `path` is in, and the path below the mount point, percent-encoded for requests.
  // kNotFound: `path` is in no weightfs mount.
  static Result<std::pair<ControlClient, std::string>> connect_for(const std::string& path);

  // Sends one request and waits for its last answer, which has "ok": true. Otherwise the daemon's Status.
  // One call for a connection.
  Result<control::Json> call(const control::Json& request, const Progress& progress = {});

 private:
  explicit ControlClient(Fd socket) : socket_(std::move(socket)) {}
  Fd socket_;
};

}  // namespace weightfs
