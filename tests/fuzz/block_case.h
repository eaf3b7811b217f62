// A hostile block as a string of bytes, for the fuzzer and for the unit test that replays its corpus: codec, element
// type, length of the base, length of the block (16 bits each), the base, the frame. What is missing is empty.
#pragma once

#include <algorithm>

#include "store/base/status.h"
#include "store/codec/codec.h"
#include "store/codec/dispatch.h"

namespace weightfs::codec {

struct BlockCase {
  CodecId codec{};
  ElementType type{};
  std::size_t length = 0;
  ByteSpan base, frame;
};

inline constexpr std::size_t kCaseHead = 6;

inline BlockCase parse_case(ByteSpan input) {
  BlockCase out;
  if (input.size() < kCaseHead) return out;
  out.codec = static_cast<CodecId>(input[0]);
  out.type = static_cast<ElementType>(input[1]);
  out.length = load_le<std::uint16_t>(&input[4]);
  auto rest = input.subspan(kCaseHead);
  out.base = rest.first(std::min<std::size_t>(rest.size(), load_le<std::uint16_t>(&input[2])));
  out.frame = rest.subspan(out.base.size());
  return out;
}

// Decodes at every level, into another buffer and in place; aborts where they disagree. Buffers have their exact sizes,
// so that AddressSanitizer sees a step beyond.
inline Code run_case(ByteSpan input) {
  auto block = parse_case(input);
  Scratch scratch;
  Bytes first;
  Code code{};
  auto best = simd_level();
  for (int level = 0; level < kSimdLevels; ++level) {
    force_simd_level(static_cast<SimdLevel>(level));
    Bytes base(block.base.begin(), block.base.end()), frame(block.frame.begin(), block.frame.end()), out(block.length);
    auto status = decode_block(scratch, block.codec, block.type, frame, base, out);
    if (!status.is_ok()) out.clear();
    if (level == 0) {
      first = out;
      code = status.code();
    }
    WFS_CHECK(status.code() == code && out == first);
    if (base.size() != block.length) continue;
    status = apply_frame(scratch, block.codec, block.type, frame, base);
    WFS_CHECK(status.code() == code && (!status.is_ok() || base == first));
  }
  force_simd_level(best);
  return code;
}

}  // namespace weightfs::codec
