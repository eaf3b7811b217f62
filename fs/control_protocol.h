// What goes over the control socket (control.sock in the cache directory, 0600): a client connects, sends one line of
// JSON {"op": …, …}, and reads lines until the last one, which has "ok":
//
//   {"progress": {"done": 123, "total": 456}}                      any number of times
//   {"ok": true, …facts…}    or    {"ok": false, "code": "busy", "message": "…"}
//
// A client that hangs up cancels what it asked for. Names are percent-encoded as in the bucket (percent_encode of the
// whole MODEL/VERSION or path below it, so that "/" is %2F), for they are bytes; paths of the local machine are not.
//
//   op       fields                                   answer
//   status                                            mountpoint, bucket, pid, read_only, cache {…}, drafts [{version,
//   state, text, writers}], models stats                                             counters, flat commit   version
//   (MODEL/NAME)                     what was published publish  source, version, parent?, no_parent?     what was
//   published get      version, dest                            version, plain_bytes warm     paths
//   [MODEL/VERSION[/FILE]]             plain_bytes pin, unpin   paths [MODEL/VERSION] wait     model, version?,
//   newer_than?, timeout? (seconds)   version log      model                                    versions [{name,
//   parent, …}] models                                            models [name] umount   lazy? published [name], kept
//   [name (state)]
#pragma once

#include <nlohmann/json.hpp>

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

}  // namespace weightfs::control
