// S3 against a real server.
#include "store/bucket/s3_bucket.h"

#include "tests/support/s3_server.h"
#include "tests/unit/bucket/bucket_contract.h"

namespace weightfs {
namespace {

BucketPair on_server(const std::string& prefix) {
  auto bucket = S3Server::shared().make_bucket();
  return {nullptr, S3Server::shared().open(bucket, prefix), S3Server::shared().open(bucket, prefix)};
}

INSTANTIATE_TEST_SUITE_P(, BucketContract,
                         testing::Values(MakeBuckets{"s3", [] { return on_server(""); }},
                                         MakeBuckets{"s3_with_prefix",
                                                     [] { return on_server("a b/c+d=e,(f)@%41/€"); }}),
                         [](const auto& test) { return test.param.name; });

class S3BucketTest : public testing::Test {
 protected:
  std::unique_ptr<Bucket> tuned(const S3Tuning& tuning) {
    return std::move(S3Bucket::open("s3://" + name_, {.bucket = name_}, {}, S3Server::shared().environment(), tuning))
        .value();
  }
  std::string file_with(ByteSpan bytes) {
    auto path = dir_ / "file";
    EXPECT_OK(posix::write_file_durably(path, bytes));
    return path;
  }
  const std::string name_ = S3Server::shared().make_bucket();
  const ObjectKey key_ = ObjectKey::of("m/packs/p");
  TempDir dir_;
};

TEST_F(S3BucketTest, ALargeFileGoesUpInPartsAndIsWhole) {
  auto bucket = tuned({.multipart_above = 1 << 20, .part_size = 5 << 20});
  auto bytes = pattern(23'456'789);
  auto fd = posix::open(file_with(bytes), O_RDONLY);
  ASSERT_OK(fd);
  std::uint64_t told = 0;
  ASSERT_OK(bucket->put_file(key_, fd->get(), bytes.size(), {}, [&](std::uint64_t n) { told += n; }));
  EXPECT_EQ(told, bytes.size());
  EXPECT_EQ(bucket->counters().requests, 7u);  // begin, five parts, complete
  auto back = bucket->get_all(key_, bytes.size());
  ASSERT_OK(back);
  EXPECT_TRUE(*back == bytes);
}

TEST_F(S3BucketTest, APartThatFailsLeavesNoObjectAndNoUpload) {
  auto bucket = tuned({.multipart_above = 1 << 20, .part_size = 5 << 20});
  auto fd = posix::open(file_with(pattern(12'000'000)), O_RDONLY);
  ASSERT_OK(fd);
  EXPECT_STATUS(bucket->put_file(key_, fd->get(), 20'000'000), Code::kIo);  // the file is shorter
  EXPECT_STATUS(bucket->head(key_), Code::kNotFound);
  S3Client client({.endpoint = std::move(S3Endpoint::make(S3Server::shared().endpoint(), "us-east-1", name_)).value(),
                   .region = "us-east-1",
                   .keys = {S3Server::shared().access_key(), S3Server::shared().secret_key(), ""}});
  auto uploads = client.call({.method = "GET", .query = {{"uploads", ""}}},
                             {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10)});
  ASSERT_OK(uploads);
  EXPECT_EQ(as_text(uploads->body).find("<Upload>"), std::string_view::npos);
}

TEST_F(S3BucketTest, ListsGoOverManyPages) {
  auto bucket = tuned({});
  std::vector<std::thread> writers;
  for (int t = 0; t < 8; t++) {
    writers.emplace_back([&, t] {
      for (int i = t; i < 1100; i += 8) {
        ASSERT_OK(bucket->put(ObjectKey::of("d" + std::to_string(i) + "/o"), {}, IfExists::kOverwrite));
      }
    });
  }
  for (auto& writer : writers) writer.join();
  auto objects = bucket->list("");
  ASSERT_OK(objects);
  std::set<std::string> keys;
  for (const auto& object : *objects) keys.insert(object.key.str());
  EXPECT_EQ(keys.size(), 1100u);
  EXPECT_EQ(objects->size(), 1100u);
  auto prefixes = bucket->list_prefixes("");
  ASSERT_OK(prefixes);
  EXPECT_EQ(std::set<std::string>(prefixes->begin(), prefixes->end()).size(), 1100u);
}

TEST_F(S3BucketTest, NoSuchBucketIsNotAMissingObject) {
  auto bucket = S3Server::shared().open("no-such-bucket-here");
  auto status = bucket->get_all(key_, 10).status();
  EXPECT_STATUS(status, Code::kInvalid);
  EXPECT_NE(status.message().find("no such bucket"), std::string::npos);
  EXPECT_STATUS(bucket->put(key_, as_bytes("x"), IfExists::kFail), Code::kInvalid);
  EXPECT_STATUS(bucket->list_prefixes(""), Code::kInvalid);
}

TEST_F(S3BucketTest, WrongKeysAreNoPermission) {
  auto server = S3Server::shared().environment();
  auto wrong = [&](const char* name) { return std::string(name) == "AWS_SECRET_ACCESS_KEY" ? "wrong" : server(name); };
  auto bucket = S3Bucket::open("s3://" + name_, {.bucket = name_}, {}, wrong);
  ASSERT_OK(bucket);
  EXPECT_STATUS((*bucket)->get_all(key_, 10), Code::kPermission);
  EXPECT_STATUS((*bucket)->put(key_, as_bytes("x"), IfExists::kFail), Code::kPermission);
  EXPECT_STATUS((*bucket)->list(""), Code::kPermission);
}

TEST_F(S3BucketTest, KeysAreReadAgainWhenTheStoreRefusesThem) {
  auto server = S3Server::shared().environment();
  std::atomic<bool> rotated = false;
  auto environment = [&](const char* name) {
    return std::string(name) == "AWS_ACCESS_KEY_ID" && !rotated ? "OLDKEY" : server(name);
  };
  auto bucket = S3Bucket::open("s3://" + name_, {.bucket = name_}, {}, environment, {.first_backoff = Duration(1)});
  ASSERT_OK(bucket);
  EXPECT_STATUS((*bucket)->put(key_, as_bytes("x"), IfExists::kFail), Code::kPermission);
  rotated = true;
  EXPECT_OK((*bucket)->put(key_, as_bytes("x"), IfExists::kFail));
}

TEST_F(S3BucketTest, AServerThatIsNotThereIsUnavailableAtTheDeadline) {
  auto environment = [&](const char* name) {
    return std::string(name) == "AWS_ENDPOINT_URL" ? "http://127.0.0.1:9" : S3Server::shared().environment()(name);
  };
  auto bucket = S3Bucket::open("s3://" + name_, {.bucket = name_}, {}, environment, {.first_backoff = Duration(10)});
  ASSERT_OK(bucket);
  auto status = (*bucket)->head(key_, {.deadline = std::chrono::milliseconds(300)}).status();
  EXPECT_STATUS(status, Code::kUnavailable);
  EXPECT_GE((*bucket)->counters().retries, 2u);
}

}  // namespace
}  // namespace weightfs
