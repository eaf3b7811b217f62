// Time as a parameter, so that tests own it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/status.h"

namespace weightfs {

using Duration = std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;

// Any thread may call.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime now() const = 0;  // monotonic: settle times, deadlines, back-off
  virtual WallTime wall() const = 0;   // may jump: only for what is written down
  virtual void sleep_for(Duration duration) = 0;
  static Clock& system();
};

// "2026-12-01T13:29:05.123Z", always UTC with milliseconds.
std::string to_rfc3339(WallTime time);
// kInvalid for another form, and for years outside 1970 .. 2261.
Result<WallTime> parse_rfc3339(std::string_view text);

}  // namespace weightfs
