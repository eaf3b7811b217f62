#include "store/format/json_scanner.h"

#include <bitset>

namespace weightfs::json {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The code unit of \uXXXX whose digits begin at `at`, or -1.
int code_unit(std::string_view text, std::size_t at) {
  if (text.size() - at < 4) return -1;
  int unit = 0;
  for (char c : text.substr(at, 4)) {
    int digit = hex_value(c);
    if (digit < 0) return -1;
    unit = unit << 4 | digit;
  }
  return unit;
}

bool is_high_surrogate(int unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low_surrogate(int unit) { return unit >= 0xdc00 && unit < 0xe000; }

void append_utf8(std::string& out, unsigned code) {
  auto tail = [&](unsigned shift) { out.push_back(static_cast<char>(0x80 | (code >> shift & 0x3f))); };
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xc0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xf0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

char short_escape(char c) {
  switch (c) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return c;
  }
}

}  // namespace

void RawString::append_to(std::string& out) const {
  if (!escaped) {
    out.append(text);
    return;
  }
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] != '\\') {
      out.push_back(text[i]);
      continue;
    }
    char kind = text[++i];
    if (kind != 'u') {
      out.push_back(short_escape(kind));
      continue;
    }
    auto unit = code_unit(text, i + 1);
    i += 4;
    auto code = static_cast<unsigned>(unit);
    if (is_high_surrogate(unit)) {
      code = 0x10000 + ((code - 0xd800) << 10 | (static_cast<unsigned>(code_unit(text, i + 3)) - 0xdc00));
      i += 6;
    }
    append_utf8(out, code);
  }
}

bool RawString::is(std::string_view value) const {
  if (!escaped) return text == value;
  if (text.size() > 6 * value.size()) return false;
  std::string plain;
  append_to(plain);
  return plain == value;
}

Status Scanner::error() const {
  return {Code::kInvalid, std::string(error_ == nullptr ? "not JSON" : error_) + " at byte " + std::to_string(at_)};
}

bool Scanner::fail(const char* why) {
  if (error_ == nullptr) error_ = why;
  return false;
}

void Scanner::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    at_++;
  }
}

bool Scanner::take(char c) {
  skip_space();
  if (failed() || at_ == text_.size() || text_[at_] != c) return false;
  at_++;
  return true;
}

bool Scanner::expect(char c) { return take(c) || fail("not the JSON that is expected"); }

bool Scanner::literal(std::string_view word) {
  skip_space();
  if (failed() || !text_.substr(at_).starts_with(word)) return false;
  at_ += word.size();
  return true;
}

bool Scanner::null() { return literal("null"); }

bool Scanner::end() {
  skip_space();
  if (failed()) return false;
  return at_ == text_.size() || fail("bytes after the JSON");
}

// At a backslash.
bool Scanner::escape() {
  if (text_.size() - at_ < 2) return fail("string without end");
  char kind = text_[at_ + 1];
  if (kind != 'u') {
    if (std::string_view("\"\\/bfnrt").find(kind) == std::string_view::npos) return fail("bad escape");
    at_ += 2;
    return true;
  }
  int unit = code_unit(text_, at_ + 2);
  if (unit < 0 || is_low_surrogate(unit)) return fail("bad escape");
  at_ += 6;
  if (!is_high_surrogate(unit)) return true;
  if (!text_.substr(at_).starts_with("\\u") || !is_low_surrogate(code_unit(text_, at_ + 2))) return fail("bad escape");
  at_ += 6;
  return true;
}

// At a byte over 127: one code point in its shortest form, no surrogate, not over U+10FFFF.
bool Scanner::utf8() {
  auto byte = [&](std::size_t i) {
    return at_ + i < text_.size() ? static_cast<unsigned char>(text_[at_ + i]) : static_cast<unsigned char>(0);
  };
  unsigned lead = byte(0), second = byte(1);
  std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  unsigned low = lead == 0xe0   ? 0xa0
                 : lead == 0xf0 ? 0x90
                                : 0x80,
           high = lead == 0xed   ? 0x9f
                  : lead == 0xf4 ? 0x8f
                                 : 0xbf;
  if (lead < 0xc2 || lead > 0xf4 || second < low || second > high) return fail("not UTF-8");
  for (std::size_t i = 2; i < length; i++) {
    if ((byte(i) & 0xc0) != 0x80) return fail("not UTF-8");
  }
  at_ += length;
  return true;
}

bool Scanner::string(RawString& out) {
  if (!expect('"')) return false;
  auto start = at_;
  out.escaped = false;
  while (at_ < text_.size()) {
    auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') {
      out.text = text_.substr(start, at_ - start);
      at_++;
      return true;
    }
    if (c < 0x20) return fail("control character in a string");
    if (c == '\\') {
      out.escaped = true;
      if (!escape()) return false;
    } else if (c < 0x80) {
      at_++;
    } else if (!utf8()) {
      return false;
    }
  }
  return fail("string without end");
}

bool Scanner::number(std::uint64_t& out) {
  skip_space();
  auto start = at_;
  out = 0;
  while (at_ < text_.size() && is_digit(text_[at_])) {
    if (__builtin_mul_overflow(out, std::uint64_t{10}, &out) ||
        __builtin_add_overflow(out, static_cast<std::uint64_t>(text_[at_] - '0'), &out)) {
      return fail("number over 2^64");
    }
    at_++;
  }
  if (failed() || at_ == start) return fail("not a whole number");
  if (text_[start] == '0' && at_ - start > 1) return fail("number with a leading zero");
  if (at_ < text_.size() && std::string_view(".eE").find(text_[at_]) != std::string_view::npos) {
    return fail("not a whole number");
  }
  return true;
}

bool Scanner::any_number() {
  auto digits = [&] {
    auto start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) at_++;
    return at_ > start;
  };
  auto next = [&](std::string_view any) {
    if (at_ == text_.size() || any.find(text_[at_]) == any.npos) return false;
    at_++;
    return true;
  };
  next("-");
  if (!next("0") && !digits()) return fail("not a value");
  if (next(".") && !digits()) return fail("bad number");
  if (next("eE")) {
    next("+-");
    if (!digits()) return fail("bad number");
  }
  return true;
}

bool Scanner::scalar() {
  if (at_ < text_.size() && text_[at_] == '"') {
    RawString ignored;
    return string(ignored);
  }
  return literal("true") || literal("false") || literal("null") || any_number();
}

bool Scanner::skip_value() {
  std::bitset<kMaxDepth + 1> is_object;
  std::size_t depth = 0;
  RawString key;
  while (true) {
    // Before a value.
    skip_space();
    if (failed()) return false;
    bool object = take('{');
    bool opened = object || take('[');
    if (opened) {
      if (depth == kMaxDepth) return fail("nested too deep");
      is_object[++depth] = object;
    } else if (!scalar()) {
      return false;
    }
    // After a value, or inside a container that was just opened.
    while (depth > 0) {
      bool closed = take(is_object[depth] ? '}' : ']');
      if (closed) {
        depth--;
        opened = false;
        continue;
      }
      if (!opened && !expect(',')) return false;
      if (is_object[depth] && (!string(key) || !expect(':'))) return false;
      break;
    }
    if (depth == 0) return true;
  }
}

bool Scanner::next_member(bool& first, RawString& key) {
  if (take('}')) return false;
  if (!first && !expect(',')) return false;
  first = false;
  return string(key) && expect(':');
}

bool Scanner::next_item(bool& first) {
  if (take(']')) return false;
  if (!first && !expect(',')) return false;
  first = false;
  return !failed();
}

}  // namespace weightfs::json
