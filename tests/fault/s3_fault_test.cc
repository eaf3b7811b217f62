// S3 behind a proxy that goes wrong: what comes of each fault, how often it is tried, and that neither a wrong byte nor
// a secret gets out.
#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <sstream>
#include <thread>

#include "store/base/digest.h"
#include "store/bucket/s3_bucket.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/s3_server.h"
#include "tests/support/status_matchers.h"

namespace weightfs {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  std::mt19937_64 random(7);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

FaultProxy& proxy(bool tls = false) {
  static auto plain = std::move(FaultProxy::start(S3Server::shared().endpoint())).value();
  static auto secure = std::move(FaultProxy::start(S3Server::shared().endpoint(), {.tls = true})).value();
  return tls ? *secure : *plain;
}

class S3FaultTest : public testing::Test {
 protected:
  // What would be logged, with every detail, is kept and searched for secrets.
  void SetUp() override {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
    old_logger_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
    spdlog::set_level(spdlog::level::debug);
    direct_ = S3Server::shared().open(name_);
    for (bool tls : {false, true}) {
      proxy(tls).set_rules(json::array());
      proxy(tls).reset();
    }
    bucket_ = through();
    ASSERT_OK(direct_->put(key_, bytes_, IfExists::kOverwrite));
  }
  void TearDown() override {
    bucket_.reset();
    direct_.reset();
    spdlog::set_default_logger(old_logger_);
    auto text = log_.str();
    for (const auto& secret : {S3Server::shared().secret_key(), std::string("X-Signature"), std::string("Signature="),
                               std::string("token-of-session")}) {
      EXPECT_THAT(text, Not(HasSubstr(secret)));
    }
  }

