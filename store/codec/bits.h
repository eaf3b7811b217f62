// Streams of bits, the first in the lowest bit of the first byte, and Rice codes in them.
#pragma once

#include <bit>
#include <cstdint>

#include "store/base/bytes.h"

namespace weightfs::codec {

// Bytes behind a stream that its reader may load (their value never matters) and its writer may clobber.
inline constexpr std::size_t kBitSlack = 64;

inline constexpr std::uint64_t low_mask(int bits) { return bits >= 64 ? ~0ULL : (1ULL << bits) - 1; }

// A Rice code of `value` with parameter k: value >> k in unary (zeros, then a one), then the low k bits. When the
// quotient reaches kRiceLimit: that many zeros, a one, then the value in `escape_bits` bits.
inline constexpr int kRiceLimit = 24;
inline constexpr std::uint64_t rice_bits(std::uint64_t value, int k, int escape_bits) {
  auto quotient = value >> k;
  return quotient >= kRiceLimit ? kRiceLimit + 1 + escape_bits : quotient + 1 + k;
}

class BitWriter {
 public:
  explicit BitWriter(std::byte* at) : start_(at), at_(at) {}
  void put(std::uint64_t value, int bits) {  // bits <= 56, value < 2^bits
    pending_ |= value << count_;
    count_ += bits;
    store_le(at_, pending_);
    at_ += count_ >> 3;
    pending_ = count_ >= 64 ? 0 : pending_ >> (count_ & ~7);
    count_ &= 7;
  }
  void put_wide(std::uint64_t value, int bits) {  // bits <= 64
    if (bits > 32) {
      put(value & 0xFFFFFFFF, 32);
      value >>= 32;
      bits -= 32;
    }
    put(value, bits);
  }
  void put_zeros(std::uint64_t count) {
    for (; count > 48; count -= 48) put(0, 48);
    put(0, static_cast<int>(count));
  }
  void put_rice(std::uint64_t value, int k, int escape_bits) {
    auto quotient = value >> k;
    if (quotient >= kRiceLimit) {
      put(1ULL << kRiceLimit, kRiceLimit + 1);
      put_wide(value & low_mask(escape_bits), escape_bits);
    } else {
      put(1ULL << quotient, static_cast<int>(quotient) + 1);
      put_wide(value & low_mask(k), k);
    }
  }
  // Fills the last byte with zeros.
  std::byte* finish() {
    if (count_ > 0) ++at_;
    count_ = 0;
    pending_ = 0;
    return at_;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(at_ - start_) + (count_ > 0 ? 1 : 0); }

 private:
  std::byte* start_;
  std::byte* at_;
  std::uint64_t pending_ = 0;
  int count_ = 0;
};

// Reads hostile bits: past the end it fails and goes on answering something. `stream` has kBitSlack readable bytes
// behind it.
class BitReader {
 public:
  BitReader() = default;
  explicit BitReader(ByteSpan stream) : at_(stream.data()), end_(stream.size() * 8) {}

  std::uint64_t peek() const { return load_le<std::uint64_t>(at_ + (bit_ >> 3)) >> (bit_ & 7); }  // 57 bits or more
  std::uint64_t get(int bits) {                                                                   // bits <= 64
    if (bits > 32) {
      auto low = take(32);
      return low | take(bits - 32) << 32;
    }
    return take(bits);
  }
  std::uint64_t get_rice(int k, int escape_bits) {
    auto word = peek();
    int zeros = std::countr_zero(word | 1ULL << 40);
    if (zeros < kRiceLimit && k <= 32) [[likely]] {
      advance(zeros + 1 + k);
      return static_cast<std::uint64_t>(zeros) << k | (word >> (zeros + 1) & low_mask(k));
    }
    if (zeros > kRiceLimit) {
      fail();
      return 0;
    }
    advance(zeros + 1);
    if (zeros == kRiceLimit) return get(escape_bits);
    return static_cast<std::uint64_t>(zeros) << k | get(k);
  }
  void fail() {
    failed_ = true;
    bit_ = end_;
  }
  bool failed() const { return failed_; }
  // Nothing left but the zeros that fill the last byte.
  bool done() const { return !failed_ && end_ - bit_ < 8 && (peek() & low_mask(static_cast<int>(end_ - bit_))) == 0; }

  // For the fast twins: where the next bit is.
  std::size_t position() const { return bit_; }
  std::size_t end() const { return end_; }
  const std::byte* data() const { return at_; }
  void set_position(std::size_t bit) {
    bit_ = bit;
    if (bit_ > end_) fail();
  }

 private:
  std::uint64_t take(int bits) {
    auto value = peek() & low_mask(bits);
    advance(bits);
    return value;
  }
  void advance(int bits) {
    bit_ += static_cast<std::size_t>(bits);
    if (bit_ > end_) fail();
  }
  const std::byte* at_ = nullptr;
  std::size_t bit_ = 0;
  std::size_t end_ = 0;
  bool failed_ = false;
};

}  // namespace weightfs::codec
