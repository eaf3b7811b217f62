// The sparse codec (CodecId::kSparse): which elements changed, as gaps within classes of the base's exponents, and by
// how many ULP. CODEC.md has the format; here is what its parts share. Internal to the codec.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/status.h"
#include "store/codec/bits.h"
#include "store/codec/codec.h"

namespace weightfs::codec {

inline constexpr int kMaxClasses = 8;
inline constexpr int kMaxGapBits = 20;  // largest Rice parameter of gaps: a block has at most 2^20 elements
inline constexpr int kMaxUniformBits = 20;
inline constexpr int kGapEscapeBits = 32;

enum class ClassMode : std::uint8_t {
  kSilent = 0,      // no element changed; no streams
  kUnit = 1,        // all changed by one ULP
  kExceptions = 2,  // by one ULP but for the listed ones
  kUniform = 3,     // every change carries its distance, with one Rice parameter
  kKeyed = 4,       // every change carries its distance, with a Rice parameter by its base's key
};

// One class of a frame, parsed and bounded: the events are as many as the unary stream has ones, the last is the
// sentinel; the fixed fields fit the frame.
struct ClassStreams {
  ClassMode mode = ClassMode::kSilent;
  int gap_bits = 0;          // k of the gaps
  int field_bits = 0;        // from the lowest: sign, the gap's remainder, kUniform: the remainder of |d| - 1
  std::uint32_t events = 0;  // with the sentinel
  ByteSpan unary;
  ByteSpan fields;
  ByteSpan quotients;            // kUniform: of |d| - 1, as many ones as events without the sentinel
  BitReader values;              // kUniform: escapes; kKeyed: |d| - 1; kExceptions: gap in events, |d| - 2
  std::uint32_t exceptions = 0;  // kExceptions
  int exception_gap_bits = 0;    // kExceptions
  int value_bits = 0;            // kUniform: k of |d| - 1; kExceptions: k of |d| - 2
  int value_key = 0;             // kKeyed: k of |d| - 1 is value_key - key(base), within 0 and the type's bits - 1
};

struct SparseFrame {
  int classes = 0;
  std::array<std::uint8_t, kMaxClasses> first_key{};  // class c holds keys first_key[c] up to first_key[c + 1]
  std::array<ClassStreams, kMaxClasses> streams;
  ByteSpan tail;  // the block's bytes after its last whole element
};

// Checks everything that does not need the base. `frame` has kBitSlack readable bytes behind it.
Status parse_sparse(ElementType type, ByteSpan frame, std::size_t block_length, SparseFrame& out);

inline int value_parameter(int value_key, int key, int bits) {
  return value_key <= key ? 0 : value_key - key < bits ? value_key - key : bits - 1;
}

// kUniform: |d| - 1 where the quotient says that it is written out.
inline std::uint64_t escaped(ClassStreams& streams, std::uint64_t quotient, int bits) {
  if (quotient > kRiceLimit) streams.values.fail();
  return streams.values.get(bits);
}

// Decodes all whole elements of a block; `base` may be `out`.
// kCorrupt: a class does not end at its sentinel (also: this is not the base it was made for), or a stream does not end
// where it should.
Status decode_sparse_scalar(ElementType type, SparseFrame& frame, const std::byte* base, std::byte* out,
                            std::size_t elements);

// Its fast twins give the same bytes, or an error, too.

// A stretch of a block and its classes, for the decoder in AVX2 (sparse_place_kernel.h).
inline constexpr std::size_t kStretch = 2048;  // elements; a group's index fits a byte, a rank and a sign 16 bits
inline constexpr std::size_t kStretchGroups = kStretch / 64;
static_assert(kStretchGroups <= 256 && 2 * kStretch <= 65536);
struct StretchMaps {
  struct Entry {
    std::uint64_t members;  // of a class in a group of 64 elements
    std::uint64_t before;   // its ranks before the group, in a form that finding places likes
  };
  alignas(64) Entry entries[kStretchGroups][kMaxClasses];
  std::uint8_t group_of[kMaxClasses][kStretch + 64];  // by rank; written up to a group past its end
  std::uint16_t events[kStretch];                     // rank << 1 | sign
  std::uint16_t places[kStretch];
  std::uint64_t distances[kStretch];
};

struct DecodeWorkspace {
  std::array<std::vector<std::uint64_t>, kMaxClasses> queues;
  StretchMaps maps;
};
#if defined(__x86_64__)
Status decode_sparse_avx2(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                          std::byte* out, std::size_t elements);
Status decode_sparse_avx2_pdep(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                               std::byte* out, std::size_t elements);
Status decode_sparse_avx512(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                            std::byte* out, std::size_t elements);
#endif
// By the level of dispatch.h.
Status decode_sparse(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                     std::byte* out, std::size_t elements);

// For countdowns of events: none comes, and the least that is left of it at a block's end.
inline constexpr std::uint64_t kNever = ~0ULL;
inline constexpr std::uint64_t kLongAgo = 1ULL << 62;

// How to cut keys into classes.
struct SparsePlan {
  int classes = 1;
  std::array<std::uint8_t, kMaxClasses> first_key{};
  std::array<bool, kMaxClasses> valued{};  // otherwise unit, with exceptions
};

// What a sample of the block's elements tells, per key.
struct KeyStatistics {
  std::array<std::uint32_t, 256> count{};
  std::array<std::uint32_t, 256> changed{};
  std::array<std::uint32_t, 256> beyond_one{};  // changed by more than one ULP
  std::array<double, 256> distance{};           // sum of |d| - 1 over the changed
  std::uint64_t sampled = 0;                    // elements
  std::uint32_t runs = 0;                       // of neighbours that the sample consists of
  std::uint32_t active_runs = 0;                // with a change in them
  std::uint64_t elements = 0;
};

// The cheapest classes by dynamic programming over the statistics; `bits` gets the estimated size in bits.
SparsePlan plan_classes(const KeyStatistics& statistics, double& bits);

// Events of one class, as the encoder collects them, in order.
class EventList {
 public:
  void clear() { size = extras = 0; }
  // Makes room for `more` further events.
  void reserve(std::size_t more) {
    if (size + more > capacity_) grow(more);
  }
  std::size_t size = 0;
  std::unique_ptr<std::uint32_t[]> gap_sign;  // gap << 1 | sign
  // Of every event in a class planned as valued, else of those with |d| > 1.
  std::size_t extras = 0;
  std::unique_ptr<std::uint32_t[]> extra_event;      // which event; unset in a class planned as valued
  std::unique_ptr<std::uint64_t[]> extra_magnitude;  // |d| - 1
  std::unique_ptr<std::uint8_t[]> extra_key;         // of the base

 private:
  void grow(std::size_t more);
  std::size_t capacity_ = 0;
};

struct SparseEncoder {
  std::array<EventList, kMaxClasses> events;  // without sentinels
  std::array<std::uint32_t, kMaxClasses> population{};
  std::array<std::uint32_t, kMaxClasses> trailing{};  // elements of the class behind its last event
};

// Collects the changed elements by `plan`. REQUIRES: equal lengths
void collect_sparse_scalar(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target,
                           SparseEncoder& encoder);
// Its fast twin collects the same. (One in AVX-512 was no faster.)
#if defined(__x86_64__)
void collect_sparse_avx2(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target,
                         SparseEncoder& encoder);
#endif
// By the level of dispatch.h.
void collect_sparse(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target, SparseEncoder& encoder);

// Writes what was collected as a frame. Nothing when it is longer than `limit` bytes.
//   REQUIRES: frame has limit + kBitSlack bytes
std::optional<std::size_t> write_sparse(ElementType type, const SparsePlan& plan, ByteSpan tail, SparseEncoder& encoder,
                                        std::size_t limit, std::byte* frame);

// Bits of a Rice code at its best parameter, for geometric values of this mean.
double rice_cost(double mean);

}  // namespace weightfs::codec
