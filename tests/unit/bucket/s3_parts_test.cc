// The pieces that S3 is made of, without a server.
#include <gmock/gmock.h>

#include "store/base/digest.h"
#include "store/bucket/credentials.h"
#include "store/bucket/http_head.h"
#include "store/bucket/open.h"
#include "store/bucket/s3_body.h"
#include "store/bucket/s3_sign.h"
#include "store/bucket/s3_xml.h"
#include "store/bucket/url.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string authorization(const SignInput& input, const S3Keys& keys) {
  for (auto& [name, value] : sign_v4(input, keys)) {
    if (name == "Authorization") return value;
  }
  return "";
}

// Amazon's "Signature Version 4 Test Suite".
TEST(SignTest, SignsTheTestSuitesGetVanilla) {
  SignInput input{.method = "GET",
                  .host = "example.amazonaws.com",
                  .path = "/",
                  .payload_hash = Sha256::of({}).hex(),
                  .region = "us-east-1",
                  .service = "service",
                  .time = *parse_rfc3339("2015-08-30T12:36:00.000Z")};
  S3Keys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  EXPECT_EQ(
      authorization(input, keys),
      "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
      "SignedHeaders=host;x-amz-date, Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  input.query = canonical_query({{"Param2", "value2"}, {"Param1", "value1"}});
  EXPECT_THAT(authorization(input, keys),
              HasSubstr("Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

// The examples of "Authenticating Requests: Using the Authorization Header" in Amazon's S3 documentation.
class S3SignTest : public testing::Test {
 protected:
  SignInput input(const std::string& method, const std::string& path) {
    return {.method = method,
            .host = "examplebucket.s3.amazonaws.com",
            .path = path,
            .payload_hash = Sha256::of({}).hex(),
            .region = "us-east-1",
            .time = *parse_rfc3339("2013-05-24T00:00:00.000Z")};
  }
  const S3Keys keys_{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
};

TEST_F(S3SignTest, SignsTheExampleOfAGetWithARange) {
  auto get = input("GET", "/test.txt");
  get.headers = {{"Range", "bytes=0-9"}};
  EXPECT_EQ(authorization(get, keys_),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(S3SignTest, SignsTheExampleOfAPut) {
  auto put = input("PUT", "/" + uri_encode("test$file.text", true));
  put.headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  put.payload_hash = Sha256::of(as_bytes("Welcome to Amazon S3.")).hex();
  EXPECT_THAT(authorization(put, keys_),
              HasSubstr("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST_F(S3SignTest, SignsTheExampleOfALifecycle) {
  auto get = input("GET", "/");
  get.query = canonical_query({{"lifecycle", ""}});
  EXPECT_THAT(authorization(get, keys_),
              HasSubstr("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
}

TEST_F(S3SignTest, SignsTheExampleOfAList) {
  auto get = input("GET", "/");
  get.query = canonical_query({{"prefix", "J"}, {"max-keys", "2"}});
  EXPECT_THAT(authorization(get, keys_),
              HasSubstr("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(SignTest, EncodesEveryByteOutsideTheUnreserved) {
  EXPECT_EQ(uri_encode("a/b=+@,(é%~", true), "a/b%3D%2B%40%2C%28%C3%A9%25~");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(canonical_query({{"b", "1"}, {"a b", "/"}, {"uploads", ""}}), "a%20b=%2F&b=1&uploads=");
}

TEST(HttpHeadTest, ReadsWhatAServerSays) {
  HttpHead head;
  for (const char* line : {"HTTP/1.1 100 Continue\r\n", "X: early\r\n", "\r\n", "HTTP/2 206 \r\n",
                           "Content-Length: 10\r\n", "content-range:bytes 5-14/20\r\n", "ETag: \"x\"\r\n", "\r\n"}) {
    EXPECT_TRUE(head.add_line(line)) << line;
  }
  EXPECT_EQ(head.status(), 206);
  EXPECT_EQ(head.content_length(), 10u);
  EXPECT_EQ(head.find("etag"), "\"x\"");
  EXPECT_EQ(head.find("x"), "");
}

TEST(HttpHeadTest, RefusesLengthsThatLieAndHeadsWithoutEnd) {
  HttpHead head;
  ASSERT_TRUE(head.add_line("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(head.add_line("Content-Length: 10\r\n"));
  EXPECT_TRUE(head.add_line("Content-Length: 10\r\n"));
  EXPECT_FALSE(head.add_line("Content-Length: 11\r\n"));
  for (const char* bad : {"-1", "+1", "1 ", "0x1", "18446744073709551616", "1,1", ""}) {
    HttpHead fresh;
    bool fine = fresh.add_line("Content-Length: " + std::string(bad) + "\r\n");
    EXPECT_EQ(fine, std::string(bad) == "1 ") << bad;
  }
  HttpHead endless;
  int lines = 0;
  while (endless.add_line("X: " + std::string(1000, 'y') + "\r\n")) lines++;
  EXPECT_LT(lines, 70);
}

TEST(HttpHeadTest, ContentRangesAreExactOrNothing) {
  auto good = parse_content_range("bytes 0-9/10");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->range, (ByteRange{0, 10}));
  EXPECT_EQ(good->total, 10u);
  EXPECT_FALSE(parse_content_range("bytes 0-9/*")->total);
  for (const char* bad : {"", "bytes", "bytes 9-0/10", "bytes 0-9/9", "bytes 0-9", "items 0-9/10", "bytes -1-9/10",
                          "bytes 0-9/10x", "bytes */10", "bytes 0-18446744073709551615/*", "bytes 0-9/-1"}) {
    EXPECT_FALSE(parse_content_range(bad)) << bad;
  }
}

TEST(HttpHeadTest, DatesAndRetryAfterInBothForms) {
  auto now = *parse_http_date("Tue, 01 Dec 2026 13:29:05 GMT");
  EXPECT_EQ(to_rfc3339(now), "2026-12-01T13:29:05.000Z");
  EXPECT_EQ(parse_retry_after("7", now), std::chrono::seconds(7));
  EXPECT_EQ(parse_retry_after("Tue, 01 Dec 2026 13:29:35 GMT", now), std::chrono::seconds(30));
  EXPECT_EQ(parse_retry_after("Tue, 01 Dec 2020 13:29:35 GMT", now), std::chrono::seconds(0));
  EXPECT_EQ(parse_retry_after("99999999999", now), std::chrono::hours(24));
  for (const char* bad : {"", "-1", "soon", "Tue, 31 Feb 2026 13:29:35 GMT", "Tue, 01 Dec 2026 25:29:35 GMT",
                          "Tue, 01 Dec 3929 13:29:05 GMT"}) {
    EXPECT_FALSE(parse_retry_after(bad, now)) << bad;
  }
}

TEST(RangeSinkTest, TakesNothingButTheRangeAskedFor) {
  struct Case {
    const char* lines;
    bool good;
  };
  for (auto [lines, good] :
       {Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-14/20\nContent-Length: 10", true},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-14/20", true},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-14/*", true}, Case{"HTTP/1.1 206 P\nContent-Length: 10", false},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 4-13/20\nContent-Length: 10", false},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-15/20\nContent-Length: 11", false},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-14/20\nContent-Length: 9", false},
        Case{"HTTP/1.1 206 P\nContent-Range: bytes 5-14/20\nContent-Type: application/xml", false},
        Case{"HTTP/1.1 200 OK\nContent-Length: 10", false}, Case{"HTTP/1.1 204 No\nContent-Length: 10", false}}) {
    Bytes out(10);
    RangeSink sink({5, 10}, out);
    HttpHead head;
    std::string_view rest = lines;
    while (!rest.empty()) {
      auto end = std::min(rest.find('\n'), rest.size());
      ASSERT_TRUE(head.add_line(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    EXPECT_EQ(sink.begin(head).is_ok(), good) << lines;
  }
}

TEST(RangeSinkTest, NeverWritesBeyondTheRangeAndAsksOnlyForTheRest) {
  Bytes out(10);
  RangeSink sink({5, 10}, out);
  ASSERT_OK(sink.write(as_bytes("abcd")));
  HttpHeaders headers;
  sink.start(headers);
  EXPECT_EQ(headers.at(0).second, "bytes=9-14");
  EXPECT_STATUS(sink.end(), Code::kCorrupt);
  EXPECT_STATUS(sink.write(as_bytes("0123456")), Code::kCorrupt);
  ASSERT_OK(sink.write(as_bytes("efghij")));
  EXPECT_OK(sink.end());
  EXPECT_EQ(as_text(out), "abcdefghij");
}

TEST(XmlTest, ReadsWhatS3Sends) {
  auto page = parse_list(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
      "<Name>b</Name><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
      "<EncodingType>url</EncodingType><Contents><Key>m/a%2Bb+c%25</Key><LastModified>2026-12-01T13:29:05.25Z"
      "</LastModified><ETag>&quot;x&quot;</ETag><Size>7</Size><Owner><ID>x</ID></Owner></Contents>"
      "<CommonPrefixes><Prefix>m/</Prefix></CommonPrefixes><KeyCount>1</KeyCount><Prefix/></ListBucketResult>");
  ASSERT_OK(page);
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "m/a+b c%");
  EXPECT_EQ(page->objects[0].size, 7u);
  EXPECT_EQ(to_rfc3339(page->objects[0].modified), "2026-12-01T13:29:05.250Z");
  EXPECT_EQ(page->prefixes, std::vector<std::string>{"m/"});
  EXPECT_EQ(page->next, "a&b");
}

TEST(XmlTest, RefusesWhatIsMalformedOrTooMuch) {
  std::string deep, end;
  for (int i = 0; i < 20; i++) deep += "<a>", end = "</a>" + end;
  std::string many = "<a>";
  for (int i = 0; i < 100'001; i++) many += "<b/>";
  for (const auto& bad :
       {std::string(), std::string("<a>"), std::string("<a></b>"), std::string("<a/><b/>"), std::string("<a>&x;</a>"),
        std::string("<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>"), std::string("<a>&#0;</a>"), std::string("<a b></a>"),
        std::string("<a>&#x110000;</a>"), std::string("<a><![CDATA[x]]></a>"), std::string("<a b=\"<\"/>"), deep + end,
        many + "</a>"}) {
    EXPECT_STATUS(parse_xml(bad), Code::kCorrupt) << bad.substr(0, 80);
  }
  EXPECT_EQ(parse_xml("<a x='1'>&lt;&#65;&#x20AC;<n:b/></a>")->text, "<A€");
}

TEST(XmlTest, AnErrorsCodeIsPlainOrNothing) {
  EXPECT_EQ(parse_error_code("<Error><Code>NoSuchKey</Code><Message>m</Message></Error>"), "NoSuchKey");
  EXPECT_EQ(parse_error_code("<Error><Code>a b</Code></Error>"), "");
  EXPECT_EQ(parse_error_code("<Other><Code>NoSuchKey</Code></Other>"), "");
  EXPECT_EQ(parse_error_code("NoSuchKey"), "");
}

class SettingsTest : public testing::Test {
 protected:
  Result<AwsSettings> load(std::map<std::string, std::string> variables) {
    variables.emplace("HOME", home_.path());
    return load_aws_settings([variables](const char* name) {
      auto found = variables.find(name);
      return found == variables.end() ? std::string() : found->second;
    });
  }
  void write(const std::string& name, std::string_view text) {
    ASSERT_OK(posix::make_dirs(home_ / ".aws"));
    ASSERT_OK(posix::write_file_durably(home_ / (".aws/" + name), as_bytes(text)));
  }
  TempDir home_;
};

TEST_F(SettingsTest, TheEnvironmentBeatsTheFiles) {
  write("credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = SECRET\n");
  write("config", "[default]\nregion=eu-north-1\nendpoint_url = http://file\n");
  auto settings = load({{"AWS_ACCESS_KEY_ID", "ENV"},
                        {"AWS_SECRET_ACCESS_KEY", "S"},
                        {"AWS_SESSION_TOKEN", "T"},
                        {"AWS_ENDPOINT_URL", "http://all"},
                        {"AWS_ENDPOINT_URL_S3", "http://s3"},
                        {"AWS_DEFAULT_REGION", "eu-west-1"},
                        {"AWS_CA_BUNDLE", "/ca.pem"}});
  ASSERT_OK(settings);
  EXPECT_EQ(settings->keys, (S3Keys{"ENV", "S", "T"}));
  EXPECT_EQ(settings->endpoint, "http://s3");
  EXPECT_EQ(settings->region, "eu-west-1");
  EXPECT_EQ(settings->ca_bundle, "/ca.pem");
  auto from_files = load({});
  ASSERT_OK(from_files);
  EXPECT_EQ(from_files->keys, (S3Keys{"FILE", "SECRET", ""}));
  EXPECT_EQ(from_files->region, "eu-north-1");
  EXPECT_EQ(from_files->endpoint, "http://file");
}

TEST_F(SettingsTest, AProfileIsItsSectionsOfBothFiles) {
  write("credentials",
        "# comment\n[default]\naws_access_key_id=D\naws_secret_access_key=D\n\n[ team ]\n"
        "aws_access_key_id = TEAM\naws_secret_access_key = a=b/c+d\naws_session_token=TOK\n");
  write("config",
        "[profile team]\nregion = us-west-2\ns3 =\n  endpoint_url = http://nested\n[profile other]\nregion=x\n");
  auto settings = load({{"AWS_PROFILE", "team"}});
  ASSERT_OK(settings);
  EXPECT_EQ(settings->keys, (S3Keys{"TEAM", "a=b/c+d", "TOK"}));
  EXPECT_EQ(settings->region, "us-west-2");
  EXPECT_EQ(settings->endpoint, "");
}

TEST_F(SettingsTest, MissingKeysSayWhatToSet) {
  auto none = load({});
  EXPECT_STATUS(none, Code::kPermission);
  EXPECT_THAT(none.status().message(), HasSubstr("AWS_ACCESS_KEY_ID"));
  write("config", "[profile p]\ncredential_process = /bin/secret-tool\n");
  auto process = load({{"AWS_PROFILE", "p"}});
  EXPECT_STATUS(process, Code::kPermission);
  EXPECT_THAT(process.status().message(), HasSubstr("credential_process"));
  EXPECT_THAT(process.status().message(), Not(HasSubstr("secret-tool")));
}

TEST_F(SettingsTest, ABrokenFileIsNamedButNotRepeated) {
  write("credentials", "[default]\nhunter2\n");
  auto broken = load({});
  EXPECT_STATUS(broken, Code::kInvalid);
  EXPECT_THAT(broken.status().message(), HasSubstr("line 2"));
  EXPECT_THAT(broken.status().message(), Not(HasSubstr("hunter2")));
  EXPECT_STATUS(load({{"AWS_ACCESS_KEY_ID", "a\r\nX: y"}, {"AWS_SECRET_ACCESS_KEY", "b"}}), Code::kInvalid);
}

TEST(EndpointTest, AmazonsHostsCarryTheBucketAndOthersDoNot) {
  auto amazon = S3Endpoint::make("", "eu-west-1", "my-bucket");
  ASSERT_OK(amazon);
  EXPECT_EQ(amazon->origin, "https://my-bucket.s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(amazon->base_path, "");
  EXPECT_EQ(S3Endpoint::make("", "eu-west-1", "my.bucket")->origin, "https://s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(S3Endpoint::make("", "eu-west-1", "my.bucket")->base_path, "/my.bucket");
  EXPECT_EQ(S3Endpoint::make("", "cn-north-1", "bbb")->origin, "https://bbb.s3.cn-north-1.amazonaws.com.cn");
  auto own = S3Endpoint::make("http://127.0.0.1:9000/", "us-east-1", "b.b");
  ASSERT_OK(own);
  EXPECT_EQ(own->host, "127.0.0.1:9000");
  EXPECT_EQ(own->base_path, "/b.b");
  EXPECT_FALSE(own->tls);
  EXPECT_EQ(S3Endpoint::make("https://host:443", "us-east-1", "bbb")->host, "host");
  auto hub = S3Endpoint::make("https://s3.hf.co", "us-east-1", "bucket", "org");
  ASSERT_OK(hub);
  EXPECT_EQ(hub->origin + hub->base_path, "https://s3.hf.co/org/bucket");
  for (const char* bad : {"ftp://x", "http://", "http://user:hunter2@x", "http://x/?a=b", "nonsense"}) {
    auto refused = S3Endpoint::make(bad, "us-east-1", "bbb");
    EXPECT_STATUS(refused, Code::kInvalid) << bad;
    EXPECT_THAT(refused.status().message(), Not(HasSubstr("hunter2")));
  }
  EXPECT_STATUS(S3Endpoint::make("", "evil.example/", "bbb"), Code::kInvalid);
}

}  // namespace
}  // namespace weightfs
