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

#include "store/codec/sparse_kernel.h"
// After it:
#include "store/codec/sparse_collect_kernel.h"

struct ByteVectors {
  __m256i low, high;  // elements 0 to 31, 32 to 63
};

std::uint64_t top_bits(__m256i low, __m256i high) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
}
// All ones where a byte is no distance by itself.
__m256i special_bytes(__m256i x) {
  auto limit = _mm256_set1_epi8(kSpecialUp);
  return _mm256_cmpeq_epi8(_mm256_min_epu8(_mm256_abs_epi8(x), limit), limit);
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
  static void put(std::byte* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
};

// What 8 bits of a mask do to the next bytes of a class: byte i goes to the place of the i-th one, zero elsewhere.
alignas(64) constexpr auto kExpand = [] {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (std::size_t mask = 0; mask < 256; ++mask) {
    std::uint8_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) table[mask][i] = mask >> i & 1 ? next++ : 0x80;
  }
  return table;
}();

template <typename Type, int kExtraBits>
struct TableVectors : Vectors<Type, kExtraBits> {
  using Base = Vectors<Type, kExtraBits>;
  using typename Base::Group;

  static ByteVectors no_deltas() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

  static __m128i expand_16(std::uint64_t mask, const std::int8_t* low, const std::int8_t* high) {
    auto load = [&](const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); };
    auto bytes = _mm_unpacklo_epi64(load(low), load(high));
    auto order = _mm_unpacklo_epi64(load(kExpand[mask & 0xFF].data()), load(kExpand[mask >> 8 & 0xFF].data()));
    // The second half's bytes are 8 further on; 0x80 keeps its top bit.
    return _mm_shuffle_epi8(bytes, _mm_add_epi8(order, _mm_set_epi64x(0x0808080808080808, 0)));
  }
  static void expand(ByteVectors& deltas, std::uint64_t mask, const std::int8_t* ranked, bool) {
    // ones[b]: bits of the mask below its byte b.
    auto counts = mask - (mask >> 1 & 0x5555555555555555);
    counts = (counts & 0x3333333333333333) + (counts >> 2 & 0x3333333333333333);
    counts = (counts + (counts >> 4)) & 0x0F0F0F0F0F0F0F0F;
    auto ones = (counts * 0x0101010101010101) << 8;
    auto at = [&](int b) { return ranked + (ones >> (8 * b) & 0xFF); };
    auto sixteen = [&](int b) { return expand_16(mask >> (8 * b), at(b), at(b + 1)); };
    auto low = _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen(0)), sixteen(2), 1);
    auto high = _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen(4)), sixteen(6), 1);
    deltas = {_mm256_or_si256(deltas.low, low), _mm256_or_si256(deltas.high, high)};
  }
  static std::uint64_t specials(const ByteVectors& deltas) {
    return top_bits(special_bytes(deltas.low), special_bytes(deltas.high));
  }
  static void store(std::byte* to, const Group& group, ByteVectors deltas, std::uint64_t specials) {
    if (specials != 0) {
      auto keep = [&](__m256i x) { return _mm256_andnot_si256(special_bytes(x), x); };
      deltas = {keep(deltas.low), keep(deltas.high)};
    }
    if constexpr (Type::kWidth == 1) {
      Base::put(to, _mm256_add_epi8(group.r[0], deltas.low));
      Base::put(to + 32, _mm256_add_epi8(group.r[1], deltas.high));
    } else if constexpr (Type::kWidth == 2) {
      auto put = [&](int i, __m128i sixteen) {
        Base::put(to + 32 * i, _mm256_add_epi16(group.r[i], _mm256_cvtepi8_epi16(sixteen)));
      };
      put(0, _mm256_castsi256_si128(deltas.low));
      put(1, _mm256_extracti128_si256(deltas.low, 1));
      put(2, _mm256_castsi256_si128(deltas.high));
      put(3, _mm256_extracti128_si256(deltas.high, 1));
    } else {
      auto put = [&](int i, __m128i eight) {
        Base::put(to + 32 * i, _mm256_add_epi32(group.r[i], _mm256_cvtepi8_epi32(eight)));
      };
      auto put_16 = [&](int i, __m128i sixteen) {
        put(i, sixteen);
        put(i + 1, _mm_unpackhi_epi64(sixteen, sixteen));
      };
      put_16(0, _mm256_castsi256_si128(deltas.low));
      put_16(2, _mm256_extracti128_si256(deltas.low, 1));
      put_16(4, _mm256_castsi256_si128(deltas.high));
      put_16(6, _mm256_extracti128_si256(deltas.high, 1));
    }
  }
  static void spill(std::int8_t* to, const ByteVectors& deltas) {
    auto* at = reinterpret_cast<std::byte*>(to);
    Base::put(at, deltas.low);
    Base::put(at + 32, deltas.high);
  }
};

