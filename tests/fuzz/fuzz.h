// What the targets share.
#pragma once

#include <cstdint>

#include "store/base/bytes.h"

namespace weightfs::fuzz {

inline ByteSpan input(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// A parser of hostile bytes refuses with these codes only.
inline void check_refusal(const Status& status) {
  WFS_CHECK(status.code() == Code::kCorrupt || status.code() == Code::kUnsupported);
}

// What was read is written, and read again the same.
template <typename T, typename Write, typename Parse>
void check_round_trip(const Result<T>& parsed, const Write& write, const Parse& parse) {
  if (!parsed.is_ok()) return check_refusal(parsed.status());
  auto again = parse(write(*parsed));
  WFS_CHECK(again.is_ok());
  WFS_CHECK(*again == *parsed);
}

}  // namespace weightfs::fuzz
