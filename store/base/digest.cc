#include "store/base/digest.h"

#include <openssl/evp.h>
#include <sys/random.h>
#include <xxhash.h>

namespace weightfs {

struct Sha256Stream::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  Context() { WFS_CHECK(md != nullptr && EVP_DigestInit_ex(md, EVP_sha256(), nullptr) == 1); }
  ~Context() { EVP_MD_CTX_free(md); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

Sha256Stream::Sha256Stream() : context_(std::make_unique<Context>()) {}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

void Sha256Stream::update(ByteSpan data) { WFS_CHECK(EVP_DigestUpdate(context_->md, data.data(), data.size()) == 1); }

Sha256 Sha256Stream::finish() {
  Sha256 digest;
  WFS_CHECK(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.bytes.data()), nullptr) == 1);
  return digest;
}

Sha256 Sha256::of(ByteSpan data) {
  Sha256 digest;
  WFS_CHECK(EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(digest.bytes.data()), nullptr,
                       EVP_sha256(), nullptr) == 1);
  return digest;
}

Result<Sha256> Sha256::parse(std::string_view hex) {
  Sha256 digest;
  if (!from_hex(hex, digest.bytes)) return Status(Code::kInvalid, "not a SHA-256 in hex");
  return digest;
}

Xxh128 Xxh128::of(ByteSpan data) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data.data(), data.size()));
  Xxh128 digest;
  std::memcpy(digest.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return digest;
}

std::string random_id() {
  std::array<std::byte, 16> bits;
  WFS_CHECK(getrandom(bits.data(), bits.size(), 0) == static_cast<ssize_t>(bits.size()));
  return to_hex(bits);
}

}  // namespace weightfs
