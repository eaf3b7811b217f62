// Byte ranges, overflow-checked sums, little-endian loads and stores, varints, hex. Every format of ours is
// little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/status.h"

namespace weightfs {

static_assert(std::endian::native == std::endian::little, "loads and stores assume a little-endian host");

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

// [offset, offset + length) of a file or object. The sum never overflows when made by make_range.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t end() const { return offset + length; }
  bool empty() const { return length == 0; }
  bool contains(std::uint64_t at) const { return at >= offset && at - offset < length; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

template <typename T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
template <typename T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

template <typename T>
T load_le(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
void store_le(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Bytes to_bytes(std::string_view text) {
  auto span = as_bytes(text);
  return {span.begin(), span.end()};
}

std::string to_hex(ByteSpan bytes);  // lower case
// Exactly 2 * out.size() lower-case hex digits, or false.
bool from_hex(std::string_view hex, MutableByteSpan out);

// Appends fields to a buffer.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}
  template <typename T>
  void le(T value) {
    auto at = out_.size();
    out_.resize(at + sizeof(T));
    store_le(out_.data() + at, value);
  }
  void u8(std::uint8_t value) { out_.push_back(std::byte{value}); }
  void varint(std::uint64_t value);  // LEB128, at most 10 bytes
  void svarint(std::int64_t value);  // zigzag, then LEB128
  void bytes(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  std::size_t size() const { return out_.size(); }

 private:
  Bytes& out_;
};

// Takes fields off a hostile buffer. After the first failure every call returns nothing and failed() stays true, so a
// parser may check once at its end, as long as it bounds its loops by what it has read.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan in) : in_(in) {}
  template <typename T>
  T le() {
    if (failed_ || in_.size() - at_ < sizeof(T)) return fail<T>();
    T value = load_le<T>(in_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  std::uint8_t u8() { return le<std::uint8_t>(); }
  std::uint64_t varint();  // refuses more than 10 bytes, overflow and padding (a non-minimal form)
  std::int64_t svarint();
  ByteSpan bytes(std::uint64_t count) {
    if (failed_ || in_.size() - at_ < count) return fail<ByteSpan>();
    auto out = in_.subspan(at_, count);
    at_ += count;
    return out;
  }
  bool failed() const { return failed_; }
  std::size_t position() const { return at_; }
  std::size_t remaining() const { return failed_ ? 0 : in_.size() - at_; }
  bool done() const { return !failed_ && at_ == in_.size(); }

 private:
  template <typename T>
  T fail() {
    failed_ = true;
    return T{};
  }
  ByteSpan in_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace weightfs