  Environment environment(bool tls) {
    return [tls, server = S3Server::shared().environment(), extra = extra_](const char* name) -> std::string {
      auto found = extra.find(name);
      if (found != extra.end()) return found->second;
      if (std::string_view(name) == "AWS_ENDPOINT_URL") return proxy(tls).endpoint();
      if (tls && std::string_view(name) == "AWS_CA_BUNDLE") return proxy(tls).ca_bundle();
      return server(name);
    };
  }
  std::unique_ptr<Bucket> through(const BucketOptions& options = {.stall = std::chrono::seconds(20)}, bool tls = false,
                                  const S3Tuning& tuning = {.first_backoff = Duration(2)}) {
    auto opened = S3Bucket::open("s3://" + name_, {.bucket = name_}, options, environment(tls), tuning);
    EXPECT_OK(opened);
    return std::move(opened).value();
  }
  void rule(json rule) { rules(json::array({std::move(rule)})); }
  void rules(const json& rules) {
    proxy().set_rules(rules);
    proxy().reset();
  }
  static std::size_t requests(bool tls = false) { return proxy(tls).log().size(); }
  Status get(ByteRange range = {1000, 50'000}, const CallOptions& options = {}) {
    Bytes out(range.length + 2, std::byte{0x5a});
    auto status = bucket_->get(key_, range, MutableByteSpan(out).subspan(1, range.length), options);
    EXPECT_EQ(out.front(), std::byte{0x5a});
    EXPECT_EQ(out.back(), std::byte{0x5a});
    if (status.is_ok()) {
      EXPECT_TRUE(
          std::equal(out.begin() + 1, out.end() - 1, bytes_.begin() + static_cast<std::ptrdiff_t>(range.offset)));
    }
    return status;
  }
  Result<Bytes> get_all() { return bucket_->get_all(key_, bytes_.size()); }

  const std::string name_ = S3Server::shared().make_bucket();
  const ObjectKey key_ = ObjectKey::of("m/packs/p"), new_key_ = ObjectKey::of("m/log/1");
  const Bytes bytes_ = pattern(100'000);
  std::map<std::string, std::string> extra_;
  std::unique_ptr<Bucket> direct_, bucket_;

 private:
  std::ostringstream log_;
  std::shared_ptr<spdlog::logger> old_logger_;
};

TEST_F(S3FaultTest, WhatPassesIsTriedAgain) {
  for (const json& fault :
       {json{{"status", 429}}, json{{"status", 500}}, json{{"status", 502}}, json{{"status", 503}},
        json{{"status", 504}}, json{{"status", 408}}, json{{"status", 503}, {"code", "SlowDown"}},
        json{{"status", 400}, {"code", "RequestTimeout"}}, json{{"status", 500}, {"code", "InternalError"}},
        json{{"status", 200}, {"code", "InternalError"}}}) {
    json what = fault;
    what["do"] = "status";
    what["times"] = 2;
    rule(what);
    EXPECT_OK(get()) << fault;
    EXPECT_EQ(requests(), 3u) << fault;
    rule(what);
    auto all = get_all();
    ASSERT_OK(all) << fault;
    EXPECT_TRUE(*all == bytes_);
    if (fault["status"] == 200) continue;  // for a PUT 200 is 200
    rule(what);
    EXPECT_OK(bucket_->put(new_key_, as_bytes("x"), IfExists::kFail)) << fault;
    rule(what);
    if (fault["status"] != 400) {  // the answer to a HEAD has no body with a code
      EXPECT_OK(bucket_->head(new_key_)) << fault;
    }
    rule(what);
    EXPECT_EQ(bucket_->list_prefixes("")->size(), 1u) << fault;
    rule(what);
    EXPECT_OK(bucket_->remove(new_key_)) << fault;
  }
}

TEST_F(S3FaultTest, WhatDoesNotPassIsToldAtOnce) {
  struct Case {
    json fault;
    Code code;
  };
  for (const auto& [fault, code] :
       {Case{{{"status", 403}, {"code", "AccessDenied"}}, Code::kPermission},
        Case{{{"status", 401}}, Code::kPermission}, Case{{{"status", 404}, {"code", "NoSuchKey"}}, Code::kNotFound},
        Case{{{"status", 404}}, Code::kNotFound}, Case{{{"status", 404}, {"code", "NoSuchBucket"}}, Code::kInvalid},
        Case{{{"status", 416}, {"code", "InvalidRange"}}, Code::kCorrupt},
        Case{{{"status", 301}, {"code", "PermanentRedirect"}}, Code::kInvalid},
        Case{{{"status", 403}, {"code", "QuotaExceeded"}}, Code::kNoSpace},
        Case{{{"status", 400}, {"code", "InvalidArgument"}}, Code::kInvalid},
        Case{{{"do", "endless"}, {"status", 403}}, Code::kPermission}}) {
    json what = fault;
    what.emplace("do", "status");
    what["times"] = 0;
    rule(what);
    EXPECT_STATUS(get(), code) << fault;
    EXPECT_EQ(requests(), 1u) << fault;
    rule(what);
    EXPECT_STATUS(bucket_->put(new_key_, pattern(3'000'000), IfExists::kFail), code) << fault;
    EXPECT_EQ(requests(), 1u) << fault;
  }
}

TEST_F(S3FaultTest, AConditionalPutsAnswersHaveTheirMeanings) {
  struct Case {
    json fault;
    Code code;
    std::size_t requests;
  };
  for (const auto& [fault, code, count] :
       {Case{{{"status", 412}, {"code", "PreconditionFailed"}}, Code::kExists, 1},
        Case{{{"status", 409}, {"code", "ConditionalRequestConflict"}}, Code::kExists, 3},
        Case{{{"status", 501}, {"code", "NotImplemented"}}, Code::kUnsupported, 1},
        Case{{{"status", 400}, {"code", "NotImplemented"}}, Code::kUnsupported, 1}}) {
    json what = fault;
    what["do"] = "status";
    what["times"] = 0;
    rule(what);
    EXPECT_STATUS(bucket_->put(new_key_, as_bytes("x"), IfExists::kFail), code) << fault;
    EXPECT_EQ(requests(), count) << fault;
  }
  EXPECT_STATUS(direct_->head(new_key_), Code::kNotFound);
}

TEST_F(S3FaultTest, RetryAfterIsHonouredInBothForms) {
  rule({{"do", "status"}, {"status", 429}, {"headers", {{"Retry-After", "1"}}}});
  auto start = std::chrono::steady_clock::now();
  EXPECT_OK(get());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  rule({{"do", "status"}, {"status", 503}, {"headers", {{"Retry-After", "Tue, 01 Dec 2020 13:29:05 GMT"}}}});
  EXPECT_OK(get());
  rule({{"do", "status"}, {"status", 503}, {"headers", {{"Retry-After", "Fri, 01 Jan 2100 00:00:00 GMT"}}}});
  EXPECT_STATUS(get(), Code::kUnavailable);  // nobody waits that long
  EXPECT_EQ(requests(), 1u);
}

TEST_F(S3FaultTest, ABodyCutAgainAndAgainIsCompletedFromWhereItStopped) {
  rule({{"do", "cut"}, {"after", 7'000}, {"times", 0}});
  EXPECT_OK(get());
  EXPECT_EQ(requests(), 8u);
  auto log = proxy().log();
  EXPECT_EQ(log[0]["headers"]["range"], "bytes=1000-50999");
  EXPECT_EQ(log[1]["headers"]["range"], "bytes=8000-50999");
  EXPECT_EQ(log[7]["headers"]["range"], "bytes=50000-50999");
  rule({{"do", "cut"}, {"after", 7'000}});
  EXPECT_TRUE(*get_all() == bytes_);
}

TEST_F(S3FaultTest, AStallBeforeOrWithinTheBodyIsAFailureThatPasses) {
  bucket_ = through({.stall = std::chrono::seconds(1)});
  rule({{"do", "stall"}});
  EXPECT_OK(get());
  rule({{"do", "stall"}, {"when", "body"}, {"after", 5'000}});
  EXPECT_OK(get());
  rule({{"do", "stall"}});
  EXPECT_OK(bucket_->put(new_key_, pattern(500'000), IfExists::kFail));
}

TEST_F(S3FaultTest, AServerThatNeverAnswersIsUnavailableAtTheDeadline) {
  bucket_ = through({.stall = std::chrono::milliseconds(300)});
  rule({{"do", "stall"}, {"times", 0}});
  EXPECT_STATUS(get({0, 10}, {.deadline = std::chrono::milliseconds(3000)}), Code::kUnavailable);
  EXPECT_GE(requests(), 2u);
}

TEST_F(S3FaultTest, ASlowBodyThatMovesIsNoStall) {
  bucket_ = through({.stall = std::chrono::seconds(2)});
  rule({{"do", "drip"}, {"rate", 1000}});
  EXPECT_OK(get({0, 3000}));
  EXPECT_EQ(requests(), 1u);
}

TEST_F(S3FaultTest, ACancelledCallEndsSoonEvenInTheMiddleOfABody) {
  bucket_ = through({.stall = std::chrono::seconds(60)});
  for (const json& fault : {json{{"do", "stall"}}, json{{"do", "stall"}, {"when", "body"}, {"after", 100}},
                            json{{"do", "status"}, {"status", 503}, {"headers", {{"Retry-After", "50"}}}}}) {
    rule(fault);
    auto token = std::make_shared<CancelToken>();
    std::thread reader([&] {
      EXPECT_STATUS(get({0, 1000}, {.deadline = std::chrono::minutes(1), .cancel = token}), Code::kInterrupted);
    });
    while (requests() == 0) std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    token->cancel();
    reader.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));  // not 60
  }
}

TEST_F(S3FaultTest, DataThatWasNotAskedForIsNeverTaken) {
  for (const json& fault :
       {json{{"do", "full"}}, json{{"do", "headers"}, {"headers", {{"Content-Range", "bytes 0-49999/100000"}}}},
        json{{"do", "headers"}, {"headers", {{"Content-Range", nullptr}}}},
        json{{"do", "headers"}, {"headers", {{"Content-Range", "bytes 1000-51000/100000"}}}},
        json{{"do", "headers"}, {"headers", {{"Content-Length", "40000"}}}},
        json{{"do", "status"}, {"status", 200}, {"body", std::string(50'000, '<')}},
        json{{"do", "status"}, {"status", 200}, {"headers", {{"Content-Type", "text/html"}}}},
        json{{"do", "status"}, {"status", 204}}}) {
    auto always = fault;
    always["times"] = 0;
    rule(always);
    EXPECT_STATUS(get(), Code::kCorrupt) << fault;
    EXPECT_EQ(requests(), 3u) << fault;
    rule(fault);
    EXPECT_OK(get()) << fault;  // once is a hiccup
  }
}

TEST_F(S3FaultTest, APageOfSomeGatewayIsNoObject) {
  rule({{"do", "status"},
        {"status", 200},
        {"times", 0},
        {"body", "<html>please log in</html>"},
        {"headers", {{"Content-Type", "text/html; charset=utf-8"}}}});
  EXPECT_STATUS(get_all(), Code::kCorrupt);
}

TEST_F(S3FaultTest, AResetBeforeItWasDoneIsTriedAgain) {
  rule({{"do", "reset"}, {"times", 2}});
  EXPECT_OK(get());
  rule({{"do", "reset"}});
  EXPECT_OK(bucket_->put(new_key_, as_bytes("mine"), IfExists::kFail));
  EXPECT_EQ(as_text(*direct_->get_all(new_key_, 10)), "mine");
}

TEST_F(S3FaultTest, AResetAfterItWasDoneMakesAConditionalPutMeetItself) {
  rule({{"do", "reset"}, {"when", "after"}});
  EXPECT_STATUS(bucket_->put(new_key_, as_bytes("mine"), IfExists::kFail), Code::kExists);
  EXPECT_EQ(as_text(*direct_->get_all(new_key_, 10)), "mine");
  rule({{"do", "reset"}, {"when", "after"}});
  EXPECT_OK(bucket_->put(new_key_, as_bytes("again"), IfExists::kOverwrite));
  rule({{"do", "reset"}, {"when", "after"}});
  EXPECT_OK(bucket_->remove(new_key_));
}

TEST_F(S3FaultTest, ARedirectIsFollowedWithoutCredentials) {
  extra_["AWS_SESSION_TOKEN"] = "";
  for (int status : {301, 302, 303, 307, 308}) {
    rule({{"do", "redirect"}, {"status", status}});
    EXPECT_OK(get());
    auto log = proxy().log();
    ASSERT_EQ(log.size(), 2u);
    EXPECT_TRUE(log[0]["headers"].contains("authorization"));
    EXPECT_EQ(log[1]["at"], "elsewhere");
    EXPECT_EQ(log[1]["headers"]["range"], "bytes=1000-50999");
    for (const auto& [name, value] : log[1]["headers"].items()) {
      EXPECT_NE(name, "authorization");
      EXPECT_FALSE(name.starts_with("x-amz-")) << name;
    }
  }
  rule({{"do", "redirect"}});
  EXPECT_TRUE(*get_all() == bytes_);
  rule({{"do", "redirect"}});
  EXPECT_EQ(bucket_->head(key_)->size, bytes_.size());
}

TEST_F(S3FaultTest, RedirectsHaveAnEnd) {
  rule({{"do", "redirect"}, {"hops", 3}, {"times", 0}});
  EXPECT_OK(get());
  rule({{"do", "redirect"}, {"hops", 4}, {"times", 0}});
  EXPECT_STATUS(get(), Code::kCorrupt);
}

TEST_F(S3FaultTest, ARedirectOfAWriteOrToAStrangeSchemeIsNotFollowed) {
  rule({{"do", "redirect"}, {"location", "http://" + proxy().elsewhere() + "/x"}, {"status", 307}, {"times", 0}});
  EXPECT_FALSE(bucket_->put(new_key_, as_bytes("x"), IfExists::kFail).is_ok());
  for (const auto& request : proxy().log()) EXPECT_EQ(request["at"], "store");
  for (const char* location : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "http://u:p@127.0.0.1/"}) {
    rule({{"do", "redirect"}, {"location", location}, {"times", 0}});
    EXPECT_FALSE(get().is_ok()) << location;
    EXPECT_THAT(get().message(), Not(HasSubstr("u:p"))) << location;
  }
}

TEST_F(S3FaultTest, AClockThatIsWrongIsSetByTheServersOnce) {
  rule({{"do", "skew"}, {"seconds", 300}});
  EXPECT_OK(get());
  auto log = proxy().log();
  ASSERT_EQ(log.size(), 2u);
  EXPECT_NE(log[0]["headers"]["x-amz-date"], log[1]["headers"]["x-amz-date"]);
  bucket_ = through();
  rule({{"do", "skew"}, {"seconds", 300}, {"times", 0}});
  auto status = get();
  EXPECT_STATUS(status, Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("clock"));
  EXPECT_EQ(requests(), 2u);
}

TEST_F(S3FaultTest, TheServersTimeIsItsDateHeader) {
  rule({{"do", "headers"}, {"headers", {{"Date", "Sat, 01 Jan 2022 00:00:00 GMT"}}}});
  EXPECT_EQ(to_rfc3339(*bucket_->server_time()), "2022-01-01T00:00:00.000Z");
  rule({{"do", "status"}, {"status", 403}, {"headers", {{"Date", "Sat, 01 Jan 2022 00:00:00 GMT"}}}});
  EXPECT_EQ(to_rfc3339(*bucket_->server_time()), "2022-01-01T00:00:00.000Z");  // without rights, too
  rule({{"do", "status"}, {"status", 503}, {"headers", {{"Date", "Sat, 01 Jan 2022 00:00:00 GMT"}}}});
  EXPECT_NE(to_rfc3339(*bucket_->server_time()), "2022-01-01T00:00:00.000Z");  // some gateway's
}

TEST_F(S3FaultTest, AListThatMakesNoSenseIsCorrupt) {
  auto list = [](const std::string& inside) { return "<ListBucketResult>" + inside + "</ListBucketResult>"; };
  auto object = [](const std::string& key, const std::string& size) {
    return "<Contents><Key>" + key + "</Key><LastModified>2026-12-01T00:00:00Z</LastModified><Size>" + size +
           "</Size></Contents>";
  };
  for (const auto& body : {std::string("no xml"), list("<IsTruncated>true</IsTruncated>"), list(""),
                           list("<IsTruncated>false</IsTruncated>" + object("other/key", "1")),
                           list("<IsTruncated>false</IsTruncated>" + object("m/x", "-1")),
                           list("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>")}) {
    rule({{"do", "status"}, {"status", 200}, {"body", body}, {"times", 0}});
    EXPECT_STATUS(bucket_->list("m/"), Code::kCorrupt) << body;
  }
  rule({{"do", "status"},
        {"status", 200},
        {"body", list("<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>" + object("m/%2E%2E/x", "1") +
                      object("m/a%20b", "1") + object("m/good", "1"))}});
  EXPECT_EQ(bucket_->list("m/")->size(), 1u);  // names that are none of ours are passed by
}

TEST_F(S3FaultTest, AWrongByteIsPassedOnForTheDigestToFind) {
  rule({{"do", "corrupt"}, {"at", 500}});
  auto wrong = get_all();
  ASSERT_OK(wrong);
  (*wrong)[500] ^= std::byte{1};
  EXPECT_TRUE(*wrong == bytes_);
}

class S3UploadFaultTest : public S3FaultTest {
 protected:
  void SetUp() override {
    S3FaultTest::SetUp();
    bucket_ = through({.stall = std::chrono::seconds(20)}, false,
                      {.first_backoff = Duration(2), .multipart_above = 1 << 20, .part_size = 5 << 20});
    ASSERT_OK(posix::write_file_durably(dir_ / "file", content_));
    fd_ = std::move(posix::open(dir_ / "file", O_RDONLY)).value();
  }
  Status upload(const CallOptions& options = {}) {
    return bucket_->put_file(new_key_, fd_.get(), content_.size(), options);
  }
  bool uploads_left() {
    S3Client client({.endpoint = std::move(S3Endpoint::make(S3Server::shared().endpoint(), "us-east-1", name_)).value(),
                     .region = "us-east-1",
                     .keys = {S3Server::shared().access_key(), S3Server::shared().secret_key(), ""}});
    auto answer = client.call({.method = "GET", .query = {{"uploads", ""}}},
                              {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10)});
    EXPECT_OK(answer);
    return as_text(answer->body).find("<Upload>") != std::string_view::npos;
  }
  static constexpr int kRequests = 5;  // begin, three parts, complete
  const Bytes content_ = pattern(12'345'678);
  TempDir dir_;
  Fd fd_;
};

TEST_F(S3UploadFaultTest, WhicheverRequestFailsForAMomentTheUploadIsWhole) {
  for (const json& fault :
       {json{{"do", "status"}, {"status", 503}}, json{{"do", "reset"}}, json{{"do", "reset"}, {"when", "after"}}}) {
    for (int n = 1; n <= kRequests; n++) {
      auto nth = fault;
      nth["nth"] = n;
      rule(nth);
      ASSERT_OK(upload()) << nth;
      auto back = direct_->get_all(new_key_, content_.size());
      ASSERT_OK(back);
      EXPECT_TRUE(*back == content_);
      ASSERT_OK(direct_->remove(new_key_));
    }
  }
}

TEST_F(S3UploadFaultTest, WhicheverRequestIsRefusedNothingIsLeft) {
  for (int n = 1; n <= kRequests; n++) {
    rule({{"do", "status"}, {"status", 403}, {"code", "AccessDenied"}, {"nth", n}});
    EXPECT_STATUS(upload(), Code::kPermission) << n;
    EXPECT_STATUS(direct_->head(new_key_), Code::kNotFound) << n;
    EXPECT_FALSE(uploads_left()) << n;
  }
}

TEST_F(S3UploadFaultTest, AnErrorInASuccessfulCompleteIsAnError) {
  rule({{"method", "POST"}, {"key", "uploadId"}, {"do", "status"}, {"status", 200}, {"code", "InternalError"}});
  ASSERT_OK(upload());
  EXPECT_EQ(direct_->head(new_key_)->size, content_.size());
  EXPECT_EQ(requests(), static_cast<std::size_t>(kRequests) + 1);
}

TEST_F(S3UploadFaultTest, ACancelledUploadLeavesNothing) {
  rule({{"method", "PUT"}, {"do", "stall"}, {"times", 0}});
  bucket_ = through({.stall = std::chrono::seconds(60)}, false, {.multipart_above = 1 << 20, .part_size = 5 << 20});
  auto token = std::make_shared<CancelToken>();
  std::thread writer([&] { EXPECT_STATUS(upload({.cancel = token}), Code::kInterrupted); });
  while (requests() < 4) std::this_thread::yield();
  token->cancel();
  writer.join();
  EXPECT_STATUS(direct_->head(new_key_), Code::kNotFound);
  EXPECT_FALSE(uploads_left());
}

TEST_F(S3FaultTest, TheBandwidthLimitIsOneForAllConnectionsAndBothDirections) {
  auto big = pattern(1'000'000);
  ASSERT_OK(direct_->put(new_key_, big, IfExists::kOverwrite));
  bucket_ = through({.bandwidth = 8'000'000});
  auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&, i] {
      if (i % 2 == 0) {
        EXPECT_TRUE(*bucket_->get_all(new_key_, big.size()) == big);
      } else {
        EXPECT_OK(bucket_->put(ObjectKey::of("up/" + std::to_string(i)), big, IfExists::kOverwrite));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(took, 0.85);  // 8 MB at 8 MB/s, less a tenth of a second's worth
  EXPECT_EQ(bucket_->counters().retries, 0u);
}

TEST_F(S3FaultTest, TheProxysLinkIsOneForAllConnections) {
  proxy().set_link(4'000'000);
  auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back([&] { EXPECT_OK(get({0, 100'000})); });
  for (auto& thread : threads) thread.join();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  proxy().set_link(0);
  EXPECT_EQ(proxy().counters()["sent"], 400'000);
  EXPECT_EQ(proxy().counters()["by"]["GET"]["/" + name_ + "/" + key_.str()]["requests"], 4);
}

TEST_F(S3FaultTest, TlsTrustsTheBundleAndNothingElse) {
  bucket_ = through({.stall = std::chrono::seconds(20)}, true);
  EXPECT_OK(get());
  ASSERT_OK(bucket_->put(new_key_, pattern(2'000'000), IfExists::kFail));
  EXPECT_EQ(direct_->head(new_key_)->size, 2'000'000u);
  auto log = proxy(true).log();
  EXPECT_EQ(log.back()["headers"]["x-amz-content-sha256"], "UNSIGNED-PAYLOAD");
  EXPECT_EQ(log.front()["headers"]["x-amz-content-sha256"], Sha256::of({}).hex());
  proxy(true).reset();
  extra_["AWS_CA_BUNDLE"] = "/etc/ssl/certs/ca-certificates.crt";
  bucket_ = through({.stall = std::chrono::seconds(20)}, true);
  auto status = get();
  EXPECT_STATUS(status, Code::kPermission);
  EXPECT_THAT(status.message(), HasSubstr("AWS_CA_BUNDLE"));
  EXPECT_EQ(requests(true), 0u);
}

TEST_F(S3FaultTest, ARedirectFromHttpsToHttpIsRefused) {
  bucket_ = through({.stall = std::chrono::seconds(20)}, true);
  proxy(true).set_rules(json::array({{{"do", "redirect"}, {"location", "http://" + proxy().elsewhere() + "/x"}}}));
  EXPECT_STATUS(get(), Code::kPermission);
  EXPECT_EQ(requests(false), 0u);
  proxy(true).set_rules(json::array({{{"do", "redirect"}}}));
  EXPECT_OK(get());
}

TEST_F(S3FaultTest, NoErrorNamesASecret) {
  extra_["AWS_SESSION_TOKEN"] = "token-of-session";
  bucket_ = through();
  rule({{"do", "status"},
        {"status", 403},
        {"times", 0},
        {"body", "<Error><Code>SignatureDoesNotMatch</Code><Message>" + S3Server::shared().access_key() +
                     " token-of-session</Message></Error>"}});
  auto message = get().to_string();
  EXPECT_THAT(message, HasSubstr("SignatureDoesNotMatch"));
  EXPECT_EQ(proxy().log()[0]["headers"]["x-amz-security-token"], "token-of-session");
  for (const auto& secret : {S3Server::shared().secret_key(), S3Server::shared().access_key(),
                             std::string("token-of-session"), std::string("Signature=")}) {
    EXPECT_THAT(message, Not(HasSubstr(secret)));
  }
}

}  // namespace
}  // namespace weightfs
