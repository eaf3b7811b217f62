#include "store/base/names.h"

#include <algorithm>

#include "store/base/digest.h"

namespace weightfs {
namespace {

bool is_plain(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

Status check_component(std::string_view name) {
  if (name.empty()) return {Code::kInvalid, "empty name"};
  if (name.size() > kMaxName) return {Code::kInvalid, "name of over 255 bytes"};
  if (name == "." || name == "..") return {Code::kInvalid, "'.' and '..' are not names"};
  if (name.find('/') != name.npos) return {Code::kInvalid, "'/' in a name"};
  if (name.find('\0') != name.npos) return {Code::kInvalid, "NUL in a name"};
  return {};
}

}  // namespace

std::string percent_encode(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(bytes.size());
  for (char c : bytes) {
    if (is_plain(c)) {
      out.push_back(c);
    } else {
      auto b = static_cast<unsigned char>(c);
      out.push_back('%');
      out.push_back(kDigits[b >> 4]);
      out.push_back(kDigits[b & 15]);
    }
  }
  return out;
}

Result<std::string> percent_decode(std::string_view text) {
  auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); i++) {
    if (is_plain(text[i])) {
      out.push_back(text[i]);
      continue;
    }
    if (text[i] != '%' || text.size() - i < 3) return Status(Code::kInvalid, "bad percent-encoding");
    int high = digit(text[i + 1]), low = digit(text[i + 2]);
    if (high < 0 || low < 0) return Status(Code::kInvalid, "bad percent-encoding");
    char c = static_cast<char>(high << 4 | low);
    if (is_plain(c)) return Status(Code::kInvalid, "needless percent-encoding");
    out.push_back(c);
    i += 2;
  }
  return out;
}

bool is_temporary_name(std::string_view name) {
  return name.starts_with('.') || name.starts_with("tmp-") || name.ends_with(".tmp") || name.ends_with(".partial") ||
         name.ends_with(".incomplete");
}

namespace internal {

template <>
Result<ModelName> Name<ModelName>::parse(std::string_view bytes) {
  WFS_TRY(check_component(bytes).with("model name"));
  if (bytes.starts_with('.')) return Status(Code::kInvalid, "model name: begins with '.'");
  return ModelName(std::string(bytes));
}

template <>
Result<VersionName> Name<VersionName>::parse(std::string_view bytes) {
  WFS_TRY(check_component(bytes).with("version name"));
  if (bytes == "latest") return Status(Code::kInvalid, "version name: 'latest' is the link to the newest version");
  if (is_temporary_name(bytes)) {
    return Status(Code::kInvalid, "version name: '" + std::string(bytes) + "' is a temporary name");
  }
  return VersionName(std::string(bytes));
}

template <>
Result<FilePath> Name<FilePath>::parse(std::string_view bytes) {
  if (bytes.size() > 4095) return Status(Code::kInvalid, "file path: over 4,095 bytes");
  std::size_t start = 0, components = 0;
  while (true) {
    auto slash = bytes.find('/', start);
    WFS_TRY(check_component(bytes.substr(start, slash == bytes.npos ? bytes.npos : slash - start)).with("file path"));
    if (++components > 64) return Status(Code::kInvalid, "file path: over 64 components");
    if (slash == bytes.npos) break;
    start = slash + 1;
  }
  return FilePath(std::string(bytes));
}

template <>
Result<ObjectKey> Name<ObjectKey>::parse(std::string_view bytes) {
  if (bytes.size() > 900) return Status(Code::kInvalid, "object key: over 900 bytes");
  std::size_t start = 0;
  while (true) {
    auto slash = bytes.find('/', start);
    auto part = bytes.substr(start, slash == bytes.npos ? bytes.npos : slash - start);
    WFS_TRY(check_component(part).with("object key"));
    if (!std::all_of(part.begin(), part.end(), [](char c) { return is_plain(c) || c == '%'; })) {
      return Status(Code::kInvalid, "object key: a byte outside [A-Za-z0-9._%-]");
    }
    if (slash == bytes.npos) break;
    start = slash + 1;
  }
  return ObjectKey(std::string(bytes));
}

}  // namespace internal

std::string ModelName::key_component() const {
  auto encoded = percent_encode(str());
  return encoded.size() <= 200 ? encoded : "%h" + Sha256::of(as_bytes(str())).hex();
}

std::string_view FilePath::parent() const {
  auto slash = str().rfind('/');
  return slash == std::string::npos ? std::string_view() : std::string_view(str()).substr(0, slash);
}

std::string_view FilePath::leaf() const {
  auto slash = str().rfind('/');
  return std::string_view(str()).substr(slash == std::string::npos ? 0 : slash + 1);
}

ObjectKey ObjectKey::of(std::string key) {
  auto parsed = parse(key);
  WFS_CHECK(parsed.is_ok());
  return std::move(parsed).value();
}

Result<VersionRef> VersionRef::parse(std::string_view text) {
  auto slash = text.find('/');
  if (slash == text.npos) return Status(Code::kInvalid, "'" + std::string(text) + "': expected MODEL/VERSION");
  auto model = WFS_TRY(ModelName::parse(text.substr(0, slash)));
  auto version = WFS_TRY(VersionName::parse(text.substr(slash + 1)));
  return VersionRef{std::move(model), std::move(version)};
}

}  // namespace weightfs
