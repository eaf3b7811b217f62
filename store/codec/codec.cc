#include "store/codec/codec.h"

#include <algorithm>
#include <cstring>

#include "store/codec/choose.h"
#include "store/codec/planes.h"
#include "store/codec/scratch.h"
#include "store/codec/sparse.h"

namespace weightfs::codec {
namespace {

Status corrupt(const char* what) { return {Code::kCorrupt, what}; }

Status decode_sparse(Scratch::Impl& scratch, ElementType type, ByteSpan frame, ByteSpan base, MutableByteSpan out) {
  if (frame.size() > kMaxFrame) return corrupt("sparse frame: too long");
  if (base.size() != out.size()) return corrupt("sparse frame: the base has another length");
  // The streams are read eight bytes at a time.
  auto padded = scratch.frame.first(frame.size() + kBitSlack);
  std::fill(std::copy(frame.begin(), frame.end(), padded.begin()), padded.end(), std::byte{0});
  WFS_TRY(parse_sparse(type, padded.first(frame.size()), out.size(), scratch.sparse));
  auto elements = out.size() / width(type);
  WFS_TRY(decode_sparse(type, scratch.sparse, scratch.decoding, base.data(), out.data(), elements));
  std::copy(scratch.sparse.tail.begin(), scratch.sparse.tail.end(), out.end() - scratch.sparse.tail.size());
  return Status::ok();
}

Status decode_planes(Scratch::Impl& scratch, PlaneKind kind, ElementType type, ByteSpan frame, ByteSpan base,
                     MutableByteSpan out) {
  if (kind != PlaneKind::kFull && base.size() != out.size()) {
    return corrupt("dense frame: the base has another length");
  }
  auto planes = scratch.planes.first(out.size());
  WFS_TRY(read_planes(type, frame, scratch.zstd, planes));
  join_planes(kind, type, base, planes, out);
  return Status::ok();
}

// `base` may be `out`, but for kZstdPatch.
Status decode(Scratch::Impl& scratch, CodecId codec, ElementType type, ByteSpan frame, ByteSpan base,
              MutableByteSpan out) {
  if (static_cast<std::uint8_t>(type) >= kElementTypes) return {Code::kUnsupported, "element type of a later version"};
  switch (codec) {
    case CodecId::kSame:
      if (!frame.empty()) return corrupt("frame of an unchanged block");
      if (base.size() != out.size()) return corrupt("unchanged block: the base has another length");
      if (!out.empty() && base.data() != out.data()) std::memcpy(out.data(), base.data(), out.size());
      return Status::ok();
    case CodecId::kRaw:
      if (frame.size() != out.size()) return corrupt("raw frame: length");
      std::copy(frame.begin(), frame.end(), out.begin());
      return Status::ok();
    case CodecId::kZero:
      if (!frame.empty()) return corrupt("frame of a zero block");
      std::fill(out.begin(), out.end(), std::byte{0});
      return Status::ok();
    case CodecId::kZstd:
      if (!scratch.zstd.decompress(frame, {}, out)) return corrupt("zstd frame");
      return Status::ok();
    case CodecId::kZstdPatch:
      if (!scratch.zstd.decompress(frame, base, out)) return corrupt("zstd frame with a prefix");
      return Status::ok();
    case CodecId::kPlanes:
      return decode_planes(scratch, PlaneKind::kFull, type, frame, {}, out);
    case CodecId::kDenseXor:
      return decode_planes(scratch, PlaneKind::kXor, type, frame, base, out);
    case CodecId::kDenseDistance:
      return decode_planes(scratch, PlaneKind::kDistance, type, frame, base, out);
    case CodecId::kSparse:
      return decode_sparse(scratch, type, frame, base, out);
  }
  return {Code::kUnsupported, "codec of a later version"};
}

}  // namespace

std::size_t width(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
    case ElementType::kF16:
    case ElementType::kInt16:
      return 2;
    case ElementType::kF32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kF64:
    case ElementType::kInt64:
      return 8;
    default:
      return 1;
  }
}

bool needs_base(CodecId codec) {
  switch (codec) {
    case CodecId::kSame:
    case CodecId::kSparse:
    case CodecId::kDenseXor:
    case CodecId::kDenseDistance:
    case CodecId::kZstdPatch:
      return true;
    default:
      return false;
  }
}

Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;

Encoded encode_block(Scratch& scratch, ElementType type, ByteSpan base, ByteSpan target, MutableByteSpan frame,
                     const EncodeOptions& options) {
  WFS_CHECK(!target.empty() && target.size() <= kMaxBlock && base.size() <= kMaxBlock && frame.size() >= kMaxFrame);
  WFS_CHECK(static_cast<std::uint8_t>(type) < kElementTypes);
  return choose_and_encode(scratch.impl(), type, base, target, frame, options);
}

Status decode_block(Scratch& scratch, CodecId codec, ElementType type, ByteSpan frame, ByteSpan base,
                    MutableByteSpan out) {
  WFS_CHECK(out.size() <= kMaxBlock && base.size() <= kMaxBlock);
  return decode(scratch.impl(), codec, type, frame, base, out);
}

Status apply_frame(Scratch& scratch, CodecId codec, ElementType type, ByteSpan frame, MutableByteSpan block) {
  WFS_CHECK(block.size() <= kMaxBlock);
  auto& impl = scratch.impl();
  if (codec != CodecId::kZstdPatch) return decode(impl, codec, type, frame, block, block);
  auto base = impl.planes.first(block.size());
  std::copy(block.begin(), block.end(), base.begin());
  return decode(impl, codec, type, frame, base, block);
}

}  // namespace weightfs::codec
