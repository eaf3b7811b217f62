#include "store/base/clock.h"

#include <fmt/format.h>

#include <charconv>
#include <thread>

namespace weightfs {
namespace {

class SystemClock final : public Clock {
 public:
  SteadyTime now() const override { return std::chrono::steady_clock::now(); }
  WallTime wall() const override { return std::chrono::system_clock::now(); }
  void sleep_for(Duration duration) override { std::this_thread::sleep_for(duration); }
};

}  // namespace

Clock& Clock::system() {
  static SystemClock clock;
  return clock;
}

std::string to_rfc3339(WallTime time) {
  auto ms = std::chrono::floor<std::chrono::milliseconds>(time);
  auto day = std::chrono::floor<std::chrono::days>(ms);
  std::chrono::year_month_day date(day);
  std::chrono::hh_mm_ss clock(ms - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int(date.year()), unsigned(date.month()),
                     unsigned(date.day()), clock.hours().count(), clock.minutes().count(), clock.seconds().count(),
                     clock.subseconds().count());
}

Result<WallTime> parse_rfc3339(std::string_view text) {
  const Status bad(Code::kInvalid, "not a time like 2026-12-01T13:29:05.123Z");
  if (text.size() != 24 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':' ||
      text[19] != '.' || text[23] != 'Z') {
    return bad;
  }
  bool valid = true;
  auto number = [&](std::size_t at, std::size_t count) {
    int value = 0;
    for (char c : text.substr(at, count)) {
      if (c < '0' || c > '9') valid = false;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  std::chrono::year_month_day date(std::chrono::year(number(0, 4)), std::chrono::month(unsigned(number(5, 2))),
                                   std::chrono::day(unsigned(number(8, 2))));
  int hour = number(11, 2), minute = number(14, 2), second = number(17, 2), ms = number(20, 3);
  // WallTime counts nanoseconds in 64 bits: years past 2262 would overflow.
  if (!valid || !date.ok() || int(date.year()) < 1970 || int(date.year()) > 2261 || hour > 23 || minute > 59 ||
      second > 59)
    return bad;
  return WallTime(std::chrono::sys_days(date) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
                  std::chrono::seconds(second) + std::chrono::milliseconds(ms));
}

}  // namespace weightfs
