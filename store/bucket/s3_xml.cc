#include "store/bucket/s3_xml.h"

#include <algorithm>

#include "store/bucket/http_head.h"

namespace weightfs {
namespace {

constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxElements = 100'000;

Status malformed(const char* what) { return {Code::kCorrupt, std::string("malformed XML: ") + what}; }

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_name_char(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

void append_utf8(std::string& out, std::uint32_t c) {
  auto push = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | c >> 6);
    push(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    push(0xe0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  } else {
    push(0xf0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3f));
    push(0x80 | (c >> 6 & 0x3f));
    push(0x80 | (c & 0x3f));
  }
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : in_(text) {}

  Result<XmlNode> parse() {
    if (in_.starts_with("\xef\xbb\xbf")) at_ = 3;
    skip_space();
    if (rest().starts_with("<?xml")) {
      auto end = in_.find("?>", at_);
      if (end == in_.npos) return malformed("declaration");
      at_ = end + 2;
    }
    skip_space();
    XmlNode root;
    WFS_TRY(element(root, 0));
    skip_space();
    if (at_ != in_.size()) return malformed("text behind the document");
    return root;
  }

 private:
  std::string_view rest() const { return in_.substr(at_); }
  bool take(std::string_view token) {
    if (!rest().starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void skip_space() {
    while (at_ < in_.size() && is_space(in_[at_])) at_++;
  }
  std::string_view name() {
    auto start = at_;
    while (at_ < in_.size() && is_name_char(in_[at_])) at_++;
    return in_.substr(start, at_ - start);
  }

  // Up to and with '>' or '/>'. True: the element is closed already.
  Result<bool> attributes() {
    while (true) {
      auto before = at_;
      skip_space();
      if (take("/>")) return true;
      if (take(">")) return false;
      if (before == at_ || name().empty()) return malformed("attribute");
      skip_space();
      if (!take("=")) return malformed("attribute");
      skip_space();
      if (at_ >= in_.size() || (in_[at_] != '"' && in_[at_] != '\'')) return malformed("attribute");
      auto end = in_.find(in_[at_], at_ + 1);
      if (end == in_.npos || in_.substr(at_, end - at_).find('<') != in_.npos) return malformed("attribute");
      at_ = end + 1;
    }
  }

  Status element(XmlNode& node, int depth) {
    if (depth >= kMaxDepth) return malformed("too deep");
    if (++elements_ > kMaxElements) return malformed("too many elements");
    if (!take("<")) return malformed("expected an element");
    auto full = name();
    if (full.empty()) return malformed("element without a name");
    auto colon = full.rfind(':');
    node.name = full.substr(colon == full.npos ? 0 : colon + 1);
    if (WFS_TRY(attributes())) return {};
    while (true) {
      WFS_TRY(text(node.text));
      if (take("</")) {
        if (name() != full) return malformed("mismatched end tag");
        skip_space();
        return take(">") ? Status() : malformed("end tag");
      }
      node.children.emplace_back();
      WFS_TRY(element(node.children.back(), depth + 1));
    }
  }

  // Up to the next '<'.
  Status text(std::string& out) {
    while (at_ < in_.size() && in_[at_] != '<') {
      if (in_[at_] == '&') {
        WFS_TRY(reference(out));
      } else {
        out.push_back(in_[at_++]);
      }
    }
    return at_ < in_.size() ? Status() : malformed("it ends inside an element");
  }

  Status reference(std::string& out) {
    auto end = in_.find(';', at_);
    if (end == in_.npos || end - at_ > 10) return malformed("reference");
    auto body = in_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    static constexpr std::pair<std::string_view, char> kNamed[] = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [entity, c] : kNamed) {
      if (body == entity) return out.push_back(c), Status();
    }
    if (!body.starts_with('#')) return malformed("unknown entity");
    body.remove_prefix(1);
    std::uint32_t base = 10, value = 0;
    if (body.starts_with('x')) {
      base = 16;
      body.remove_prefix(1);
    }
    if (body.empty()) return malformed("reference");
    for (char c : body) {
      std::uint32_t digit = c >= '0' && c <= '9'   ? static_cast<std::uint32_t>(c - '0')
                            : c >= 'a' && c <= 'f' ? static_cast<std::uint32_t>(c - 'a' + 10)
                            : c >= 'A' && c <= 'F' ? static_cast<std::uint32_t>(c - 'A' + 10)
                                                   : 99;
      if (digit >= base) return malformed("reference");
      value = value * base + digit;
      if (value > 0x10ffff) return malformed("reference");
    }
    if (value == 0 || (value >= 0xd800 && value < 0xe000)) return malformed("reference");
    append_utf8(out, value);
    return {};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
};

// Keys come percent-encoded, and with '+' for a space, when encoding-type=url was asked for.
Result<std::string> url_decode(std::string_view text) {
  auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] == '+') {
      out.push_back(' ');
    } else if (text[i] != '%') {
      out.push_back(text[i]);
    } else {
      if (text.size() - i < 3 || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) {
        return Status(Code::kCorrupt, "a key in the list is badly encoded");
      }
      out.push_back(static_cast<char>(digit(text[i + 1]) << 4 | digit(text[i + 2])));
      i += 2;
    }
  }
  return out;
}

}  // namespace

