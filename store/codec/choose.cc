#include "store/codec/choose.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "store/codec/element.h"
#include "store/codec/planes.h"

namespace weightfs::codec {
namespace {

// Elements that a sample takes side by side, and how many it takes of a block at most.
constexpr std::size_t kSampleRun = 64;
constexpr std::size_t kSampleElements = 16384;

template <typename E>
void sample(ByteSpan base, ByteSpan target, KeyStatistics& out) {
  using Raw = typename E::Raw;
  out.elements = base.size() / sizeof(Raw);
  auto runs = (out.elements + kSampleRun - 1) / kSampleRun;
  auto step = std::max<std::size_t>(1, runs / (kSampleElements / kSampleRun));
  for (std::size_t run = 0; run < runs; run += step) {
    auto end = std::min(out.elements, (run + 1) * kSampleRun);
    for (auto i = run * kSampleRun; i < end; ++i) {
      auto from = load_element<Raw>(base.data(), i), to = load_element<Raw>(target.data(), i);
      auto key = E::key(from);
      ++out.count[key];
      ++out.sampled;
      if (from == to) continue;
      auto d = static_cast<Raw>(to - from);
      auto magnitude = static_cast<Raw>((d >> (E::kBits - 1) != 0 ? static_cast<Raw>(-d) : d) - 1);
      ++out.changed[key];
      out.beyond_one[key] += magnitude > 0;
      out.distance[key] += std::min(static_cast<double>(magnitude), static_cast<double>(1 << 20));
    }
  }
}

bool all_zero(ByteSpan bytes) {
  return bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

std::uint64_t count_changed(ElementType type, ByteSpan base, ByteSpan target) {
  return visit_element(type, [&](auto element) {
    using Raw = typename decltype(element)::Raw;
    std::uint64_t changed = 0;
    auto elements = target.size() / sizeof(Raw);
    for (std::size_t i = 0; i < elements; ++i) {
      changed += load_element<Raw>(base.data(), i) != load_element<Raw>(target.data(), i);
    }
    return changed;
  });
}

std::optional<std::size_t> planes_as(Scratch::Impl& scratch, PlaneKind kind, ElementType type, ByteSpan base,
                                     ByteSpan target, MutableByteSpan frame, const EncodeOptions& options) {
  auto planes = scratch.planes.first(target.size());
  split_planes(kind, type, base, target, planes);
  return write_planes(type, planes, options.zstd_level, scratch.zstd, frame);
}

std::optional<std::size_t> sparse_as(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target,
                                     std::size_t limit, MutableByteSpan frame) {
  KeyStatistics statistics;
  sample_keys(type, base, target, statistics);
  double bits = 0;
  auto plan = plan_classes(statistics, bits);
  auto tail = target.last(target.size() % width(type));
  collect_sparse_scalar(type, plan, base, target, scratch.encoder);
  return write_sparse(type, plan, tail, scratch.encoder, limit, frame.data());
}

}  // namespace

void sample_keys(ElementType type, ByteSpan base, ByteSpan target, KeyStatistics& statistics) {
  visit_element(type, [&](auto element) { sample<decltype(element)>(base, target, statistics); });
}

std::optional<std::size_t> encode_as(Scratch::Impl& scratch, CodecId codec, ElementType type, ByteSpan base,
                                     ByteSpan target, MutableByteSpan frame, const EncodeOptions& options) {
  bool same_length = base.size() == target.size();
  switch (codec) {
    case CodecId::kSame:
      if (!same_length || std::memcmp(base.data(), target.data(), target.size()) != 0) return std::nullopt;
      return 0;
    case CodecId::kZero:
      if (!all_zero(target)) return std::nullopt;
      return 0;
    case CodecId::kRaw:
      std::copy(target.begin(), target.end(), frame.begin());
      return target.size();
    case CodecId::kZstd:
      return scratch.zstd.compress(target, {}, options.zstd_level, frame);
    case CodecId::kZstdPatch:
      return scratch.zstd.compress(target, base, options.zstd_level, frame);
    case CodecId::kPlanes:
      return planes_as(scratch, PlaneKind::kFull, type, base, target, frame, options);
    case CodecId::kDenseXor:
    case CodecId::kDenseDistance:
      if (!same_length) return std::nullopt;
      return planes_as(scratch, codec == CodecId::kDenseXor ? PlaneKind::kXor : PlaneKind::kDistance, type, base,
                       target, frame, options);
    case CodecId::kSparse:
      if (!same_length) return std::nullopt;
      return sparse_as(scratch, type, base, target, kMaxFrame - kBitSlack, frame);
  }
  return std::nullopt;
}

Encoded choose_and_encode(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target,
                          MutableByteSpan frame, const EncodeOptions& options) {
  bool same_length = base.size() == target.size();
  if (encode_as(scratch, CodecId::kSame, type, base, target, frame, options)) return {.codec = CodecId::kSame};
  Encoded best{.codec = CodecId::kRaw, .frame_length = target.size() + 1};
  if (same_length) best.changed_elements = count_changed(type, base, target);
  auto consider = [&](CodecId codec) {
    auto other = scratch.frame.first(kMaxFrame);
    auto size = encode_as(scratch, codec, type, base, target, other, options);
    if (!size || *size >= best.frame_length) return;
    best.codec = codec;
    best.frame_length = *size;
    std::copy_n(other.begin(), *size, frame.begin());
  };
  consider(CodecId::kZero);
  if (best.frame_length == 0) return best;
  for (auto codec : {CodecId::kRaw, CodecId::kZstd, CodecId::kPlanes, CodecId::kSparse, CodecId::kDenseXor,
                     CodecId::kDenseDistance}) {
    consider(codec);
  }
  if (!base.empty() && type == ElementType::kBytes) consider(CodecId::kZstdPatch);
  return best;
}

}  // namespace weightfs::codec
