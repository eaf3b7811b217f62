// The sparse decoder in AVX-512 (VBMI2: the expansion of bytes is one instruction).
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "store/codec/element.h"
#include "store/codec/sparse.h"

#define WEIGHTFS_SIMD_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,popcnt,lzcnt"
#include "store/codec/simd_begin.h"

namespace weightfs::codec {
namespace {

#include "store/codec/sparse_group.h"
// After it:
#include "store/codec/sparse_kernel.h"

// What all widths share. The keys' bytes are the element's top bits behind the sign, so the exponent comes first and
// mantissa bits may follow: a threshold is shifted up by their number.
template <typename Type, int kExtraBits>
struct Vectors {
  using E = Type;
  static constexpr int kRegisters = E::kWidth;
  struct Group {
    __m512i r[kRegisters];
  };
  using Threshold = __m512i;

  static Threshold threshold(std::uint8_t key) { return _mm512_set1_epi8(static_cast<char>(key << kExtraBits)); }
  static Group load(const std::byte* from) {
    Group group;
    for (int i = 0; i < kRegisters; ++i) group.r[i] = _mm512_loadu_si512(from + 64 * i);
    return group;
  }
  static __m512i keys(const Group& group) {
    if constexpr (E::kWidth == 1) {
      return _mm512_add_epi8(group.r[0], group.r[0]);
    } else if constexpr (E::kWidth == 2) {
      alignas(64) static constexpr auto kOdd = [] {
        std::array<std::uint8_t, 64> odd{};
        for (std::size_t i = 0; i < 64; ++i) odd[i] = static_cast<std::uint8_t>(2 * i + 1);
        return odd;
      }();
      return _mm512_permutex2var_epi8(_mm512_slli_epi16(group.r[0], 1), _mm512_load_si512(kOdd.data()),
                                      _mm512_slli_epi16(group.r[1], 1));
    } else {
      auto top = [&](int i) { return _mm512_cvtepi32_epi8(_mm512_srli_epi32(group.r[i], 23)); };
      auto low = _mm256_inserti128_si256(_mm256_castsi128_si256(top(0)), top(1), 1);
      auto high = _mm256_inserti128_si256(_mm256_castsi128_si256(top(2)), top(3), 1);
      return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
  }
  static std::uint64_t at_least(__m512i keys, Threshold threshold) { return _mm512_cmpge_epu8_mask(keys, threshold); }

  static __m512i no_deltas() { return _mm512_setzero_si512(); }
  static void expand(__m512i& deltas, std::uint64_t mask, const std::int8_t* ranked, bool) {
    auto bytes = _mm512_loadu_si512(ranked);
    // Keeps the compiler from folding the load into the expansion, whose memory form is slow on Zen 4.
    asm("" : "+v"(bytes));
    deltas = _mm512_mask_expand_epi8(deltas, mask, bytes);
  }
  static std::uint64_t specials(__m512i deltas) {
    return _mm512_cmpgt_epu8_mask(_mm512_abs_epi8(deltas), _mm512_set1_epi8(kSpecialUp - 1));
  }
  static void store(std::byte* to, const Group& group, __m512i deltas, std::uint64_t specials) {
    deltas = _mm512_maskz_mov_epi8(~specials, deltas);
    if constexpr (E::kWidth == 1) {
      _mm512_storeu_si512(to, _mm512_add_epi8(group.r[0], deltas));
    } else if constexpr (E::kWidth == 2) {
      auto low = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(deltas));
      auto high = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(deltas, 1));
      _mm512_storeu_si512(to, _mm512_add_epi16(group.r[0], low));
      _mm512_storeu_si512(to + 64, _mm512_add_epi16(group.r[1], high));
    } else {
      auto put = [&](int i, __m128i quarter) {
        _mm512_storeu_si512(to + 64 * i, _mm512_add_epi32(group.r[i], _mm512_cvtepi8_epi32(quarter)));
      };
      put(0, _mm512_castsi512_si128(deltas));
      put(1, _mm512_extracti32x4_epi32(deltas, 1));
      put(2, _mm512_extracti32x4_epi32(deltas, 2));
      put(3, _mm512_extracti32x4_epi32(deltas, 3));
    }
  }
  static void fill(std::uint8_t* to, std::uint8_t value) {
    _mm512_storeu_si512(to, _mm512_set1_epi8(static_cast<char>(value)));
  }
  // The places of the ones, as bytes.
  static void list(std::uint8_t* to, std::uint64_t ones) {
    alignas(64) static constexpr auto kPlaces = [] {
      std::array<std::uint8_t, 64> places{};
      for (std::size_t i = 0; i < 64; ++i) places[i] = static_cast<std::uint8_t>(i);
      return places;
    }();
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(ones, _mm512_load_si512(kPlaces.data())));
  }
  static void spill(std::int8_t* to, __m512i deltas) { _mm512_store_si512(to, deltas); }
};

// Calls f.template operator()<V>() with the vectors of a type; false if it has none.
template <typename F>
bool visit_vectors(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kBf16:
      return f.template operator()<Vectors<Element<ElementType::kBf16>, 0>>(), true;
    case ElementType::kF16:
      return f.template operator()<Vectors<Element<ElementType::kF16>, 3>>(), true;
    case ElementType::kF32:
      return f.template operator()<Vectors<Element<ElementType::kF32>, 0>>(), true;
    case ElementType::kF8E4M3:
      return f.template operator()<Vectors<Element<ElementType::kF8E4M3>, 4>>(), true;
    case ElementType::kF8E5M2:
      return f.template operator()<Vectors<Element<ElementType::kF8E5M2>, 3>>(), true;
    case ElementType::kBytes:
      return f.template operator()<Vectors<Element<ElementType::kBytes>, 0>>(), true;
    case ElementType::kInt16:
      return f.template operator()<Vectors<Element<ElementType::kInt16>, 0>>(), true;
    case ElementType::kInt32:
      return f.template operator()<Vectors<Element<ElementType::kInt32>, 0>>(), true;
    default:
      return false;
  }
}

}  // namespace

Status decode_sparse_avx512(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                            std::byte* out, std::size_t elements) {
  Status status;
  auto run = [&]<typename V>() { status = decode_by_ranks<V>(frame, workspace, base, out, elements); };
  return visit_vectors(type, run) ? status : decode_sparse_scalar(type, frame, base, out, elements);
}

}  // namespace weightfs::codec

#include "store/codec/simd_end.h"
#endif
