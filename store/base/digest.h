// SHA-256 (OpenSSL) names and guards what comes from a bucket; XXH3-128 guards plain blocks at memory speed.
#pragma once

#include <array>
#include <compare>
#include <memory>

#include "store/base/bytes.h"

namespace weightfs {

struct Sha256 {
  std::array<std::byte, 32> bytes{};
  static Sha256 of(ByteSpan data);
  static Result<Sha256> parse(std::string_view hex);  // kInvalid unless 64 lower-case hex digits
  std::string hex() const { return to_hex(bytes); }
  friend auto operator<=>(const Sha256&, const Sha256&) = default;
};

// SHA-256 of a stream of pieces. One use.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;
  void update(ByteSpan data);
  Sha256 finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// XXH3-128 (xxHash 0.8), the 16 bytes of its canonical (big-endian) form.
struct Xxh128 {
  std::array<std::byte, 16> bytes{};
  static Xxh128 of(ByteSpan data);
  std::string hex() const { return to_hex(bytes); }
  friend auto operator<=>(const Xxh128&, const Xxh128&) = default;
};

// 128 random bits from the operating system: commit ids, pack names. Lower-case hex, 32 digits.
std::string random_id();

}  // namespace weightfs
