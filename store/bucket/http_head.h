// The head of an HTTP answer, taken apart without trusting it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/clock.h"

namespace weightfs {

// "bytes 0-9/10" -> {0, 10} of 10; the total is absent for "*".
struct ContentRange {
  ByteRange range;
  std::optional<std::uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view value);

// "Tue, 01 Dec 2026 13:29:05 GMT", the one form that servers may send.
std::optional<WallTime> parse_http_date(std::string_view value);

// Retry-After in either form, from `now`. Never negative, at most a day.
std::optional<Duration> parse_retry_after(std::string_view value, WallTime now);

// Decimal digits only, no overflow.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

class HttpHead {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;

  // One line as it came, with or without its line end. A status line begins a new head (after 100 Continue, or a
  // proxy's answer). False when the head is malformed or too long.
  bool add_line(std::string_view line);

  int status() const { return status_; }  // 0: none yet
  // The first header of that name (without case), or "".
  std::string_view find(std::string_view name) const;
  // Absent when there is none. A malformed one, or two that differ, made add_line() false.
  std::optional<std::uint64_t> content_length() const { return content_length_; }

 private:
  int status_ = 0;
  std::size_t bytes_ = 0;
  std::optional<std::uint64_t> content_length_;
  std::vector<std::pair<std::string, std::string>> headers_;  // names in lower case
};

}  // namespace weightfs
