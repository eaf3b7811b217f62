// Commands beside a mount: its daemon owns the cache and does the work.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "fs/control_client.h"
#include "tools/output.h"
#include "tools/session.h"

namespace weightfs::tools {

// The daemon that owns the cache of these arguments. kNotFound: none does.
Result<ControlClient> daemon_of_cache(const BucketArgs& args);

// The cache of these arguments: opened, or the daemon that owns it. Another command that has it open is waited for,
// which a line on standard error tells.
struct CacheAccess {
  std::optional<Session> session;
  std::optional<ControlClient> daemon;  // where there is no session
};
Result<CacheAccess> open_cache(const BucketArgs& args);

// Returns when no process owns the cache. kBusy: a mount does, which the message names, or after `patience` still
// another process.
Status wait_for_free_cache(const std::string& cache_dir, Duration patience);

// A request about `path` in a mount, with the daemon that answers it. `path` is MODEL/VERSION[/FILE] below the mount
// point, percent-encoded; "" at its top. Errors name `path` and what to do.
struct InMount {
  ControlClient daemon;
  std::string path;
};
Result<InMount> in_mount(const std::string& path);

// As in_mount for the top of a mount only: kInvalid elsewhere.
Result<ControlClient> daemon_of_mount(const std::string& dir);

// user.weightfs.state of a directory in a mount: "committed", "draft: …". kNotFound: there is no such directory.
Result<std::string> version_state(const std::string& path);

// What the daemon says of a publish or commit.
PublishResult publish_result(const control::Json& answer);

// A percent-encoded name of an answer as it is; unchanged when it is not one.
std::string decoded(const std::string& name);

}  // namespace weightfs::tools
