// JSON as our formats use it. Inside store/format only.
//
// Writing is canonical: fields in the order they are written, no white space, integers only, strings of plain ASCII
// (names are percent-encoded), so one value is one string of bytes. Reading is hostile-safe: depth and the number of
// live values are bounded, a repeated name is refused, fields that nobody asks for are ignored.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/digest.h"
#include "store/base/names.h"

namespace weightfs::json {

using Value = nlohmann::json;

inline constexpr std::size_t kMaxDepth = 16;
inline constexpr std::size_t kMaxValues = std::size_t{1} << 20;  // alive at a time
inline constexpr std::uint64_t kMaxNumber = (std::uint64_t{1} << 63) - 1;

class Writer {
 public:
  Writer& begin_object() { return open('{'); }
  Writer& end_object() { return close('}'); }
  Writer& begin_array() { return open('['); }
  Writer& end_array() { return close(']'); }
  Writer& key(std::string_view name);
  // REQUIRES: printable ASCII without '"' and '\'
  Writer& text(std::string_view ascii);
  Writer& bytes(std::string_view name) { return text(percent_encode(name)); }
  Writer& number(std::uint64_t value) { return raw(std::to_string(value)); }
  Writer& signed_number(std::int64_t value) { return raw(std::to_string(value)); }
  Writer& boolean(bool value) { return raw(value ? "true" : "false"); }
  std::size_t size() const { return out_.size(); }
  Bytes take() { return to_bytes(out_); }

 private:
  Writer& raw(std::string_view value);
  Writer& open(char bracket);
  Writer& close(char bracket);
  void separate();
  std::string out_;
  bool comma_ = false;
};

// One JSON value and nothing after it. kCorrupt otherwise.
Result<Value> parse(ByteSpan text);

// The same for an object one of whose fields is a long array: each element of `array` goes to `element` when it is
// complete, and is dropped; the array is empty in what is returned. The first error of `element` is kept in `stopped`
// (the rest is still parsed, but no longer given to it): so that the caller can look at "format" first.
using OnElement = std::function<Status(Value&& element)>;
Result<Value> parse_streaming(ByteSpan text, std::string_view array, const OnElement& element, Status& stopped);

// Fields of an object. kCorrupt, naming the field, when it is missing or not of that kind.
Status require_object(const Value& value, std::string_view what);
const Value* find(const Value& object, const char* field);  // null: not there
Result<const Value*> get(const Value& object, const char* field);
Result<std::uint64_t> get_number(const Value& object, const char* field, std::uint64_t max = kMaxNumber);
Result<std::int64_t> get_signed(const Value& object, const char* field);
Result<std::string> get_text(const Value& object, const char* field);
Result<std::string> get_bytes(const Value& object, const char* field);  // a percent-encoded name
Result<std::string> get_id(const Value& object, const char* field);     // 32 lower-case hex digits
Result<Sha256> get_sha256(const Value& object, const char* field);
Result<const Value*> get_array(const Value& object, const char* field);
Result<const Value*> get_object(const Value& object, const char* field);

Result<std::uint64_t> as_number(const Value& value, std::uint64_t max = kMaxNumber);
Result<Sha256> as_sha256(const Value& value);
bool is_id(std::string_view text);

// A legal name, percent-encoded.
template <typename Name>
Result<Name> get_name(const Value& object, const char* field) {
  auto bytes = WFS_TRY(get_bytes(object, field));
  auto name = Name::parse(bytes);
  if (!name.is_ok()) return Status(Code::kCorrupt, std::string(field) + ": " + name.status().message());
  return name;
}

// Looks at "format" before anything else.   kUnsupported: later than `newest`.
Status check_format(const Value& object, std::uint64_t newest);

}  // namespace weightfs::json
