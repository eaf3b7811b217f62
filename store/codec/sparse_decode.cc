// The reference decoder: one pass over the elements, a countdown per class. Its fast twins must agree with it on every
// input, also on which frames are corrupt.
#include "store/codec/dispatch.h"
#include "store/codec/element.h"
#include "store/codec/sparse.h"

namespace weightfs::codec {
namespace {

// Where one class is in its streams.
struct ClassCursor {
  std::uint64_t countdown = kNever;  // elements of the class before the next event
  std::uint32_t left = 0;            // events not yet read, with the sentinel
  std::uint64_t field = 0;           // of the next event
  BitReader unary, fields, quotients;
  std::uint64_t next_exception = kNever;  // events before the next exception
  std::uint32_t exceptions_left = 0;
};

// Zeros before the next one; the stream has one, since events are counted.
std::uint64_t read_unary(BitReader& in) {
  std::uint64_t zeros = 0;
  while ((in.peek() & low_mask(48)) == 0 && !in.failed()) {
    in.get(48);
    zeros += 48;
  }
  auto more = std::countr_zero(in.peek() | 1ULL << 48);
  in.get(more + 1);
  return zeros + static_cast<std::uint64_t>(more);
}

void next_event(const ClassStreams& streams, ClassCursor& at) {
  if (at.left == 0) {
    at.countdown = kNever;
    return;
  }
  --at.left;
  auto quotient = read_unary(at.unary);
  at.field = at.fields.get(streams.field_bits);
  at.countdown = quotient << streams.gap_bits | (at.field >> 1 & low_mask(streams.gap_bits));
}

void next_exception(ClassStreams& streams, ClassCursor& at) {
  if (at.exceptions_left == 0) {
    at.next_exception = kNever;
    return;
  }
  --at.exceptions_left;
  at.next_exception = streams.values.get_rice(streams.exception_gap_bits, kGapEscapeBits);
}

// |d| of the event the cursor is at.
std::uint64_t distance(ClassStreams& streams, ClassCursor& at, int key, int bits) {
  if (streams.mode == ClassMode::kKeyed) {
    return streams.values.get_rice(value_parameter(streams.value_key, key, bits), bits) + 1;
  }
  if (streams.mode == ClassMode::kUniform) {
    auto quotient = read_unary(at.quotients);
    if (quotient >= kRiceLimit) return escaped(streams, quotient, bits) + 1;
    return (quotient << streams.value_bits | at.field >> (streams.gap_bits + 1)) + 1;
  }
  if (streams.mode == ClassMode::kUnit || at.next_exception-- > 0) return 1;
  auto value = streams.values.get_rice(streams.value_bits, bits) + 2;
  next_exception(streams, at);
  return value;
}

bool ends_well(const ClassStreams& streams, const ClassCursor& at) {
  if (streams.mode == ClassMode::kSilent) return true;
  return at.left == 0 && at.countdown == 0 && at.field >> (streams.gap_bits + 1) == 0 && (at.field & 1) == 0 &&
         at.fields.done() && at.exceptions_left == 0 &&
         (streams.mode != ClassMode::kExceptions || at.next_exception > kLongAgo) && streams.values.done();
}

template <typename E>
Status decode(SparseFrame& frame, const std::byte* base, std::byte* out, std::size_t elements) {
  using Raw = typename E::Raw;
  std::array<std::uint8_t, 256> class_of{};
  for (int c = 0; c < frame.classes; ++c) {
    for (int key = frame.first_key[c]; key < 256; ++key) class_of[key] = static_cast<std::uint8_t>(c);
  }
  std::array<ClassCursor, kMaxClasses> cursors;
  for (int c = 0; c < frame.classes; ++c) {
    auto& streams = frame.streams[c];
    cursors[c].left = streams.events;
    cursors[c].unary = BitReader(streams.unary);
    cursors[c].fields = BitReader(streams.fields);
    cursors[c].quotients = BitReader(streams.quotients);
    cursors[c].exceptions_left = streams.exceptions;
    next_event(streams, cursors[c]);
    if (streams.mode == ClassMode::kExceptions) next_exception(streams, cursors[c]);
  }
  for (std::size_t i = 0; i < elements; ++i) {
    auto raw = load_element<Raw>(base, i);
    auto c = class_of[E::key(raw)];
    auto& at = cursors[c];
    if (at.countdown-- == 0) {
      // The sentinel is no event.
      if (at.left == 0) return {Code::kCorrupt, "sparse frame: a class ends before its base's"};
      auto away = static_cast<Raw>(distance(frame.streams[c], at, E::key(raw), E::kBits));
      raw = static_cast<Raw>(at.field & 1 ? raw - away : raw + away);
      next_event(frame.streams[c], at);
    }
    store_element<Raw>(out, i, raw);
  }
  for (int c = 0; c < frame.classes; ++c) {
    if (!ends_well(frame.streams[c], cursors[c])) return {Code::kCorrupt, "sparse frame: a stream does not end well"};
  }
  return Status::ok();
}

}  // namespace

Status decode_sparse_scalar(ElementType type, SparseFrame& frame, const std::byte* base, std::byte* out,
                            std::size_t elements) {
  return visit_element(type, [&](auto element) { return decode<decltype(element)>(frame, base, out, elements); });
}

Status decode_sparse(ElementType type, SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base,
                     std::byte* out, std::size_t elements) {
#if defined(__x86_64__)
  switch (simd_level()) {
    case SimdLevel::kAvx512:
      return decode_sparse_avx512(type, frame, workspace, base, out, elements);
    case SimdLevel::kAvx2Pdep:
      return decode_sparse_avx2_pdep(type, frame, workspace, base, out, elements);
    case SimdLevel::kAvx2:
      return decode_sparse_avx2(type, frame, workspace, base, out, elements);
    case SimdLevel::kScalar:
      break;
  }
#endif
  return decode_sparse_scalar(type, frame, base, out, elements);
}

}  // namespace weightfs::codec
