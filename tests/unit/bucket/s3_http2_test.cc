// S3 over TLS, through a proxy that speaks HTTP/2.
#include <gmock/gmock.h>

#include "store/bucket/s3_bucket.h"
#include "tests/support/http2_proxy.h"
#include "tests/support/s3_server.h"
#include "tests/unit/bucket/bucket_contract.h"

namespace weightfs {
namespace {

Http2Proxy& proxy() {
  static auto started = std::move(Http2Proxy::start(S3Server::shared().endpoint())).value();
  return *started;
}

std::unique_ptr<Bucket> open(const std::string& bucket) {
  auto environment = [server = S3Server::shared().environment()](const char* name) -> std::string {
    if (std::string_view(name) == "AWS_ENDPOINT_URL") return proxy().endpoint();
    if (std::string_view(name) == "AWS_CA_BUNDLE") return proxy().ca_bundle();
    return server(name);
  };
  return std::move(S3Bucket::open("s3://" + bucket, {.bucket = bucket}, {}, environment)).value();
}

INSTANTIATE_TEST_SUITE_P(, BucketContract,
                         testing::Values(MakeBuckets{"s3_http2",
                                                     [] {
                                                       auto bucket = S3Server::shared().make_bucket();
                                                       return BucketPair{nullptr, open(bucket), open(bucket)};
                                                     }}),
                         [](const auto& test) { return test.param.name; });

// libcurl 7.88 mixes up the answers on an HTTP/1.1 connection to a host that speaks HTTP/2, too, when it may multiplex.
TEST(S3Http2Test, AnswersBelongToTheirRequestsAlsoBesideHttp1Connections) {
  auto bucket = open(S3Server::shared().make_bucket());
  auto key = ObjectKey::of("m/packs/p");
  auto bytes = pattern(16 << 20);
  for (int round = 0; round < 3; round++) {
    ASSERT_OK(bucket->put(key, bytes, IfExists::kOverwrite));  // large: by HTTP/1.1, whose connection stays open
    std::vector<std::thread> readers;
    std::atomic<int> wrong = 0;
    for (unsigned i = 0; i < 16; i++) {
      readers.emplace_back([&, i] {
        for (unsigned j = 0; j < 8; j++) {
          ByteRange range{std::uint64_t{(i * 8 + j) % 16} << 20, 1 << 20};
          Bytes out(range.length);
          ASSERT_OK(bucket->get(key, range, out));
          if (!std::equal(out.begin(), out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(range.offset))) wrong++;
        }
      });
    }
    for (auto& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_EQ(bucket->counters().retries, 0u);
  EXPECT_THAT(proxy().log(), testing::ContainsRegex("GET [^ ]*/m/packs/p HTTP/2"));
  EXPECT_THAT(proxy().log(), testing::ContainsRegex("PUT [^ ]*/m/packs/p HTTP/1.1"));
}

}  // namespace
}  // namespace weightfs