const XmlNode* XmlNode::find(std::string_view child) const {
  auto found = std::find_if(children.begin(), children.end(), [&](const XmlNode& node) { return node.name == child; });
  return found == children.end() ? nullptr : &*found;
}

std::string_view XmlNode::text_of(std::string_view child) const {
  const auto* node = find(child);
  return node == nullptr ? std::string_view() : std::string_view(node->text);
}

Result<XmlNode> parse_xml(std::string_view text) { return XmlParser(text).parse(); }

std::string xml_escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::optional<WallTime> parse_iso_time(std::string_view text) {
  if (text.size() < 20 || text.size() > 40 || text.back() != 'Z') return std::nullopt;
  std::string digits;
  if (text[19] == '.') {
    digits = text.substr(20, text.size() - 21);
  } else if (text.size() != 20) {
    return std::nullopt;
  }
  digits = (digits + "000").substr(0, 3);
  auto time = parse_rfc3339(std::string(text.substr(0, 19)) + "." + digits + "Z");
  if (!time.is_ok()) return std::nullopt;
  return *time;
}

Result<S3ListPage> parse_list(std::string_view xml) {
  auto root = WFS_TRY(parse_xml(xml));
  if (root.name != "ListBucketResult") return Status(Code::kCorrupt, "the answer is no list");
  bool encoded = root.text_of("EncodingType") == "url";
  auto key_of = [&](std::string_view text) -> Result<std::string> {
    if (encoded) return url_decode(text);
    return std::string(text);
  };
  S3ListPage page;
  for (const auto& node : root.children) {
    if (node.name == "Contents") {
      S3ListPage::Object object;
      object.key = WFS_TRY(key_of(node.text_of("Key")));
      auto size = parse_decimal(node.text_of("Size"));
      auto modified = parse_iso_time(node.text_of("LastModified"));
      if (object.key.empty() || !size || !modified) return Status(Code::kCorrupt, "the list has a malformed object");
      object.size = *size;
      object.modified = *modified;
      page.objects.push_back(std::move(object));
    } else if (node.name == "CommonPrefixes") {
      page.prefixes.push_back(WFS_TRY(key_of(node.text_of("Prefix"))));
    }
  }
  auto truncated = root.text_of("IsTruncated");
  if (truncated == "true") {
    page.next = std::string(root.text_of("NextContinuationToken"));
    if (page.next->empty()) return Status(Code::kCorrupt, "the list is cut and has no continuation");
  } else if (truncated != "false") {
    return Status(Code::kCorrupt, "the list does not say whether it is whole");
  }
  return page;
}

std::string parse_error_code(std::string_view xml) {
  auto root = parse_xml(xml);
  if (!root.is_ok() || root->name != "Error") return "";
  auto code = root->text_of("Code");
  bool plain = std::all_of(code.begin(), code.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
  });
  return plain && code.size() <= 64 ? std::string(code) : "";
}

}  // namespace weightfs
