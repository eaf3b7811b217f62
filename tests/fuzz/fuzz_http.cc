// Input: an HTTP answer, head and body, as a hostile store sends it to a range read, a whole read and a list.
#include <algorithm>

#include "fuzz.h"
#include "store/bucket/s3_body.h"
#include "store/bucket/s3_xml.h"

using namespace weightfs;

namespace {

void check_header_values(const HttpHead& head) {
  if (auto range = parse_content_range(head.find("content-range"))) {
    WFS_CHECK(range->range.length > 0 && checked_add(range->range.offset, range->range.length - 1));
    WFS_CHECK(!range->total || *range->total >= range->range.end());
  }
  auto now = WallTime(std::chrono::sys_days(std::chrono::year(2026) / 12 / 1));
  if (auto wait = parse_retry_after(head.find("retry-after"), now)) {
    WFS_CHECK(*wait >= Duration(0) && *wait <= std::chrono::hours(24));
  }
  parse_http_date(head.find("last-modified"));
}

// Whatever is sent: nothing beyond the range is written, and "complete" means that all of it was.
void read_range(const HttpHead& head, ByteSpan body) {
  Bytes out(32 + 2, std::byte{0x5a});
  RangeSink sink({7, 32}, MutableByteSpan(out).subspan(1, 32));
  HttpHeaders headers;
  sink.start(headers);
  if (sink.begin(head).is_ok()) {
    WFS_CHECK(head.status() == 200 || head.status() == 206);
    auto half = body.size() / 2;
    bool taken = sink.write(body.first(half)).is_ok() && sink.write(body.subspan(half)).is_ok();
    WFS_CHECK(taken == (body.size() <= 32) || half > 32);
    if (taken && sink.end().is_ok()) WFS_CHECK(std::equal(body.begin(), body.end(), out.begin() + 1));
  }
  WFS_CHECK(out.front() == std::byte{0x5a} && out.back() == std::byte{0x5a});
}

void read_whole(const HttpHead& head, ByteSpan body) {
  WholeSink sink(64);
  HttpHeaders headers;
  sink.start(headers);
  if (sink.begin(head).is_ok() && sink.write(body).is_ok()) WFS_CHECK(sink.take().size() <= 64);
}

void read_list(ByteSpan body) {
  auto text = as_text(body);
  auto page = parse_list(text);
  if (page.is_ok()) {
    for (const auto& object : page->objects) WFS_CHECK(!object.key.empty());
    WFS_CHECK(!page->next || !page->next->empty());
  } else {
    fuzz::check_refusal(page.status());
  }
  WFS_CHECK(parse_error_code(text).size() <= 64);
  auto back = parse_xml("<a>" + xml_escape(text) + "</a>");
  WFS_CHECK(back.is_ok() && back->text == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto text = as_text(fuzz::input(data, size));
  HttpHead head;
  while (!text.empty()) {
    auto end = std::min(text.find('\n'), text.size() - 1) + 1;
    auto line = text.substr(0, end);
    text.remove_prefix(end);
    if (line == "\r\n" || line == "\n") break;
    if (!head.add_line(line)) return 0;
  }
  auto body = as_bytes(text);
  check_header_values(head);
  read_range(head, body);
  read_whole(head, body);
  read_list(body);
  return 0;
}
