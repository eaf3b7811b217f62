// AWS Signature Version 4 for S3: which headers a request carries so that the store knows who sent it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/clock.h"

namespace weightfs {

struct S3Keys {
  std::string access_key, secret_key;
  std::string session_token;  // "": none
  friend bool operator==(const S3Keys&, const S3Keys&) = default;
};

using StringPairs = std::vector<std::pair<std::string, std::string>>;

// Everything outside [A-Za-z0-9-._~] becomes %XX; '/' stays when `keep_slash`.
std::string uri_encode(std::string_view text, bool keep_slash);
// "a=1&b=" sorted and encoded, as it is signed and sent.
std::string canonical_query(StringPairs query);

constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";  // only over TLS

struct SignInput {
  std::string method;
  std::string host;          // as the Host header has it
  std::string path;          // encoded
  std::string query;         // canonical
  StringPairs headers;       // further ones to sign; any case
  std::string payload_hash;  // SHA-256 in hex, or kUnsignedPayload
  std::string region;
  std::string service = "s3";
  WallTime time{};
};

// The headers to add: Authorization, x-amz-date, and for S3 x-amz-content-sha256, x-amz-security-token.
StringPairs sign_v4(const SignInput& input, const S3Keys& keys);

}  // namespace weightfs
