// What the codec knows of an element type: an unsigned integer that holds the raw bits, and the key by which elements
// are told apart: the exponent field of the float types, 0 for all others.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "store/codec/codec.h"

namespace weightfs::codec {

// Exponents of f64 run over 11 bits; 2^-128 to 2^127 get a key each, what lies outside shares the first and the last.
inline constexpr int kF64KeyBias = 1023 - 128;

template <ElementType kType>
struct Element {
  static constexpr int kWidth =
      kType == ElementType::kBytes || kType == ElementType::kF8E4M3 || kType == ElementType::kF8E5M2 ? 1
      : kType == ElementType::kF32 || kType == ElementType::kInt32                                   ? 4
      : kType == ElementType::kF64 || kType == ElementType::kInt64                                   ? 8
                                                                                                     : 2;
  static constexpr int kBits = 8 * kWidth;
  using Raw = std::conditional_t<
      kWidth == 1, std::uint8_t,
      std::conditional_t<kWidth == 2, std::uint16_t, std::conditional_t<kWidth == 4, std::uint32_t, std::uint64_t>>>;

  static constexpr bool kHasExponent = kType == ElementType::kBf16 || kType == ElementType::kF16 ||
                                       kType == ElementType::kF32 || kType == ElementType::kF8E4M3 ||
                                       kType == ElementType::kF8E5M2 || kType == ElementType::kF64;

  static constexpr int kKeys = !kHasExponent                                                 ? 1
                               : kType == ElementType::kF8E4M3                               ? 16
                               : kType == ElementType::kF16 || kType == ElementType::kF8E5M2 ? 32
                                                                                             : 256;

  static constexpr std::uint8_t key(Raw raw) {
    switch (kType) {
      case ElementType::kBf16:
        return static_cast<std::uint8_t>(raw >> 7);
      case ElementType::kF16:
        return (raw >> 10) & 0x1F;
      case ElementType::kF32:
        return static_cast<std::uint8_t>(raw >> 23);
      case ElementType::kF8E4M3:
        return (raw >> 3) & 0x0F;
      case ElementType::kF8E5M2:
        return (raw >> 2) & 0x1F;
      case ElementType::kF64:
        return static_cast<std::uint8_t>(
            std::clamp(static_cast<int>((static_cast<std::uint64_t>(raw) >> 52) & 0x7FF) - kF64KeyBias, 0, 255));
      default:
        return 0;
    }
  }
};

// Calls f with the Element of `type`.   REQUIRES: type is one of the enumerators
template <typename F>
decltype(auto) visit_element(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kBf16:
      return f(Element<ElementType::kBf16>{});
    case ElementType::kF16:
      return f(Element<ElementType::kF16>{});
    case ElementType::kF32:
      return f(Element<ElementType::kF32>{});
    case ElementType::kF8E4M3:
      return f(Element<ElementType::kF8E4M3>{});
    case ElementType::kF8E5M2:
      return f(Element<ElementType::kF8E5M2>{});
    case ElementType::kF64:
      return f(Element<ElementType::kF64>{});
    case ElementType::kInt16:
      return f(Element<ElementType::kInt16>{});
    case ElementType::kInt32:
      return f(Element<ElementType::kInt32>{});
    case ElementType::kInt64:
      return f(Element<ElementType::kInt64>{});
    case ElementType::kBytes:
      break;
  }
  return f(Element<ElementType::kBytes>{});
}

inline int keys(ElementType type) {
  return visit_element(type, [](auto element) { return decltype(element)::kKeys; });
}

// Elements in a block's bytes: unaligned, little-endian.
template <typename Raw>
Raw load_element(const std::byte* block, std::size_t index) {
  return load_le<Raw>(block + index * sizeof(Raw));
}
template <typename Raw>
void store_element(std::byte* block, std::size_t index, Raw raw) {
  store_le<Raw>(block + index * sizeof(Raw), raw);
}

}  // namespace weightfs::codec
