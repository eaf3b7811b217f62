#include "store/bucket/dir_bucket.h"

#include <sys/stat.h>

#include "store/bucket/open.h"
#include "tests/support/memory_bucket.h"
#include "tests/unit/bucket/bucket_contract.h"

namespace weightfs {
namespace {

BucketPair directories(const DirBucketOptions& options) {
  auto dir = std::make_shared<TempDir>();
  auto open = [&] { return std::move(DirBucket::open(*dir / "bucket", options)).value(); };
  return {dir, open(), open()};
}

INSTANTIATE_TEST_SUITE_P(, BucketContract,
                         testing::Values(MakeBuckets{"memory",
                                                     [] {
                                                       auto mine = std::make_unique<MemoryBucket>();
                                                       auto other = mine->another();
                                                       return BucketPair{nullptr, std::move(mine), std::move(other)};
                                                     }},
                                         MakeBuckets{"directory", [] { return directories({}); }},
                                         MakeBuckets{"shared_directory", [] { return directories({.shared = true}); }},
                                         MakeBuckets{"directory_without_links",
                                                     [] { return directories({.use_link = false}); }}),
                         [](const auto& test) { return test.param.name; });

class DirBucketTest : public testing::Test {
 protected:
  std::unique_ptr<Bucket> open(const DirBucketOptions& options = {}) {
    auto opened = DirBucket::open(root_, options);
    EXPECT_OK(opened);
    return std::move(opened).value();
  }
  TempDir dir_;
  std::string root_ = dir_ / "bucket";
  const ObjectKey key_ = ObjectKey::of("m/log/1");
};

TEST_F(DirBucketTest, IsCreatedOnlyInAParentThatExists) {
  EXPECT_STATUS(DirBucket::open(root_, {.create = false}), Code::kNotFound);
  EXPECT_STATUS(DirBucket::open(dir_ / "no/bucket", {}), Code::kNotFound);
  EXPECT_OK(DirBucket::open(root_, {}));
  EXPECT_OK(DirBucket::open(root_, {.create = false}));
  ASSERT_OK(posix::write_file_durably(dir_ / "file", {}));
  EXPECT_STATUS(DirBucket::open(dir_ / "file", {}), Code::kInvalid);
}

TEST_F(DirBucketTest, WhatItMakesFollowsTheGroupAndModeOfTheDirectory) {
  ASSERT_OK(posix::mkdir(root_));
  gid_t group = ::geteuid() == 0 ? 12345 : ::getegid();
  ASSERT_EQ(::chown(root_.c_str(), static_cast<uid_t>(-1), group), 0);
  ASSERT_EQ(::chmod(root_.c_str(), 02775), 0);
  auto old_mask = ::umask(077);
  ASSERT_OK(open()->put(key_, as_bytes("x"), IfExists::kFail));
  ::umask(old_mask);
  auto dir = posix::stat(root_ + "/m/log"), file = posix::stat(root_ + "/m/log/1");
  ASSERT_OK(dir);
  ASSERT_OK(file);
  EXPECT_EQ(dir->st_mode & 07777, 02775u);
  EXPECT_EQ(file->st_mode & 07777, 0664u);
  EXPECT_EQ(dir->st_gid, group);
  EXPECT_EQ(file->st_gid, group);
}

TEST_F(DirBucketTest, NoLinkInItIsFollowed) {
  ASSERT_OK(posix::mkdir(root_));
  ASSERT_OK(posix::mkdir(dir_ / "outside"));
  ASSERT_OK(posix::write_file_durably(dir_ / "outside/1", as_bytes("secret")));
  ASSERT_EQ(::symlink("../outside", (root_ + "/m").c_str()), 0);
  ASSERT_EQ(::symlink("../outside/1", (root_ + "/file").c_str()), 0);
  auto bucket = open();
  EXPECT_STATUS(bucket->get_all(ObjectKey::of("m/1"), 100), Code::kPermission);
  EXPECT_STATUS(bucket->get_all(ObjectKey::of("file"), 100), Code::kPermission);
  EXPECT_STATUS(bucket->put(ObjectKey::of("m/2"), as_bytes("x"), IfExists::kFail), Code::kPermission);
  EXPECT_STATUS(bucket->remove(ObjectKey::of("m/1")), Code::kPermission);
  EXPECT_STATUS(bucket->put(ObjectKey::of("file"), as_bytes("x"), IfExists::kFail), Code::kExists);
  EXPECT_TRUE(bucket->list("")->empty());
  EXPECT_TRUE(bucket->list_prefixes("")->empty());
  ASSERT_OK(bucket->put(ObjectKey::of("file"), as_bytes("new"), IfExists::kOverwrite));  // replaces the link itself
  EXPECT_EQ(as_text(*posix::read_file(dir_ / "outside/1", 100)), "secret");
  EXPECT_EQ(posix::list_dir(dir_ / "outside")->size(), 1u);
}

TEST_F(DirBucketTest, WhatIsNoFileIsNoObject) {
  auto bucket = open();
  ASSERT_EQ(::mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  ASSERT_OK(posix::mkdir(root_ + "/dir"));
  EXPECT_STATUS(bucket->get_all(ObjectKey::of("fifo"), 100), Code::kCorrupt);  // and does not wait for a writer
  EXPECT_TRUE(bucket->list("")->empty());
}

TEST_F(DirBucketTest, UnfinishedWritesAreHiddenAndOldOnesRemoved) {
  auto bucket = open();
  ASSERT_OK(bucket->put(key_, as_bytes("x"), IfExists::kFail));
  ASSERT_OK(posix::write_file_durably(root_ + "/m/log/~young", as_bytes("part")));
  ASSERT_OK(posix::write_file_durably(root_ + "/m/log/~old", as_bytes("part")));
  struct timespec times[2] = {{.tv_sec = 1'000'000'000}, {.tv_sec = 1'000'000'000}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (root_ + "/m/log/~old").c_str(), times, 0), 0);
  auto found = bucket->list("");
  ASSERT_OK(found);
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().key, key_);
  EXPECT_TRUE(*posix::exists(root_ + "/m/log/~young"));
  EXPECT_FALSE(*posix::exists(root_ + "/m/log/~old"));
}

TEST_F(DirBucketTest, NothingIsLeftOfAWriteThatFailsOrLoses) {
  auto bucket = open();
  ASSERT_OK(bucket->put(key_, as_bytes("x"), IfExists::kFail));
  EXPECT_STATUS(bucket->put(key_, as_bytes("y"), IfExists::kFail), Code::kExists);
  EXPECT_FALSE(bucket->put_file(ObjectKey::of("m/log/2"), -1, 10).is_ok());
  EXPECT_EQ(*posix::list_dir(root_ + "/m/log"), std::vector<std::string>{"1"});
}

TEST_F(DirBucketTest, ADirectoryThatGoesAwayIsUnavailableNotEmpty) {
  auto bucket = open();
  ASSERT_OK(bucket->put(key_, as_bytes("x"), IfExists::kFail));
  ASSERT_OK(posix::rename(root_, dir_ / "elsewhere"));
  EXPECT_STATUS(bucket->head(key_), Code::kUnavailable);
  EXPECT_STATUS(bucket->list_prefixes(""), Code::kUnavailable);
  EXPECT_STATUS(bucket->put(key_, as_bytes("x"), IfExists::kFail), Code::kUnavailable);
  ASSERT_OK(posix::rename(dir_ / "elsewhere", root_));
  EXPECT_OK(bucket->head(key_));
}

TEST_F(DirBucketTest, ARemovedDirectoryIsMadeAgain) {
  auto bucket = open();
  ASSERT_OK(bucket->put(key_, as_bytes("x"), IfExists::kFail));
  ASSERT_OK(posix::remove_tree(root_ + "/m"));
  EXPECT_OK(bucket->put(key_, as_bytes("x"), IfExists::kFail));
}

TEST_F(DirBucketTest, TheBandwidthLimitHolds) {
  auto bucket = open({.bandwidth = 40'000'000});
  auto start = std::chrono::steady_clock::now();
  ASSERT_OK(bucket->put(key_, pattern(8'000'000), IfExists::kFail));
  ASSERT_OK(bucket->get_all(key_, 8'000'000));
  auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(took, 0.25);  // 16 MB at 40 MB/s, less the first tenth of a second's worth
}

TEST(OpenBucketTest, KnowsItsUrls) {
  TempDir dir;
  auto plain = open_bucket(dir / "a");
  ASSERT_OK(plain);
  EXPECT_EQ((*plain)->url(), dir / "a");
  ASSERT_OK((*plain)->put(ObjectKey::of("k"), as_bytes("x"), IfExists::kFail));
  auto file = open_bucket("file://" + (dir / "a"));
  ASSERT_OK(file);
  EXPECT_OK((*file)->head(ObjectKey::of("k")));
  EXPECT_STATUS(open_bucket(dir / "b", {.create = false}), Code::kNotFound);
  for (const char* bad : {"", "http://host/x", "s3://", "s3://ab", "s3:///x", "s3://bucket//x", "s3://bucket/../x",
                          "hf://models/a/b", "hf://buckets/a", "file://host/x", "file:///%zz", "s3://bu cket"}) {
    EXPECT_STATUS(open_bucket(bad), Code::kInvalid) << bad;
  }
}

TEST(OpenBucketTest, AUserOrPasswordIsRefusedAndNotRepeated) {
  for (const char* url : {"s3://AKIA:hunter2@bucket/x", "hf://me:hunter2@buckets/a/b", "ftp://me:hunter2@host/"}) {
    auto status = open_bucket(url).status();
    EXPECT_STATUS(status, Code::kInvalid);
    EXPECT_EQ(status.message().find("hunter2"), std::string::npos);
    EXPECT_EQ(status.message().find("AKIA"), std::string::npos);
  }
}

TEST(TokenBucketTest, MovesNoMoreThanItsRateAndATenthAhead) {
  TokenBucket bucket(1000);
  SteadyTime now{std::chrono::hours(1)};
  EXPECT_EQ(bucket.take(500, now), 0u);
  now += std::chrono::milliseconds(50);
  EXPECT_EQ(bucket.take(500, now), 50u);
  now += std::chrono::hours(1);
  EXPECT_EQ(bucket.take(500, now), 100u);
  EXPECT_EQ(bucket.reserve(1000, now), std::chrono::seconds(1));
  EXPECT_EQ(bucket.take(1, now + std::chrono::milliseconds(900)), 0u);
  EXPECT_EQ(bucket.wait(now + std::chrono::milliseconds(900)), std::chrono::milliseconds(101));
}

}  // namespace
}  // namespace weightfs
