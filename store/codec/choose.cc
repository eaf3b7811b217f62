#include "store/codec/choose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "store/codec/element.h"
#include "store/codec/planes.h"

namespace weightfs::codec {
namespace {

// What a sample takes of a block: runs of neighbours, evenly spread.
constexpr std::size_t kSampleRun = 64;
constexpr std::size_t kSampleElements = 8192;
// What a trial encodes of a block: that many pieces of that many bytes.
constexpr std::size_t kTrialPieces = 8;
constexpr std::size_t kTrialBytes = 6144;
// A trial's sizes are taken for exact within this; what is closer to the best is encoded to see.
constexpr double kTrialError = 1.06;
// Sparse frames with fewer changes than this, evenly spread and not longer than planned, need no comparison.
constexpr double kSurelySparse = 0.2;

template <typename E>
void sample(ByteSpan base, ByteSpan target, KeyStatistics& out) {
  using Raw = typename E::Raw;
  out.elements = base.size() / sizeof(Raw);
  std::array<std::uint32_t, 256> odd{};
  auto runs = (out.elements + kSampleRun - 1) / kSampleRun;
  auto step = std::max<std::size_t>(1, runs / (kSampleElements / kSampleRun));
  for (std::size_t run = 0; run < runs; run += step) {
    auto end = std::min(out.elements, (run + 1) * kSampleRun);
    out.sampled += end - run * kSampleRun;
    ++out.runs;
    auto i = run * kSampleRun;
    out.active_runs +=
        std::memcmp(base.data() + i * sizeof(Raw), target.data() + i * sizeof(Raw), (end - i) * sizeof(Raw)) != 0;
    // Neighbours often have one key: two tables, so that a count need not wait for the one before.
    for (; i + 1 < end; i += 2) {
      ++out.count[E::key(load_element<Raw>(base.data(), i))];
      ++odd[E::key(load_element<Raw>(base.data(), i + 1))];
    }
    if (i < end) ++out.count[E::key(load_element<Raw>(base.data(), i))];
    for (i = run * kSampleRun; i < end; ++i) {
      auto from = load_element<Raw>(base.data(), i), to = load_element<Raw>(target.data(), i);
      if (from == to) continue;
      auto key = E::key(from);
      auto d = static_cast<Raw>(to - from);
      auto magnitude = static_cast<Raw>((d >> (E::kBits - 1) != 0 ? static_cast<Raw>(-d) : d) - 1);
      ++out.changed[key];
      out.beyond_one[key] += magnitude > 0;
      out.distance[key] += static_cast<double>(magnitude);
    }
  }
  for (std::size_t key = 0; key < odd.size(); ++key) out.count[key] += odd[key];
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
                                     ByteSpan target, MutableByteSpan frame) {
  auto planes = scratch.planes.first(target.size());
  split_planes(kind, type, base, target, planes);
  return write_planes(type, planes, ZstdCodec::kEntropy, scratch.zstd, frame);
}

// Changes come in clusters (rows of an embedding): fewer runs have one than chance would have it.
bool clustered(const KeyStatistics& statistics) {
  double changed = 0;
  for (auto count : statistics.changed) changed += count;
  auto quiet = std::pow(1 - changed / static_cast<double>(statistics.sampled), static_cast<double>(kSampleRun));
  auto expected = (1 - quiet) * static_cast<double>(statistics.runs);
  return expected > 8 && static_cast<double>(statistics.active_runs) < 0.5 * expected;
}

struct Sparse {
  std::optional<std::size_t> size;
  double planned = 0;  // bytes
  std::uint64_t changed = 0;
  bool clustered = false;
};

Sparse encode_sparse(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target, std::size_t limit,
                     MutableByteSpan frame) {
  Sparse result;
  KeyStatistics statistics;
  sample_keys(type, base, target, statistics);
  auto plan = plan_classes(statistics, result.planned);
  result.planned /= 8;
  result.clustered = clustered(statistics);
  collect_sparse(type, plan, base, target, scratch.encoder);
  for (int c = 0; c < plan.classes; ++c) result.changed += scratch.encoder.events[c].size;
  result.size =
      write_sparse(type, plan, target.last(target.size() % width(type)), scratch.encoder, limit, frame.data());
  return result;
}

// Frames of candidates, the shortest of them in `frame`.
class Contest {
 public:
  Contest(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target, MutableByteSpan frame,
          const EncodeOptions& options)
      : scratch_(scratch), type_(type), base_(base), target_(target), frame_(frame), options_(options) {}

