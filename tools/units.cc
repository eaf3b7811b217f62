#include "tools/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace weightfs::tools {
namespace {

// Splits "1.5G" into 1.5 and "G". The number is decimal, without sign or exponent.
bool split_number(std::string_view text, double* number, std::string_view* unit) {
  auto end = text.find_first_not_of("0123456789.");
  std::string_view digits = text.substr(0, end);
  *unit = end == std::string_view::npos ? std::string_view() : text.substr(end);
  if (digits.empty()) return false;
  auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *number);
  return error == std::errc() && stop == digits.data() + digits.size();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, int>, 18> kUnits = {{{"", 0},
                                                                               {"b", 0},
                                                                               {"k", 10},
                                                                               {"kb", 10},
                                                                               {"kib", 10},
                                                                               {"m", 20},
                                                                               {"mb", 20},
                                                                               {"mib", 20},
                                                                               {"g", 30},
                                                                               {"gb", 30},
                                                                               {"gib", 30},
                                                                               {"t", 40},
                                                                               {"tb", 40},
                                                                               {"tib", 40},
                                                                               {"p", 50},
                                                                               {"pb", 50},
                                                                               {"pib", 50},
                                                                               {"bytes", 0}}};
  Status bad(Code::kInvalid, fmt::format("'{}' is not a size; write for example 512M or 200G", text));
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit)) return bad;
  for (const auto& [name, shift] : kUnits) {
    if (lower(unit) != name) continue;
    double bytes = std::ldexp(number, shift);
    if (bytes >= 0x1p63) return bad;
    return static_cast<std::uint64_t>(bytes);
  }
  return bad;
}

Result<Duration> parse_duration(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
      {{"", 1e3}, {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}}};
  Status bad(Code::kInvalid, fmt::format("'{}' is not a duration; write for example 5s, 10m or 24h", text));
  double number = 0;
  std::string_view unit;
  if (!split_number(text, &number, &unit)) return bad;
  for (const auto& [name, milliseconds] : kUnits) {
    if (unit != name) continue;
    double total = number * milliseconds;
    if (total > 100 * 366 * 86400e3) return bad;
    return Duration(std::llround(total));
  }
  return bad;
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    unit++;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string format_ratio(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return "-";
  return fmt::format("{:.{}f}x", ratio, ratio < 9.95 ? 2 : ratio < 99.5 ? 1 : 0);
}

std::string format_percent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  double percent = fraction * 100;
  return fmt::format("{:.{}f} %", percent, percent < 9.995 ? 2 : 1);
}

std::string format_seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.{}f} s", seconds, seconds < 1 ? 2 : 1);
  auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_count(std::uint64_t count) {
  std::string digits = std::to_string(count), out;
  for (std::size_t i = 0; i < digits.size(); i++) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace weightfs::tools
