// The head of a sparse frame, from hostile bytes to streams with known bounds.
#include <bit>

#include "store/codec/element.h"
#include "store/codec/sparse.h"

namespace weightfs::codec {
namespace {

Status corrupt(const char* what) { return {Code::kCorrupt, std::string("sparse frame: ") + what}; }

// Ones in a stream; none when it is empty or ends in a zero byte (its last one ends it).
std::uint32_t count_ones(ByteSpan unary) {
  if (unary.empty() || unary.back() == std::byte{0}) return 0;
  std::uint32_t ones = 0;
  std::size_t at = 0;
  for (; at + 8 <= unary.size(); at += 8) {
    ones += static_cast<std::uint32_t>(std::popcount(load_le<std::uint64_t>(unary.data() + at)));
  }
  for (; at < unary.size(); ++at) {
    ones += static_cast<std::uint32_t>(std::popcount(std::to_integer<unsigned>(unary[at])));
  }
  return ones;
}

struct Lengths {
  std::uint64_t unary = 0;
  std::uint64_t quotients = 0;
  std::uint64_t values = 0;
};

bool parse_class(ByteReader& in, int bits, ClassStreams& out, Lengths& lengths) {
  auto mode = in.u8();
  out.mode = static_cast<ClassMode>(mode >> 5);
  out.gap_bits = mode & 0x1F;
  if (in.failed() || mode >> 5 > 4 || out.gap_bits > kMaxGapBits) return false;
  if (out.mode == ClassMode::kSilent) return out.gap_bits == 0;
  out.field_bits = out.gap_bits + 1;
  lengths.unary = in.varint();
  if (out.mode == ClassMode::kExceptions) {
    auto count = in.varint();
    out.exception_gap_bits = in.u8();
    out.value_bits = in.u8();
    lengths.values = in.varint();
    if (count == 0 || count > kMaxBlock || out.exception_gap_bits > kMaxGapBits || out.value_bits >= bits) return false;
    out.exceptions = static_cast<std::uint32_t>(count);
  } else if (out.mode == ClassMode::kUniform) {
    out.value_bits = in.u8();
    lengths.quotients = in.varint();
    lengths.values = in.varint();
    if (out.value_bits > kMaxUniformBits || out.value_bits >= bits) return false;
    out.field_bits += out.value_bits;
  } else if (out.mode == ClassMode::kKeyed) {
    out.value_key = in.u8();
    lengths.values = in.varint();
  }
  return !in.failed();
}

bool take_streams(ByteReader& in, const Lengths& lengths, ClassStreams& out) {
  out.unary = in.bytes(lengths.unary);
  out.events = count_ones(out.unary);
  if (in.failed() || out.events == 0) return false;
  auto field_bits = std::uint64_t{out.events} * static_cast<std::uint64_t>(out.field_bits);
  out.fields = in.bytes((field_bits + 7) / 8);
  out.quotients = in.bytes(lengths.quotients);
  out.values = BitReader(in.bytes(lengths.values));
  if (in.failed()) return false;
  if (out.mode == ClassMode::kUniform) {
    return count_ones(out.quotients) == out.events - 1 && (out.events > 1 || out.quotients.empty());
  }
  return out.mode != ClassMode::kExceptions || out.exceptions < out.events;
}

}  // namespace

Status parse_sparse(ElementType type, ByteSpan frame, std::size_t block_length, SparseFrame& out) {
  ByteReader in(frame);
  out.classes = in.u8();
  if (out.classes < 1 || out.classes > kMaxClasses) return corrupt("number of classes");
  out.first_key = {};
  out.streams = {};
  for (int c = 1; c < out.classes; ++c) {
    out.first_key[c] = in.u8();
    if (out.first_key[c] <= out.first_key[c - 1]) return corrupt("classes out of order");
    if (out.first_key[c] >= keys(type)) return corrupt("a class of no element");
  }
  auto bits = static_cast<int>(8 * width(type));
  std::array<Lengths, kMaxClasses> lengths;
  for (int c = 0; c < out.classes; ++c) {
    if (!parse_class(in, bits, out.streams[c], lengths[c])) return corrupt("head of a class");
  }
  for (int c = 0; c < out.classes; ++c) {
    if (out.streams[c].mode == ClassMode::kSilent) continue;
    if (!take_streams(in, lengths[c], out.streams[c])) return corrupt("streams of a class");
  }
  out.tail = in.bytes(block_length % width(type));
  if (!in.done()) return corrupt("length");
  return Status::ok();
}

}  // namespace weightfs::codec
