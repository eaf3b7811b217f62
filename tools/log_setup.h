// Where log lines go, how they look, and which are shown.
#pragma once

#include <string>

namespace weightfs::tools {

// Lines go to standard error; under systemd (JOURNAL_STREAM names it) they carry its "<4>" priority prefixes in place
// of a time of their own. `level`: error, warn, info or debug.
void set_up_log(const std::string& level);

// From now on to a file of at most a few MiB, and one older: for a daemon without a standard error.
void log_to_file(const std::string& path);

// The levels that --log-level takes.
inline constexpr const char* kLogLevels[] = {"error", "warn", "info", "debug"};

}  // namespace weightfs::tools
