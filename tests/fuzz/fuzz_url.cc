// Input: a bucket's URL, or an endpoint's.
#include "fuzz.h"
#include "store/bucket/s3_client.h"
#include "store/bucket/url.h"

using namespace weightfs;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(as_text(fuzz::input(data, size)));
  auto url = parse_bucket_url(text);
  if (!url.is_ok()) {
    WFS_CHECK(url.code() == Code::kInvalid);
  } else if (const auto* s3 = std::get_if<S3Url>(&*url)) {
    WFS_CHECK(s3->bucket.size() >= 3 && s3->bucket.find('/') == std::string::npos);
    WFS_CHECK(s3->prefix.empty() || (s3->prefix.back() == '/' && s3->prefix.find("//") == std::string::npos));
    WFS_CHECK(("/" + s3->prefix).find("/../") == std::string::npos);
    auto path = uri_encode(s3->prefix, true);
    WFS_CHECK(path.find_first_of(" ?#\r\n") == std::string::npos);
  }
  auto endpoint = S3Endpoint::make(text, "us-east-1", "bucket");
  if (endpoint.is_ok()) {
    WFS_CHECK(endpoint->origin.starts_with("http"));
    WFS_CHECK(endpoint->host.find_first_of("@/\r\n ") == std::string::npos);
  }
  return 0;
}
