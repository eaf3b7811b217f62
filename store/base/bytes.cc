#include "store/base/bytes.h"

namespace weightfs {

std::string to_hex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    hex.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    hex.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return hex;
}

namespace {
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}
}  // namespace

bool from_hex(std::string_view hex, MutableByteSpan out) {
  if (hex.size() != out.size() * 2) return false;
  for (std::size_t i = 0; i < out.size(); i++) {
    int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

void ByteWriter::varint(std::uint64_t value) {
  while (value >= 0x80) {
    u8(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  u8(static_cast<std::uint8_t>(value));
}

void ByteWriter::svarint(std::int64_t value) {
  varint(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
}

std::uint64_t ByteReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    auto b = u8();
    if (failed_) return 0;
    if (shift == 63 && b > 1) return fail<std::uint64_t>();
    value |= static_cast<std::uint64_t>(b & 0x7f) << shift;
    if (b < 0x80) {
      if (b == 0 && shift > 0) return fail<std::uint64_t>();
      return value;
    }
  }
  return fail<std::uint64_t>();
}

std::int64_t ByteReader::svarint() {
  auto raw = varint();
  return static_cast<std::int64_t>(raw >> 1 ^ (~(raw & 1) + 1));
}

}  // namespace weightfs
