#include "tools/units.h"

#include <gtest/gtest.h>

namespace weightfs::tools {
namespace {

TEST(Units, SizesAreReadWithAndWithoutUnits) {
  EXPECT_EQ(parse_size("4096").value(), 4096u);
  EXPECT_EQ(parse_size("512M").value(), std::uint64_t{512} << 20);
  EXPECT_EQ(parse_size("200G").value(), std::uint64_t{200} << 30);
  EXPECT_EQ(parse_size("1.5TiB").value(), std::uint64_t{3} << 39);
  EXPECT_EQ(parse_size("10kb").value(), 10240u);
  EXPECT_EQ(parse_size("0").value(), 0u);
}

TEST(Units, WhatIsNoSizeIsRefusedWithAnExample) {
  for (const char* text : {"", "G", "-1", "1e3", "12 M", "5X", "1.2.3", "99999999P", "0x10", "nan", "inf"}) {
    auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.code(), Code::kInvalid);
    EXPECT_NE(size.status().message().find("200G"), std::string::npos);
  }
}

TEST(Units, DurationsAreReadWithAndWithoutUnits) {
  EXPECT_EQ(parse_duration("250ms").value(), Duration(250));
  EXPECT_EQ(parse_duration("5s").value(), std::chrono::seconds(5));
  EXPECT_EQ(parse_duration("10m").value(), std::chrono::minutes(10));
  EXPECT_EQ(parse_duration("24h").value(), std::chrono::hours(24));
  EXPECT_EQ(parse_duration("7d").value(), std::chrono::hours(24 * 7));
  EXPECT_EQ(parse_duration("1.5").value(), Duration(1500));
}

TEST(Units, WhatIsNoDurationIsRefused) {
  for (const char* text : {"", "s", "-5s", "5 s", "5w", "1e9", "99999999999d"}) EXPECT_FALSE(parse_duration(text));
}

TEST(Units, FiguresAreShort) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(999), "999 B");
  EXPECT_EQ(format_size(1536), "1.50 KiB");
  EXPECT_EQ(format_size(std::uint64_t{108} << 20), "108 MiB");
  EXPECT_EQ(format_size(~std::uint64_t{0}), "16384 PiB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(123), "123");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_percent(0.0087), "0.87 %");
  EXPECT_EQ(format_ratio(131.4), "131x");
  EXPECT_EQ(format_seconds(6.06), "6.1 s");
  EXPECT_EQ(format_seconds(723), "12 min 03 s");
}

}  // namespace
}  // namespace weightfs::tools
