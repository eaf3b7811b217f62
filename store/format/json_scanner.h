// Takes JSON off a buffer piece by piece, without building anything: strings are handed out as they stand in the text.
// For texts of 100 MB where a tree of values would cost many times that. Accepts what RFC 8259 does, in UTF-8. Inside
// store/format only.
#pragma once

#include <string>
#include <string_view>

#include "store/base/bytes.h"

namespace weightfs::json {

// What stands between the quotes: valid, but with its escapes.
struct RawString {
  std::string_view text;
  bool escaped = false;
  // Appends the string itself; never longer than `text`.
  void append_to(std::string& out) const;
  bool is(std::string_view value) const;
};

// The methods return false at the first error, and error() tells; then the scanner is of no more use.
class Scanner {
 public:
  static constexpr std::size_t kMaxDepth = 128;  // as serde_json's

  explicit Scanner(ByteSpan text) : text_(as_text(text)) {}

  // Skips white space; true and past it when `c` is next. Not an error otherwise.
  bool take(char c);
  bool expect(char c);
  bool string(RawString& out);
  bool number(std::uint64_t& out);  // whole, not negative, below 2^64
  bool null();                      // true and past it when `null` is next. Not an error otherwise.
  bool skip_value();                // any value; needs no recursion
  bool end();                       // nothing but white space is left
  // The members of an object, or the items of an array: call before each. False at its end (no error) or on an error.
  bool next_member(bool& first, RawString& key);
  bool next_item(bool& first);

  std::size_t position() const { return at_; }
  std::string_view text_from(std::size_t start) const { return text_.substr(start, at_ - start); }
  bool failed() const { return error_ != nullptr; }
  Status error() const;  // kInvalid

 private:
  bool fail(const char* why);
  void skip_space();
  bool literal(std::string_view word);
  bool escape();
  bool utf8();
  bool any_number();
  bool scalar();

  std::string_view text_;
  std::size_t at_ = 0;
  const char* error_ = nullptr;
};

}  // namespace weightfs::json
