#include "store/bucket/url.h"

#include <algorithm>

namespace weightfs {
namespace {

Status invalid(std::string message) { return {Code::kInvalid, std::move(message)}; }

bool is_name_byte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

Status check_name(std::string_view what, std::string_view name, std::size_t shortest) {
  if (name.size() < shortest || name.size() > 255 || !std::all_of(name.begin(), name.end(), is_name_byte) ||
      name.front() == '.' || name.back() == '.') {
    return invalid(std::string(what) + " in the URL is missing or not a legal name");
  }
  return {};
}

Result<std::string> parse_prefix(std::string_view text) {
  while (text.ends_with('/')) text.remove_suffix(1);
  if (text.empty()) return std::string();
  if (text.size() > 512) return invalid("the prefix in the URL is over 512 bytes");
  for (std::size_t start = 0; start <= text.size();) {
    auto slash = std::min(text.find('/', start), text.size());
    auto part = text.substr(start, slash - start);
    if (part.empty() || part == "." || part == "..")
      return invalid("the prefix in the URL has an empty, '.' or '..' part");
    start = slash + 1;
  }
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return invalid("the prefix in the URL has a control character");
  }
  return std::string(text) + "/";
}

// The %XX of a file URL.
Result<std::string> decode(std::string_view text) {
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (text.size() - i < 3 || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0)
      return invalid("bad %XX in the file URL");
    char c = static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2]));
    if (c == '\0') return invalid("NUL in the file URL");
    out.push_back(c);
    i += 2;
  }
  return out;
}

Result<BucketUrl> parse_file(std::string_view rest) {
  if (rest.starts_with("localhost/")) rest.remove_prefix(9);
  if (!rest.starts_with('/')) return invalid("a file URL looks like file:///some/dir");
  return BucketUrl(DirUrl { WFS_TRY(decode(rest)) });
}

Result<BucketUrl> parse_s3(std::string_view rest) {
  auto slash = std::min(rest.find('/'), rest.size());
  S3Url out;
  out.bucket = rest.substr(0, slash);
  WFS_TRY(check_name("the bucket", out.bucket, 3));
  if (slash < rest.size()) out.prefix = WFS_TRY(parse_prefix(rest.substr(slash + 1)));
  return BucketUrl(std::move(out));
}

Result<BucketUrl> parse_hub(std::string_view rest) {
  constexpr std::string_view kKind = "buckets/";
  if (!rest.starts_with(kKind)) return invalid("a Hub bucket looks like hf://buckets/<namespace>/<bucket>[/prefix]");
  rest.remove_prefix(kKind.size());
  auto slash = rest.find('/');
  if (slash == rest.npos) return invalid("a Hub bucket looks like hf://buckets/<namespace>/<bucket>[/prefix]");
  auto space = rest.substr(0, slash);
  WFS_TRY(check_name("the namespace", space, 1));
  auto parsed = WFS_TRY(parse_s3(rest.substr(slash + 1)));
  std::get<S3Url>(parsed).hub_namespace = space;
  return parsed;
}

}  // namespace

Result<BucketUrl> parse_bucket_url(std::string_view url) {
  if (url.empty()) return invalid("the bucket's URL is empty");
  if (url.find('\0') != url.npos) return invalid("NUL in the bucket's URL");
  auto colon = url.find("://");
  auto is_scheme = [](std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return is_name_byte(c) || c == '+'; });
  };
  if (colon == url.npos || !is_scheme(url.substr(0, colon))) return BucketUrl(DirUrl{std::string(url)});
  auto scheme = url.substr(0, colon), rest = url.substr(colon + 3);
  auto authority = rest.substr(0, rest.find('/'));
  if (authority.find('@') != authority.npos) {
    return invalid("a user or password in the bucket's URL: credentials come from the environment or ~/.aws");
  }
  if (scheme == "file") return parse_file(rest);
  if (scheme == "s3") return parse_s3(rest);
  if (scheme == "hf") return parse_hub(rest);
  return invalid("unknown kind of bucket '" + std::string(scheme) +
                 "://'; known are a directory, file://, s3://, hf://");
}

}  // namespace weightfs
