// The sparse decoder in AVX2: bytes are expanded by PDEP where that is fast, else by shuffles from a table.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "store/codec/element.h"
#include "store/codec/sparse.h"

#define WEIGHTFS_SIMD_TARGET "avx2,bmi,bmi2,popcnt,lzcnt"
#include "store/codec/simd_begin.h"

namespace weightfs::codec {
namespace {

#include "store/codec/sparse_group.h"
// After it:
#include "store/codec/sparse_collect_kernel.h"
#include "store/codec/sparse_place_kernel.h"

struct ByteVectors {
  __m256i low, high;  // elements 0 to 31, 32 to 63
};

std::uint64_t top_bits(__m256i low, __m256i high) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
}
// Keys and loads; see the AVX-512 twin. Keys are compared signed, with their top bit flipped.
template <typename Type, int kExtraBits>
struct Vectors {
  using E = Type;
  static constexpr int kRegisters = 2 * E::kWidth;
  struct Group {
    __m256i r[kRegisters];
  };
  using Threshold = __m256i;

  static Threshold threshold(std::uint8_t key) {
    return _mm256_set1_epi8(static_cast<char>(((key << kExtraBits) - 1) ^ 0x80));
  }
  static Group load(const std::byte* from) {
    Group group;
    for (int i = 0; i < kRegisters; ++i) {
      group.r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
    }
    return group;
  }
  static ByteVectors keys(const Group& group) {
    const auto flip = _mm256_set1_epi8(static_cast<char>(0x80));
    ByteVectors keys;
    if constexpr (E::kWidth == 1) {
      keys = {_mm256_add_epi8(group.r[0], group.r[0]), _mm256_add_epi8(group.r[1], group.r[1])};
    } else if constexpr (E::kWidth == 2) {
      auto top = [&](int i) { return _mm256_srli_epi16(_mm256_add_epi16(group.r[i], group.r[i]), 8); };
      auto pack = [&](int i) { return _mm256_permute4x64_epi64(_mm256_packus_epi16(top(i), top(i + 1)), 0xD8); };
      keys = {pack(0), pack(2)};
    } else {
      auto top = [&](int i) { return _mm256_srli_epi32(_mm256_add_epi32(group.r[i], group.r[i]), 24); };
      auto pack = [&](int i) {
        auto bytes =
            _mm256_packus_epi16(_mm256_packus_epi32(top(i), top(i + 1)), _mm256_packus_epi32(top(i + 2), top(i + 3)));
        return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
      };
      keys = {pack(0), pack(4)};
    }
    return {_mm256_xor_si256(keys.low, flip), _mm256_xor_si256(keys.high, flip)};
  }
  static std::uint64_t at_least(const ByteVectors& keys, Threshold below) {
    return top_bits(_mm256_cmpgt_epi8(keys.low, below), _mm256_cmpgt_epi8(keys.high, below));
  }
  static std::uint64_t differ(const Group& a, const Group& b) {
    if constexpr (E::kWidth == 1) {
      return ~top_bits(_mm256_cmpeq_epi8(a.r[0], b.r[0]), _mm256_cmpeq_epi8(a.r[1], b.r[1]));
    } else if constexpr (E::kWidth == 2) {
      auto same = [&](int i) {
        auto packed =
            _mm256_packs_epi16(_mm256_cmpeq_epi16(a.r[i], b.r[i]), _mm256_cmpeq_epi16(a.r[i + 1], b.r[i + 1]));
        return _mm256_permute4x64_epi64(packed, 0xD8);
      };
      return ~top_bits(same(0), same(2));
    } else {
      std::uint64_t same = 0;
      for (int i = 0; i < 8; ++i) {
        auto equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.r[i], b.r[i]));
        same |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(equal))) << (8 * i);
      }
      return ~same;
    }
  }
  static void fill(std::uint8_t* to, std::uint8_t value) {
    auto bytes = _mm256_set1_epi8(static_cast<char>(value));
    put(reinterpret_cast<std::byte*>(to), bytes);
    put(reinterpret_cast<std::byte*>(to) + 32, bytes);
  }
  static void store(std::byte* to, const Group& group) {
    for (int i = 0; i < kRegisters; ++i) put(to + 32 * i, group.r[i]);
  }
  static void put(std::byte* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
};

