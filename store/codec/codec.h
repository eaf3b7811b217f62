// Turns one block of a file into a frame along an edge, and back. A frame decodes by itself: it needs its codec id and
// element type (both are in the block map), the base's bytes of the same block, and nothing else. store/codec/CODEC.md
// has the format to the bit.
//
// Pure functions of their arguments; any thread may call, each with its own Scratch. Nothing here does I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "store/base/bytes.h"
#include "store/base/status.h"

namespace weightfs::codec {

// Largest block, in plain bytes. A frame is never longer than kMaxFrame, whatever its codec.
inline constexpr std::size_t kMaxBlock = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFrame = kMaxBlock + 64;

// What the plain bytes of a block are. The number is in block maps: never reuse one. A block's length need not be a
// multiple of the element's width; the tail is coded as bytes.
enum class ElementType : std::uint8_t {
  kBytes = 0,  // no structure, or one byte integers, or packed types
  kBf16 = 1,   // the float types: sign, exponent, mantissa from the top bit down, little-endian
  kF16 = 2,
  kF32 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5,
  kF64 = 6,
  kInt16 = 7,  // the integer types: little-endian, signed or not
  kInt32 = 8,
  kInt64 = 9,
};
inline constexpr std::uint8_t kElementTypes = 10;
std::size_t width(ElementType type);  // bytes an element: 1, 2, 4 or 8

// How a frame is coded. The number is in block maps: never reuse one; a reader that meets one it does not know answers
// kUnsupported for that block alone.
enum class CodecId : std::uint8_t {
  kSame = 0,           // equals the base; no frame
  kRaw = 1,            // the plain bytes; needs no base
  kZstd = 2,           // zstd of the plain bytes; needs no base
  kPlanes = 3,         // byte planes, each raw, constant or zstd; needs no base
  kSparse = 4,         // gaps per exponent class + ULP distances (CODEC.md)
  kDenseXor = 5,       // byte planes of target XOR base
  kDenseDistance = 6,  // byte planes of the signed ULP distance
  kZstdPatch = 7,      // zstd of the plain bytes with the base as a prefix; the base may have another length
  kZero = 8,           // all bytes zero; no frame, needs no base
};
bool needs_base(CodecId codec);

// Buffers that calls reuse, so that a steady state allocates nothing. One per thread.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct Encoded {
  CodecId codec = CodecId::kRaw;
  std::size_t frame_length = 0;        // bytes written to the front of `frame`; 0 for kSame and kZero
  std::uint64_t changed_elements = 0;  // elements whose bits differ from the base's, without a base 0
};

struct EncodeOptions {
  int zstd_level = 3;
};

// Encodes `target` by the cheapest codec. `base` is empty (there is none) or the bytes that stand for this block in the
// base version; for every codec but kZstdPatch only a base of target's length is of use.
//   REQUIRES: 0 < target.size() <= kMaxBlock, base.size() <= kMaxBlock, frame.size() >= kMaxFrame, no overlaps
Encoded encode_block(Scratch& scratch, ElementType type, ByteSpan base, ByteSpan target, MutableByteSpan frame,
                     const EncodeOptions& options = {});

// The inverse, on hostile input: any frame and base give OK or an error, without a read or write out of bounds and
// without allocating beyond the block's size. Whether the bytes are the right ones, the caller's digest tells.
// kCorrupt: breaks the format. kUnsupported: a codec id or element type of a later version. On error `out` holds
// garbage.
//   REQUIRES: out.size() <= kMaxBlock, base.size() <= kMaxBlock; `out` overlaps neither input
Status decode_block(Scratch& scratch, CodecId codec, ElementType type, ByteSpan frame, ByteSpan base,
                    MutableByteSpan out);

// The same in place, for replaying deltas in one buffer: `block` holds the base on entry, the target on return.
// kUnsupported for kZstdPatch when the lengths differ (use decode_block).
Status apply_frame(Scratch& scratch, CodecId codec, ElementType type, ByteSpan frame, MutableByteSpan block);

}  // namespace weightfs::codec
