// The little XML that S3 speaks: bounded, strict, no DTDs, no entities but the five of XML and characters by number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/clock.h"

namespace weightfs {

struct XmlNode {
  std::string name;  // without a namespace prefix; attributes are dropped
  std::string text;  // all text directly inside
  std::vector<XmlNode> children;
  // The first child of that name, or nullptr.
  const XmlNode* find(std::string_view child) const;
  std::string_view text_of(std::string_view child) const;  // "" when there is none
};

// kCorrupt: malformed, deeper than 16, or over 100,000 elements.
Result<XmlNode> parse_xml(std::string_view text);
std::string xml_escape(std::string_view text);

struct S3ListPage {
  struct Object {
    std::string key;
    std::uint64_t size = 0;
    WallTime modified{};
  };
  std::vector<Object> objects;
  std::vector<std::string> prefixes;
  std::optional<std::string> next;  // the token of the next page
};
// An answer of ListObjectsV2.
Result<S3ListPage> parse_list(std::string_view xml);

// The <Code> of an <Error> document: letters, digits and dots, at most 64 bytes; "" for anything else. The <Message> is
// not used: what a server says there may hold what we sent it.
std::string parse_error_code(std::string_view xml);

// "2026-12-01T13:29:05Z" with any number of digits of a second.
std::optional<WallTime> parse_iso_time(std::string_view text);

}  // namespace weightfs