// Where in a group the class's element of a rank is: the n-th one of its members. By PDEP, where that is fast.
template <typename Type, int kExtraBits>
struct PdepVectors : Vectors<Type, kExtraBits> {
  static std::uint64_t before(std::uint64_t, std::uint32_t rank) { return rank; }
  static std::size_t place(std::uint64_t members, std::uint64_t before, std::size_t rank) {
    return static_cast<std::size_t>(std::countr_zero(_pdep_u64(1ULL << (rank - before), members)));
  }
};

// The place of the n-th one in a byte.
alignas(64) constexpr auto kSelect = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::size_t n = 0;
    for (std::uint8_t i = 0; i < 8; ++i) {
      if (byte >> i & 1) table[byte][n++] = i;
    }
  }
  return table;
}();

constexpr std::uint64_t kEachByte = 0x0101010101010101;
constexpr std::uint64_t kTopBits = 0x8080808080808080;

// Without PDEP: by bytes, all at once. From the rank in each byte of a word is taken how many ones are before that
// byte; `before` has these numbers, less 128. So the top bit of a byte stays set if it is not past the place, the last
// of them has the place, and its low bits say which one of that byte it is.
template <typename Type, int kExtraBits>
struct TableVectors : Vectors<Type, kExtraBits> {
  static std::uint64_t before(std::uint64_t members, std::uint32_t rank) {
    auto counts = members - (members >> 1 & 0x5555555555555555);
    counts = (counts & 0x3333333333333333) + (counts >> 2 & 0x3333333333333333);
    counts = (counts + (counts >> 4)) & 0x0F0F0F0F0F0F0F0F;
    return ((counts * kEachByte) << 8) + rank * kEachByte - kTopBits;
  }
  static std::size_t place(std::uint64_t members, std::uint64_t before, std::size_t rank) {
    auto ranks = rank * kEachByte - before;
    auto at = 8 * static_cast<std::size_t>(std::popcount(ranks & kTopBits)) - 8;
    return at + kSelect[members >> at & 0xFF][ranks >> at & 7];
  }
};

// Calls f.template operator()<V<…>>() with the vectors of a type; false if it has none.
template <template <typename, int> typename V, typename F>
bool visit_vectors(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kBf16:
      return f.template operator()<V<Element<ElementType::kBf16>, 0>>(), true;
    case ElementType::kF16:
      return f.template operator()<V<Element<ElementType::kF16>, 3>>(), true;
    case ElementType::kF32:
      return f.template operator()<V<Element<ElementType::kF32>, 0>>(), true;
    case ElementType::kF8E4M3:
      return f.template operator()<V<Element<ElementType::kF8E4M3>, 4>>(), true;
    case ElementType::kF8E5M2:
      return f.template operator()<V<Element<ElementType::kF8E5M2>, 3>>(), true;
    case ElementType::kBytes:
      return f.template operator()<V<Element<ElementType::kBytes>, 0>>(), true;
    case ElementType::kInt16:
      return f.template operator()<V<Element<ElementType::kInt16>, 0>>(), true;
    case ElementType::kInt32:
      return f.template operator()<V<Element<ElementType::kInt32>, 0>>(), true;
    default:
      return false;
  }
}

}  // namespace

Status decode_sparse_avx2(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                          std::byte* out, std::size_t elements) {
  Status status;
  auto run = [&]<typename V>() { status = decode_by_places<V>(frame, workspace, base, out, elements); };
  return visit_vectors<TableVectors>(type, run) ? status : decode_sparse_scalar(type, frame, base, out, elements);
}

Status decode_sparse_avx2_pdep(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                               std::byte* out, std::size_t elements) {
  Status status;
  auto run = [&]<typename V>() { status = decode_by_places<V>(frame, workspace, base, out, elements); };
  return visit_vectors<PdepVectors>(type, run) ? status : decode_sparse_scalar(type, frame, base, out, elements);
}

void collect_sparse_avx2(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target,
                         SparseEncoder& encoder) {
  auto run = [&]<typename V>() { collect_with<V>(plan, base, target, encoder); };
  if (!visit_vectors<Vectors>(type, run)) collect_sparse_scalar(type, plan, base, target, encoder);
}

}  // namespace weightfs::codec

#include "store/codec/simd_end.h"
#endif
