#include "store/bucket/http_head.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace weightfs {
namespace {

constexpr Duration kLongestRetryAfter = std::chrono::hours(24);

std::string lower(std::string_view text) {
  std::string out(text);
  for (auto& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<ContentRange> parse_content_range(std::string_view value) {
  value = trim(value);
  constexpr std::string_view kUnit = "bytes ";
  if (!value.starts_with(kUnit)) return std::nullopt;
  value.remove_prefix(kUnit.size());
  auto dash = value.find('-'), slash = value.find('/');
  if (dash == value.npos || slash == value.npos || dash > slash) return std::nullopt;
  auto first = parse_decimal(value.substr(0, dash)), last = parse_decimal(value.substr(dash + 1, slash - dash - 1));
  if (!first || !last || *last < *first || *last - *first == ~std::uint64_t{0}) return std::nullopt;
  ContentRange out{{*first, *last - *first + 1}, std::nullopt};
  if (auto total = value.substr(slash + 1); total != "*") {
    out.total = parse_decimal(total);
    if (!out.total || *out.total <= *last) return std::nullopt;
  }
  return out;
}

std::optional<WallTime> parse_http_date(std::string_view value) {
  static constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                               "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  value = trim(value);
  if (value.size() != 29 || value.substr(3, 2) != ", " || value[7] != ' ' || value[11] != ' ' || value[16] != ' ' ||
      value[19] != ':' || value[22] != ':' || value.substr(25) != " GMT") {
    return std::nullopt;
  }
  auto day = parse_decimal(value.substr(5, 2)), year = parse_decimal(value.substr(12, 4));
  auto hour = parse_decimal(value.substr(17, 2)), minute = parse_decimal(value.substr(20, 2));
  auto second = parse_decimal(value.substr(23, 2));
  auto month = std::find(kMonths.begin(), kMonths.end(), value.substr(8, 3));
  if (!day || !year || !hour || !minute || !second || month == kMonths.end()) return std::nullopt;
  std::chrono::year_month_day date(std::chrono::year(static_cast<int>(*year)),
                                   std::chrono::month(static_cast<unsigned>(month - kMonths.begin()) + 1),
                                   std::chrono::day(static_cast<unsigned>(*day)));
  // WallTime counts nanoseconds in 64 bits: far years would overflow, also when times are subtracted.
  if (*year < 1970 || *year > 2200 || !date.ok() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  return WallTime(std::chrono::sys_days(date) + std::chrono::hours(*hour) + std::chrono::minutes(*minute) +
                  std::chrono::seconds(*second));
}

std::optional<Duration> parse_retry_after(std::string_view value, WallTime now) {
  value = trim(value);
  if (auto seconds = parse_decimal(value)) {
    auto longest =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(kLongestRetryAfter).count());
    return std::chrono::seconds(std::min(*seconds, longest));
  }
  auto date = parse_http_date(value);
  if (!date) return std::nullopt;
  return std::clamp(std::chrono::ceil<Duration>(*date - now), Duration(0), kLongestRetryAfter);
}

bool HttpHead::add_line(std::string_view line) {
  bytes_ += line.size();
  if (bytes_ > kMaxBytes) return false;
  if (line.starts_with("HTTP/")) {
    auto bytes = bytes_;
    *this = {};
    bytes_ = bytes;
    auto space = line.find(' ');
    if (space == line.npos) return false;
    auto code = parse_decimal(line.substr(space + 1, 3));
    if (!code || *code < 100 || *code > 599) return false;
    status_ = static_cast<int>(*code);
    return true;
  }
  auto text = trim(line);
  if (text.empty()) return true;
  auto colon = text.find(':');
  if (colon == text.npos || colon == 0) return true;  // obsolete folding and other junk that means nothing to us
  auto name = lower(trim(text.substr(0, colon)));
  auto value = trim(text.substr(colon + 1));
  if (name == "content-length") {
    auto length = parse_decimal(value);
    if (!length || (content_length_ && *content_length_ != *length)) return false;
    content_length_ = length;
  }
  headers_.emplace_back(std::move(name), value);
  return true;
}

std::string_view HttpHead::find(std::string_view name) const {
  auto wanted = lower(name);
  for (const auto& [header, value] : headers_) {
    if (header == wanted) return value;
  }
  return {};
}

}  // namespace weightfs
