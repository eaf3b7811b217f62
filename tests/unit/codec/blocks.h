// Blocks to code: made from a seed, every element type, the updates that training makes and those that nothing makes.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "store/codec/element.h"

namespace weightfs::codec {

struct BlockPair {
  Bytes base, target;
};

enum class Update {
  kNone,
  kAll,            // every element by a small distance
  kRandomBits,     // nothing in common with the base
  kSpecial,        // NaN payloads, infinities, zeros of both signs, denormals, sign flips
  kOne,            // one element
  kTrained,        // likelier the smaller the element, mostly by one
  kTrainedLittle,  // the same, about 1 in 500
};
inline constexpr std::array kUpdates = {Update::kNone, Update::kAll,     Update::kRandomBits,   Update::kSpecial,
                                        Update::kOne,  Update::kTrained, Update::kTrainedLittle};

using Rng = std::mt19937_64;

inline double uniform(Rng& rng) { return static_cast<double>(rng() >> 11) * 0x1p-53; }

template <typename E>
typename E::Raw weight(Rng& rng) {
  std::normal_distribution<double> normal(0, 0.03);
  double w = normal(rng);
  if constexpr (!E::kHasExponent) return static_cast<typename E::Raw>(static_cast<std::int64_t>(w * 1000));
  if constexpr (E::kWidth == 8) return std::bit_cast<std::uint64_t>(w);
  auto f32 = std::bit_cast<std::uint32_t>(static_cast<float>(w));
  if constexpr (E::kWidth == 4) return f32;
  if constexpr (E::kWidth == 2) {
    if (E::key(0x7F80) == 0xFF) return static_cast<typename E::Raw>(f32 >> 16);
    auto exponent = std::clamp(static_cast<int>(f32 >> 23 & 0xFF) - 112, 0, 30);
    return static_cast<typename E::Raw>((f32 >> 16 & 0x8000) | static_cast<unsigned>(exponent) << 10 |
                                        (f32 >> 13 & 0x3FF));
  }
  return static_cast<typename E::Raw>((f32 >> 24 & 0x80) | (rng() & 0x3F));
}

template <typename Raw>
Raw special(Rng& rng, Raw from) {
  constexpr int kBits = 8 * sizeof(Raw);
  const auto top = static_cast<Raw>(Raw{1} << (kBits - 1));
  switch (rng() % 8) {
    case 0:
      return 0;
    case 1:
      return top;
    case 2:
      return static_cast<Raw>(from ^ top);
    case 3:
      return static_cast<Raw>(~Raw{0} >> 1);
    case 4:
      return static_cast<Raw>(~Raw{0} - (rng() & 7));
    case 5:
      return static_cast<Raw>(rng() & 3);
    case 6:
      return static_cast<Raw>(from + top);
    default:
      return static_cast<Raw>(rng());
  }
}

template <typename E>
typename E::Raw updated(Rng& rng, Update update, typename E::Raw from) {
  using Raw = typename E::Raw;
  auto by_one = static_cast<Raw>(rng() & 1 ? from + 1 : from - 1);
  switch (update) {
    case Update::kAll:
      return static_cast<Raw>(from + (rng() % 9) - 4);
    case Update::kRandomBits:
      return static_cast<Raw>(rng());
    case Update::kSpecial:
      return rng() % 4 == 0 ? special<Raw>(rng, from) : from;
    case Update::kTrained:
    case Update::kTrainedLittle: {
      double chance = std::exp2(-0.9 * (E::key(from) & 15)) * (update == Update::kTrained ? 40 : 0.4) + 0.001;
      if (uniform(rng) >= chance) return from;
      return rng() % 10 == 0 ? static_cast<Raw>(from + rng() % 200 - 100) : by_one;
    }
    default:
      return from;
  }
}

// `length` need not be a multiple of the width.
inline BlockPair make_pair(ElementType type, std::size_t length, Update update, std::uint64_t seed) {
  Rng rng(seed);
  BlockPair pair{Bytes(length), Bytes(length)};
  visit_element(type, [&](auto element) {
    using E = decltype(element);
    auto elements = length / E::kWidth;
    for (std::size_t i = 0; i < elements; ++i) {
      auto from = weight<E>(rng);
      if (update == Update::kSpecial && rng() % 3 == 0) from = special(rng, from);
      store_element(pair.base.data(), i, from);
      store_element(pair.target.data(), i, updated<E>(rng, update, from));
    }
    for (auto i = elements * E::kWidth; i < length; ++i) {
      pair.base[i] = static_cast<std::byte>(rng());
      pair.target[i] = update == Update::kNone ? pair.base[i] : static_cast<std::byte>(rng());
    }
  });
  if (update == Update::kOne) pair.target[rng() % length] ^= std::byte{0x10};
  return pair;
}

inline std::string describe(ElementType type, std::size_t length, Update update, std::uint64_t seed) {
  return "type " + std::to_string(static_cast<int>(type)) + " length " + std::to_string(length) + " update " +
         std::to_string(static_cast<int>(update)) + " seed " + std::to_string(seed);
}

inline constexpr std::array kAllTypes = {
    ElementType::kBytes,  ElementType::kBf16, ElementType::kF16,   ElementType::kF32,   ElementType::kF8E4M3,
    ElementType::kF8E5M2, ElementType::kF64,  ElementType::kInt16, ElementType::kInt32, ElementType::kInt64};
static_assert(kAllTypes.size() == kElementTypes);

inline constexpr std::array kAllCodecs = {CodecId::kSame,          CodecId::kRaw,       CodecId::kZstd,
                                          CodecId::kPlanes,        CodecId::kSparse,    CodecId::kDenseXor,
                                          CodecId::kDenseDistance, CodecId::kZstdPatch, CodecId::kZero};

}  // namespace weightfs::codec
