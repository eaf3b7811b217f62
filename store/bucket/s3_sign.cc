#include "store/bucket/s3_sign.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "store/base/digest.h"

namespace weightfs {
namespace {

Sha256 hmac(ByteSpan key, std::string_view text) {
  Sha256 out;
  unsigned length = 0;
  auto* data =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(out.bytes.data()), &length);
  WFS_CHECK(data != nullptr && length == out.bytes.size());
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (auto& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Trimmed, inner runs of spaces made one.
std::string canonical_value(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out.push_back(c);
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// "20130524T000000Z"
std::string basic_time(WallTime time) {
  auto text = to_rfc3339(time);  // 2013-05-24T00:00:00.000Z
  std::string out;
  for (char c : text.substr(0, 19)) {
    if (c != '-' && c != ':') out.push_back(c);
  }
  return out + "Z";
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  std::string out;
  for (char c : text) {
    bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                 c == '_' || c == '~' || (c == '/' && keep_slash);
    if (plain) {
      out.push_back(c);
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string canonical_query(StringPairs query) {
  for (auto& [name, value] : query) {
    name = uri_encode(name, false);
    value = uri_encode(value, false);
  }
  std::sort(query.begin(), query.end());
  std::string out;
  for (const auto& [name, value] : query) out += (out.empty() ? "" : "&") + name + "=" + value;
  return out;
}

StringPairs sign_v4(const SignInput& input, const S3Keys& keys) {
  auto time = basic_time(input.time);
  auto day = time.substr(0, 8);
  StringPairs added = {{"x-amz-date", time}};
  if (input.service == "s3") added.emplace_back("x-amz-content-sha256", input.payload_hash);
  if (!keys.session_token.empty()) added.emplace_back("x-amz-security-token", keys.session_token);

  StringPairs signed_headers = {{"host", canonical_value(input.host)}};
  for (const StringPairs* headers : {&input.headers, static_cast<const StringPairs*>(&added)}) {
    for (const auto& [name, value] : *headers) signed_headers.emplace_back(lower(name), canonical_value(value));
  }
  std::sort(signed_headers.begin(), signed_headers.end());
  std::string lines, names;
  for (const auto& [name, value] : signed_headers) {
    lines += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }

  auto canonical =
      input.method + "\n" + input.path + "\n" + input.query + "\n" + lines + "\n" + names + "\n" + input.payload_hash;
  auto scope = day + "/" + input.region + "/" + input.service + "/aws4_request";
  auto to_sign = "AWS4-HMAC-SHA256\n" + time + "\n" + scope + "\n" + Sha256::of(as_bytes(canonical)).hex();
  auto key = hmac(as_bytes("AWS4" + keys.secret_key), day);
  for (std::string_view part :
       {std::string_view(input.region), std::string_view(input.service), std::string_view("aws4_request")}) {
    key = hmac(key.bytes, part);
  }
  auto signature = hmac(key.bytes, to_sign).hex();
  added.emplace_back("Authorization", "AWS4-HMAC-SHA256 Credential=" + keys.access_key + "/" + scope +
                                          ", SignedHeaders=" + names + ", Signature=" + signature);
  return added;
}

}  // namespace weightfs
