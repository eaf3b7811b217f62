// Byte planes: the k-th bytes of all elements side by side, each plane coded by itself. For full blocks (the float
// types turned so that the exponent fills a byte) and dense updates (XOR, or signed distance). Internal to the codec.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "store/base/status.h"
#include "store/codec/codec.h"
#include "store/codec/zstd_codec.h"

namespace weightfs::codec {

enum class PlaneKind : std::uint8_t {
  kFull,      // the element, rotated left by one bit if it has an exponent; no base
  kXor,       // target XOR base
  kDistance,  // target - base on the raw bits, the sign in the lowest bit: (d << 1) ^ (d >> top)
};

// The elements' planes one after the other, then the tail's bytes (of kXor and kDistance: XOR the base's).
//   REQUIRES: planes.size() == target.size(); base.size() == target.size() but for kFull
void split_planes(PlaneKind kind, ElementType type, ByteSpan base, ByteSpan target, MutableByteSpan planes);
// The inverse. `out` may be the base.
void join_planes(PlaneKind kind, ElementType type, ByteSpan base, ByteSpan planes, MutableByteSpan out);

// Writes planes as a frame. Nothing when it is longer than frame.size().
std::optional<std::size_t> write_planes(ElementType type, ByteSpan planes, int level, ZstdCodec& zstd,
                                        MutableByteSpan frame);
// kCorrupt: breaks the format.
Status read_planes(ElementType type, ByteSpan frame, ZstdCodec& zstd, MutableByteSpan planes);

}  // namespace weightfs::codec