// Classes in which all changes are by one go through masks, the others through the table.
template <typename Type, int kExtraBits>
struct PdepVectors : Vectors<Type, kExtraBits> {
  using Base = Vectors<Type, kExtraBits>;
  using Table = TableVectors<Type, kExtraBits>;
  using typename Base::Group;
  struct Deltas {
    std::uint64_t changed, down;
    ByteVectors others;
  };

  static Deltas no_deltas() { return {0, 0, Table::no_deltas()}; }
  static void expand(Deltas& deltas, std::uint64_t mask, const std::int8_t* ranked, bool plain) {
    if (!plain) {
      Table::expand(deltas.others, mask, ranked, plain);
      return;
    }
    ByteVectors bytes = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(ranked)),
                         _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ranked + 32))};
    auto zero = _mm256_setzero_si256();
    auto same = top_bits(_mm256_cmpeq_epi8(bytes.low, zero), _mm256_cmpeq_epi8(bytes.high, zero));
    deltas.changed |= _pdep_u64(~same, mask);
    deltas.down |= _pdep_u64(top_bits(bytes.low, bytes.high), mask);
  }
  static std::uint64_t specials(const Deltas& deltas) { return Table::specials(deltas.others); }

  // All ones in the elements of register i whose bit is set.
  static __m256i spread(std::uint64_t bits, int i) {
    if constexpr (Type::kWidth == 1) {
      auto each = _mm256_set1_epi32(static_cast<int>(static_cast<std::uint32_t>(bits >> (32 * i))));
      each =
          _mm256_shuffle_epi8(each, _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
      auto bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
      return _mm256_cmpeq_epi8(_mm256_and_si256(each, bit), bit);
    } else if constexpr (Type::kWidth == 2) {
      auto each = _mm256_set1_epi16(static_cast<short>(bits >> (16 * i)));
      auto bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
                                   static_cast<short>(0x8000));
      return _mm256_cmpeq_epi16(_mm256_and_si256(each, bit), bit);
    } else {
      auto each = _mm256_set1_epi32(static_cast<int>(bits >> (8 * i) & 0xFF));
      auto bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
      return _mm256_cmpeq_epi32(_mm256_and_si256(each, bit), bit);
    }
  }
  static void store(std::byte* to, Group group, const Deltas& deltas, std::uint64_t specials) {
    for (int i = 0; i < Base::kRegisters; ++i) {
      // All ones is -1: less it is one more, twice it one less.
      auto up = spread(deltas.changed, i), back = spread(deltas.down, i);
      if constexpr (Type::kWidth == 1) {
        group.r[i] = _mm256_add_epi8(_mm256_sub_epi8(group.r[i], up), _mm256_add_epi8(back, back));
      } else if constexpr (Type::kWidth == 2) {
        group.r[i] = _mm256_add_epi16(_mm256_sub_epi16(group.r[i], up), _mm256_add_epi16(back, back));
      } else {
        group.r[i] = _mm256_add_epi32(_mm256_sub_epi32(group.r[i], up), _mm256_add_epi32(back, back));
      }
    }
    Table::store(to, group, deltas.others, specials);
  }
  static void spill(std::int8_t* to, const Deltas& deltas) { Table::spill(to, deltas.others); }
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
  auto run = [&]<typename V>() { status = decode_with<V>(frame, workspace, base, out, elements); };
  return visit_vectors<TableVectors>(type, run) ? status : decode_sparse_scalar(type, frame, base, out, elements);
}

Status decode_sparse_avx2_pdep(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                               std::byte* out, std::size_t elements) {
  Status status;
  auto run = [&]<typename V>() { status = decode_with<V>(frame, workspace, base, out, elements); };
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
