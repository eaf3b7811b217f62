// Sizes and durations as people type and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/clock.h"
#include "store/base/status.h"

namespace weightfs::tools {

// "200G", "512M", "4096", "1.5TiB": a number and K, M, G, T or P (powers of 1024), with "B" or "iB" after it if you
// like. kInvalid, with an example, for anything else, negative numbers and what does not fit 64 bits.
Result<std::uint64_t> parse_size(std::string_view text);

// "250ms", "5s", "10m", "24h", "7d", and a plain number of seconds. kInvalid as above; at most 100 years.
Result<Duration> parse_duration(std::string_view text);

std::string format_size(std::uint64_t bytes);   // "1.4 GiB", three digits at most before the unit
std::string format_ratio(double ratio);         // "131x", "2.4x", "-" where there is none
std::string format_percent(double fraction);    // "0.87 %"
std::string format_seconds(double seconds);     // "0.42 s", "6.1 s", "12 min 03 s"
std::string format_count(std::uint64_t count);  // "12,345,678"

}  // namespace weightfs::tools
