#include "store/publish/block_encoder.h"

#include <algorithm>
#include <cstring>

#include "store/codec/codec.h"

namespace weightfs {
namespace {

// So that a page of blocks that all have so many stays below kMaxPage.
constexpr std::size_t kMaxSegments = 128;

codec::Scratch& thread_scratch() {
  thread_local codec::Scratch scratch;
  return scratch;
}

std::uint64_t count_changed(ByteSpan base, ByteSpan target, std::size_t width) {
  std::uint64_t changed = 0;
  for (std::size_t at = 0; at + width <= target.size(); at += width) {
    changed += std::memcmp(base.data() + at, target.data() + at, width) != 0;
  }
  return changed;
}

// Of the pieces that have a base.
std::uint64_t changed_in(const std::vector<BaseSegment>& segments, ByteSpan base, ByteSpan target, std::size_t width) {
  std::uint64_t changed = 0;
  std::size_t at = 0;
  for (const auto& segment : segments) {
    if (segment.file != BaseSegment::kNone) {
      changed += count_changed(base.subspan(at, segment.length), target.subspan(at, segment.length), width);
    }
    at += segment.length;
  }
  return changed;
}

}  // namespace

Result<ByteSpan> read_block(const BlockSpan& block, const std::function<Status(MutableByteSpan)>& read) {
  thread_local Bytes target;
  target.resize(block.range.length);
  WFS_TRY(read(target));
  return ByteSpan(target);
}

ListedBlock listed_block(const BlockSpan& block, ByteSpan target) {
  return {static_cast<std::uint32_t>(block.range.length), static_cast<std::uint8_t>(block.type), Xxh128::of(target)};
}

Status encode_frame(const BlockSpan& block, ByteSpan target, bool tensor, std::vector<BaseSegment> segments,
                    const ReadFile& read_base, EncodedBlock& out) {
  thread_local Bytes base, frame;
  base.clear();
  if (segments.size() > kMaxSegments) segments.clear();
  bool partial = false;
  for (const auto& segment : segments) {
    auto at = base.size();
    base.resize(at + segment.length);
    auto into = MutableByteSpan(base).subspan(at);
    if (segment.file == BaseSegment::kNone) {
      std::fill(into.begin(), into.end(), std::byte{0});
      partial = true;
    } else {
      WFS_TRY(read_base(segment.file, {segment.offset, segment.length}, into).with("parent"));
    }
  }
  frame.resize(codec::kMaxFrame);
  auto encoded = codec::encode_block(thread_scratch(), block.type, base, target, frame);
  if (tensor && !segments.empty()) {
    out.changed_elements =
        partial ? changed_in(segments, base, target, codec::width(block.type)) : encoded.changed_elements;
  }
  out.frame.codec = static_cast<std::uint8_t>(encoded.codec);
  if (codec::needs_base(encoded.codec)) out.frame.base = std::move(segments);
  out.bytes.assign(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(encoded.frame_length));
  if (!out.bytes.empty()) out.frame.digest = Sha256::of(out.bytes);
  return {};
}

}  // namespace weightfs
