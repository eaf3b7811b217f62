// What goes over the control socket (control.sock in the cache directory, 0600): a client connects, sends one line of
// JSON {"op": …, …}, and reads lines until the last one, which has "ok":
//
//   {"progress": {"done": 123, "total": 456}}                      any number of times
//   {"ok": true, …facts…}    or    {"ok": false, "code": "busy", "message": "…"}
//
// A client that hangs up cancels what it asked for. Names are percent-encoded as in the bucket (percent_encode of the
// whole MODEL/VERSION or path below it, so that "/" is %2F), for they are bytes; paths of the local machine are not.
//
// clang-format off
//   op       fields                                answer
//   status                                         mountpoint, bucket, pid, read_only, models, cache {…},
//                                                  drafts [{version, state, text, writers}]
//   stats                                          counters, flat
//   commit   version (MODEL/NAME)                  what was published
//   publish  source, version, parent?, no_parent?  what was published
//   get      version, dest                         version, plain_bytes
//   warm     paths [MODEL/VERSION[/FILE]]          plain_bytes
//   pin      paths [MODEL/VERSION]                 versions
//   unpin    likewise
//   wait     model, version?, newer_than?, timeout? (seconds)   version
//   log      model                                 versions [{name, parent, …}]
//   models                                         models [name]
//   umount   lazy?                                 published [name], kept [name (state)]
// clang-format on
#pragma once

#include <sys/un.h>

#include <nlohmann/json.hpp>

#include "store/base/posix.h"
#include "store/base/status.h"
#include "store/store.h"

namespace weightfs::control {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxLine = std::size_t{64} << 20;  // the log of 100,000 versions

Json failure(const Status& status);
Status as_status(const Json& answer);  // of a last line that is not ok
Json to_json(const PublishResult& result);
Json to_json(const ModelState& state);  // live versions, oldest first

// One line at a time from a descriptor; kUnavailable at its end.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  Result<std::string> next();

 private:
  int fd_;
  std::string buffer_;
};
Status send_line(int fd, const Json& line);
// What may be left out: never waits. A client that is stopped (Ctrl-Z) holds up nothing of the daemon's.
void send_line_if_read(int fd, const Json& line);
// From now on a send fails when nobody has read for so long.
Status limit_sends(int fd, std::chrono::seconds time);

// The address of a socket at `path`, however long the path is: a long one is reached through its directory, which `dir`
// keeps open until bind or connect has been called.
Result<sockaddr_un> address_of(const std::string& path, Fd* dir);

}  // namespace weightfs::control