  Encoded run() {
    if (encode_as(scratch_, CodecId::kSame, type_, base_, target_, frame_, options_)) return {CodecId::kSame, 0, 0};
    bool same_length = base_.size() == target_.size();
    if (all_zero(target_)) {
      return {CodecId::kZero, 0, same_length ? count_changed(type_, base_, target_) : 0};
    }
    if (same_length && target_.size() >= width(type_)) {
      auto sparse = encode_sparse(scratch_, type_, base_, target_, target_.size() - 1, frame_);
      best_.changed_elements = sparse.changed;
      clustered_ = sparse.clustered;
      if (sparse.size) {
        best_.codec = CodecId::kSparse;
        best_.frame_length = *sparse.size;
        auto elements = static_cast<double>(target_.size() / width(type_));
        bool few = static_cast<double>(sparse.changed) < kSurelySparse * elements;
        if (few && !sparse.clustered && static_cast<double>(*sparse.size) < 1.3 * sparse.planned + 64) {
          return best_;
        }
      }
    }
    if (best_.codec == CodecId::kRaw) best_.frame_length = target_.size() + 1;  // nothing yet
    others();
    if (best_.frame_length > target_.size()) take(CodecId::kRaw);
    return best_;
  }

 private:
  void take(CodecId codec) {
    auto other = scratch_.frame.first(kMaxFrame);
    auto size = encode_as(scratch_, codec, type_, base_, target_, other, options_);
    if (!size || *size >= best_.frame_length) return;
    best_.codec = codec;
    best_.frame_length = *size;
    std::copy_n(other.begin(), *size, frame_.begin());
  }

  // All but the sparse codec: by trials on a part of the block if it is long.
  void others() {
    bool same_length = base_.size() == target_.size();
    std::array<CodecId, 5> candidates;
    std::size_t count = 0;
    candidates[count++] = CodecId::kZstd;
    if (type_ != ElementType::kBytes) candidates[count++] = CodecId::kPlanes;
    if (same_length) {
      candidates[count++] = CodecId::kDenseXor;
      candidates[count++] = CodecId::kDenseDistance;
    }
    // What is no tensor may have moved.
    if (type_ == ElementType::kBytes && !base_.empty()) take(CodecId::kZstdPatch);
    auto span = std::span(candidates).first(count);
    // Pieces tell little of a block that changed here and there.
    if (clustered_ || target_.size() <= 2 * kTrialPieces * kTrialBytes) {
      for (auto codec : span) take(codec);
      return;
    }
    std::array<double, 5> trials;
    for (std::size_t i = 0; i < count; ++i) trials[i] = trial(span[i]);
    auto best = *std::min_element(trials.begin(), trials.begin() + static_cast<std::ptrdiff_t>(count));
    auto bound = std::min(best, static_cast<double>(best_.frame_length)) * kTrialError;
    for (std::size_t i = 0; i < count; ++i) {
      if (trials[i] <= bound) take(span[i]);
    }
  }

  // About the size of the block's frame, from some of its pieces.
  double trial(CodecId codec) {
    auto piece = kTrialBytes, stride = target_.size() / kTrialPieces / 8 * 8;
    auto from = scratch_.trial_base.first(kTrialPieces * piece), to = scratch_.trial_target.first(kTrialPieces * piece);
    for (std::size_t i = 0; i < kTrialPieces; ++i) {
      std::copy_n(target_.begin() + static_cast<std::ptrdiff_t>(i * stride), piece,
                  to.begin() + static_cast<std::ptrdiff_t>(i * piece));
      if (!needs_base(codec)) continue;
      std::copy_n(base_.begin() + static_cast<std::ptrdiff_t>(i * stride), piece,
                  from.begin() + static_cast<std::ptrdiff_t>(i * piece));
    }
    auto size = encode_as(scratch_, codec, type_, from, to, scratch_.frame.first(kMaxFrame), options_);
    if (!size) return 1e30;
    return static_cast<double>(*size) * static_cast<double>(target_.size()) / static_cast<double>(to.size());
  }

  Scratch::Impl& scratch_;
  ElementType type_;
  ByteSpan base_, target_;
  MutableByteSpan frame_;
  const EncodeOptions& options_;
  Encoded best_;
  bool clustered_ = false;
};

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
      return planes_as(scratch, PlaneKind::kFull, type, base, target, frame);
    case CodecId::kDenseXor:
    case CodecId::kDenseDistance:
      if (!same_length) return std::nullopt;
      return planes_as(scratch, codec == CodecId::kDenseXor ? PlaneKind::kXor : PlaneKind::kDistance, type, base,
                       target, frame);
    case CodecId::kSparse:
      if (!same_length) return std::nullopt;
      return encode_sparse(scratch, type, base, target, kMaxFrame - kBitSlack, frame).size;
  }
  return std::nullopt;
}

Encoded choose_and_encode(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target,
                          MutableByteSpan frame, const EncodeOptions& options) {
  return Contest(scratch, type, base, target, frame, options).run();
}

}  // namespace weightfs::codec
