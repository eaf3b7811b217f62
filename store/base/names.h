// Names that are legal because they exist: checked once, where they come in. Names are bytes, not text in an encoding.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>

#include "store/base/status.h"

namespace weightfs {

inline constexpr std::size_t kMaxName = 255;  // bytes of one component, as everywhere on Linux

// Every byte outside [A-Za-z0-9._-] becomes %XX (upper-case hex). Used for bytes in JSON and in object keys.
std::string percent_encode(std::string_view bytes);
// The inverse; kInvalid when `text` holds a byte that encode never makes, or a bad or needless escape.
Result<std::string> percent_decode(std::string_view text);

// True for names that writers use while they are not done: `.x`, `x.tmp`, `x.partial`, `tmp-x`, `x.incomplete`.
bool is_temporary_name(std::string_view name);

namespace internal {
template <typename Tag>
class Name {
 public:
  // kInvalid, with a reason, for what is not a legal name of this kind.
  static Result<Tag> parse(std::string_view bytes);
  const std::string& str() const { return value_; }
  friend auto operator<=>(const Name& a, const Name& b) { return a.value_ <=> b.value_; }
  friend bool operator==(const Name& a, const Name& b) { return a.value_ == b.value_; }

 protected:
  explicit Name(std::string value) : value_(std::move(value)) {}
  std::string value_;
};
}  // namespace internal

// One path component, 1..255 bytes, no '/' or NUL, not "." or "..", not beginning with '.'.
class ModelName : public internal::Name<ModelName> {
 public:
  // The first component of this model's keys: the name percent-encoded; when that is over 200 bytes, "%h" + SHA-256 hex
  // of the name (log entries carry the name itself).
  std::string key_component() const;

 private:
  using Name::Name;
  friend class Name<ModelName>;
};

// One path component as above, and neither "latest" nor a temporary name.
class VersionName : public internal::Name<VersionName> {
  using Name::Name;
  friend class Name<VersionName>;
};

// A file's path inside a version: 1..64 components of 1..255 bytes, joined by '/', none "." or "..", no NUL; at most
// 4,095 bytes.
class FilePath : public internal::Name<FilePath> {
 public:
  std::string_view parent() const;  // "" at the top
  std::string_view leaf() const;

 private:
  using Name::Name;
  friend class Name<FilePath>;
};

// An object's key below the bucket's prefix: components of [A-Za-z0-9._%-], joined by '/', none "." or "..", at most
// 900 bytes.
class ObjectKey : public internal::Name<ObjectKey> {
 public:
  // REQUIRES: the parts make a legal key (they come from the functions below or from parsed names)
  static ObjectKey of(std::string key);

 private:
  using Name::Name;
  friend class Name<ObjectKey>;
};

// "MODEL/VERSION" as typed by a user.
struct VersionRef {
  ModelName model;
  VersionName version;
  static Result<VersionRef> parse(std::string_view text);
  std::string str() const { return model.str() + "/" + version.str(); }
  friend bool operator==(const VersionRef&, const VersionRef&) = default;
};

}  // namespace weightfs
