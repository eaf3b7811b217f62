#include "store/cache/cache.h"

#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "store/base/posix.h"
#include "tests/unit/cache/cache_fixture.h"

namespace weightfs {
namespace {

using State = FlatFile::Presence;

class CacheTest : public CacheFixture {};

TEST_F(CacheTest, AWrittenBlockIsVerifiedAndReadsBack) {
  open();
  Sizes sizes = {100, kBlock, 1, 4096, 77};
  auto flat = file(id(1), sizes);
  EXPECT_EQ(flat->size(), 100u + kBlock + 1 + 4096 + 77);
  EXPECT_EQ(flat->blocks(), sizes.size());
  EXPECT_EQ(flat->presence(1), State::kAbsent);
  EXPECT_EQ(flat->presence(99), State::kAbsent);
  EXPECT_FALSE(cache_->has_some(id(1)));
  ASSERT_OK(fill(*flat, sizes, 1));
  EXPECT_EQ(flat->presence(1), State::kVerified);
  EXPECT_EQ(flat->presence(0), State::kAbsent);
  EXPECT_EQ(flat->presence(2), State::kAbsent);
  EXPECT_EQ(flat->cached_bytes(), kBlock);
  EXPECT_TRUE(cache_->has_some(id(1)));
  Bytes back(kBlock);
  ASSERT_OK(flat->read(100, back));
  EXPECT_EQ(back, content(id(1), 1, kBlock));
  ASSERT_EQ(::pread(flat->fd(), back.data(), 10, 100), 10);
  EXPECT_LT(::pwrite(flat->fd(), back.data(), 10, 100), 0) << "fd() is read-only";
}

TEST_F(CacheTest, AFileIsCompleteWhenAllBlocksAreVerifiedAndStaysSoWhileItLives) {
  open();
  Sizes sizes = blocks_of(70);
  auto flat = file(id(1), sizes);
  for (std::size_t block = 0; block < sizes.size(); block++) {
    EXPECT_FALSE(flat->complete());
    ASSERT_OK(fill(*flat, sizes, block));
  }
  EXPECT_TRUE(flat->complete());
  EXPECT_EQ(posix::fstat(flat->fd())->st_mode & 0777, 0400u);
  flat->damaged(3, kBlock);
  EXPECT_EQ(flat->presence(3), State::kAbsent);
  EXPECT_TRUE(flat->complete());
  flat.reset();
  flat = file(id(1), sizes);
  EXPECT_FALSE(flat->complete());
  ASSERT_OK(fill(*flat, sizes, 3)) << "a sealed file can be repaired";
  EXPECT_TRUE(flat->complete());
  EXPECT_TRUE(file(id(2), {})->complete()) << "nothing is missing of an empty file";
}

TEST_F(CacheTest, AllCallersShareOneObjectAndWrongSizesAreRefused) {
  open();
  auto one = file(id(1), blocks_of(3)), two = file(id(1), blocks_of(3));
  EXPECT_EQ(one, two);
  EXPECT_STATUS(cache_->open_file(id(1), blocks_of(4)), Code::kInvalid);
  EXPECT_STATUS(cache_->open_file(id(1, 0, "a/b"), blocks_of(4)), Code::kInvalid);
  EXPECT_STATUS(cache_->open_file(id(1, 0, ".."), blocks_of(4)), Code::kInvalid);
  EXPECT_STATUS(cache_->open_file(id(~std::uint64_t{0}), blocks_of(4)), Code::kInvalid);
  EXPECT_STATUS(one->write(3, 0, Bytes(1)), Code::kInvalid);
  EXPECT_STATUS(one->write(2, 2 * kBlock, Bytes(kBlock + 1)), Code::kInvalid);
  EXPECT_STATUS(one->write(2, ~std::uint64_t{0}, Bytes(2)), Code::kInvalid);
}

TEST_F(CacheTest, VerifiedSurvivesClosingTheFileButNotTheProcess) {
  open();
  Sizes sizes = blocks_of(9);
  put(id(1), sizes);
  EXPECT_EQ(file(id(1), sizes)->presence(4), State::kVerified);
  reopen();
  auto flat = file(id(1), sizes);
  for (std::size_t block = 0; block < sizes.size(); block++) {
    EXPECT_EQ(flat->presence(block), State::kUnverified);
    EXPECT_TRUE(check(*flat, sizes, block));
    EXPECT_EQ(flat->presence(block), State::kVerified);
  }
  EXPECT_TRUE(flat->complete());
}

TEST_F(CacheTest, OnlyWhatWasWrittenIsPresentAfterAReopen) {
  open();
  Sizes sizes = {10, 20, kBlock, kBlock, 30, kBlock};
  {
    auto flat = file(id(5, 7, "a model, with = signs"), sizes);
    ASSERT_OK(fill(*flat, sizes, 1));
    ASSERT_OK(fill(*flat, sizes, 3));
    ASSERT_OK(fill(*flat, sizes, 5));
    flat->damaged(5, kBlock);
  }
  reopen();
  auto flat = file(id(5, 7, "a model, with = signs"), sizes);
  std::vector<bool> present;
  for (std::size_t block = 0; block < sizes.size(); block++) present.push_back(flat->presence(block) != State::kAbsent);
  EXPECT_EQ(present, (std::vector<bool>{false, true, false, true, false, false}));
  EXPECT_EQ(flat->cached_bytes(), 20 + kBlock);
  EXPECT_EQ(cache_->usage().flat_bytes, 20 + kBlock);
}

TEST_F(CacheTest, AFileThatIsGoneOrOfAnotherSizeIsBegunAnew) {
  open();
  Sizes sizes = blocks_of(4);
  put(id(1), sizes);
  put(id(2), sizes);
  put(id(3), sizes);
  close();
  ASSERT_OK(posix::unlink(dir() + "/files/m/1/0"));
  ASSERT_EQ(::truncate((dir() + "/files/m/2/0").c_str(), kBlock), 0);
  ASSERT_OK(posix::unlink(dir() + "/files/m/3/0"));
  ASSERT_EQ(::symlink("/etc/passwd", (dir() + "/files/m/3/0").c_str()), 0);
  open();
  EXPECT_FALSE(cache_->has_some(id(1)));
  for (std::uint64_t number : {1, 2, 3}) {
    auto flat = file(id(number), sizes);
    for (std::size_t block = 0; block < sizes.size(); block++) EXPECT_EQ(flat->presence(block), State::kAbsent);
    ASSERT_OK(fill(*flat, sizes, 2));
    EXPECT_TRUE(check(*flat, sizes, 2));
  }
}

TEST_F(CacheTest, ReadingATruncatedFileIsAnErrorNotASignal) {
  open();
  Sizes sizes = blocks_of(4);
  put(id(1), sizes);
  auto flat = file(id(1), sizes);
  ASSERT_EQ(::truncate((dir() + "/files/m/1/0").c_str(), 100), 0);
  Bytes out(kBlock);
  EXPECT_STATUS(flat->read(kBlock, out), Code::kCorrupt);
}

TEST_F(CacheTest, LinksInPlaceOfFoldersAreNeverFollowed) {
  open();
  put(id(1), blocks_of(2));
  close();
  ASSERT_OK(posix::make_dirs(folder_ / "elsewhere/1"));
  ASSERT_OK(posix::remove_tree(dir() + "/files/m"));
  ASSERT_EQ(::symlink((folder_ / "elsewhere").c_str(), (dir() + "/files/m").c_str()), 0);
  open();
  put(id(1), blocks_of(2));
  close();
  EXPECT_EQ(posix::list_dir(folder_ / "elsewhere/1")->size(), 0u);
  ASSERT_OK(posix::remove_tree(dir() + "/files"));
  ASSERT_EQ(::symlink((folder_ / "elsewhere").c_str(), (dir() + "/files").c_str()), 0);
  open();
  ASSERT_EQ(::symlink((folder_ / "elsewhere").c_str(), (dir() + "/files").c_str()), 0) << "the link was removed";
  EXPECT_FALSE(cache_->open_file(id(1), blocks_of(2)).is_ok()) << "put there while running: refused";
  EXPECT_EQ(posix::list_dir(folder_ / "elsewhere")->size(), 1u);
}

TEST_F(CacheTest, BlobsComeBackByDigestAndADamagedOneDoesNot) {
  open();
  auto blob = to_bytes("manifest"), big = Bytes(3 << 20, std::byte{7}), empty = Bytes();
  EXPECT_FALSE(cache_->get_blob(Sha256::of(blob)));
  for (const auto& bytes : {blob, big, empty}) cache_->put_blob(Sha256::of(bytes), bytes);
  cache_->put_blob(Sha256::of(blob), blob);
  cache_->put_blob(Sha256::of(as_bytes("right")), as_bytes("wrong"));
  EXPECT_FALSE(cache_->get_blob(Sha256::of(as_bytes("right"))));
  EXPECT_FALSE(cache_->get_blob(Sha256::of(as_bytes("right"))));
  EXPECT_EQ(cache_->usage().blob_bytes, blob.size() + big.size());
  reopen();
  for (const auto& bytes : {blob, big, empty}) EXPECT_EQ(cache_->get_blob(Sha256::of(bytes)), bytes);
  EXPECT_EQ(cache_->usage().blob_bytes, blob.size() + big.size());
}

TEST_F(CacheTest, TheLongestUnusedBlobsGoFirst) {
  constexpr std::uint64_t kQuota = 8 << 20;  // a cap of 1 MiB for metadata
  open(kQuota);
  std::vector<Bytes> blobs;
  for (int i = 0; i < 20; i++) {
    blobs.push_back(content(id(static_cast<std::uint64_t>(i)), 0, 100'000));
    cache_->put_blob(Sha256::of(blobs.back()), blobs.back());
    EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[0]))) << "the first is used all the time, " << i;
  }
  EXPECT_LE(cache_->usage().blob_bytes, kQuota / 8);
  EXPECT_FALSE(cache_->get_blob(Sha256::of(blobs[1])));
  EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[19])));
  Bytes huge(2 << 20);
  cache_->put_blob(Sha256::of(huge), huge);
  EXPECT_FALSE(cache_->get_blob(Sha256::of(huge))) << "longer than the cap";
  EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[19])));
  reopen(kQuota);
  EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[0])));
}

TEST_F(CacheTest, StatesAreOverwrittenListedAndKept) {
  open();
  EXPECT_FALSE(cache_->load_state("log/m"));
  cache_->save_state("log/m", as_bytes("1"));
  cache_->save_state("log/m", as_bytes("22"));
  cache_->save_state("log/n", as_bytes(""));
  cache_->save_state("models", as_bytes("m n"));
  EXPECT_EQ(cache_->state_keys("log/"), (std::vector<std::string>{"log/m", "log/n"}));
  reopen();
  EXPECT_EQ(cache_->load_state("log/m"), to_bytes("22"));
  EXPECT_EQ(cache_->load_state("log/n"), Bytes());
  EXPECT_EQ(cache_->state_keys("").size(), 3u);
  EXPECT_EQ(cache_->state_keys("z").size(), 0u);
}

TEST_F(CacheTest, CachedVersionsAndBytesFollowTheFiles) {
  open();
  put(id(3, 0), blocks_of(2));
  put(id(3, 1), blocks_of(1));
  put(id(9, 0), blocks_of(4));
  put(id(9, 0, "other"), blocks_of(4));
  file(id(7), blocks_of(4));
  EXPECT_EQ(cache_->cached_versions("m"), (std::vector<std::uint64_t>{3, 9}));
  EXPECT_EQ(cache_->cached_bytes("m", 3), 3 * kBlock);
  EXPECT_EQ(cache_->cached_bytes("m", 4), 0u);
  reopen();
  EXPECT_EQ(cache_->cached_versions("m"), (std::vector<std::uint64_t>{3, 9}));
  EXPECT_EQ(cache_->cached_bytes("m", 9), 4 * kBlock);
  cache_->drop_version("m", 9);
  EXPECT_EQ(cache_->cached_versions("m"), (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(cache_->usage().flat_bytes, 7 * kBlock);
  EXPECT_FALSE(*posix::exists(dir() + "/files/m/9"));
  EXPECT_TRUE(*posix::exists(dir() + "/files/other/9/0"));
}

TEST_F(CacheTest, ADroppedVersionsOpenFileReadsOnAndIsFreedWhenClosed) {
  open();
  auto flat = file(id(1), blocks_of(2));
  ASSERT_OK(fill(*flat, blocks_of(2), 0));
  cache_->drop_version("m", 1);
  EXPECT_FALSE(cache_->has_some(id(1)));
  EXPECT_TRUE(check(*flat, blocks_of(2), 0));
  ASSERT_OK(fill(*flat, blocks_of(2), 1));
  EXPECT_EQ(cache_->usage().flat_bytes, 2 * kBlock);
  flat.reset();
  EXPECT_EQ(cache_->usage().flat_bytes, 0u);
  EXPECT_EQ(file(id(1), blocks_of(2))->presence(0), State::kAbsent);
}

TEST_F(CacheTest, PinsAreDurableAndGoWithTheirVersion) {
  open();
  ASSERT_OK(cache_->set_pinned("m", 1, true));
  ASSERT_OK(cache_->set_pinned("m", 2, true));
  ASSERT_OK(cache_->set_pinned("m", 2, false));
  ASSERT_OK(cache_->set_pinned("m", 3, true));
  cache_->drop_version("m", 3);
  EXPECT_FALSE(cache_->pinned("m", 3));
  reopen();
  EXPECT_TRUE(cache_->pinned("m", 1));
  EXPECT_FALSE(cache_->pinned("m", 2));
  EXPECT_FALSE(cache_->pinned("m", 3));
  EXPECT_FALSE(cache_->pinned("other", 1));
}

TEST_F(CacheTest, LongAndStrangeModelNamesHaveFoldersOfTheirOwn) {
  std::vector<std::string> models = {std::string(255, '/' + 1), std::string(255, '\xff'), "%", "a%2Fb", "a b", "\n"};
  open();
  for (const auto& model : models) put(id(1, 0, model), blocks_of(1));
  reopen();
  for (const auto& model : models) {
    auto flat = file(id(1, 0, model), blocks_of(1));
    EXPECT_TRUE(check(*flat, blocks_of(1), 0)) << model;
  }
}

TEST_F(CacheTest, ASecondOwnerIsToldWhoHasIt) {
  open();
  auto second = Cache::open({dir(), 0});
  ASSERT_STATUS(second, Code::kBusy);
  EXPECT_NE(second.status().message().find("process " + std::to_string(::getpid())), std::string::npos);
  auto flat = file(id(1), blocks_of(1));
  reopen();  // an open file does not hold the directory
}

TEST_F(CacheTest, ADirectoryOpenToOthersOrNotOursIsRefused) {
  ASSERT_OK(posix::make_dirs(dir(), 0700));
  for (mode_t mode : {0750u, 0701u, 0777u}) {
    ASSERT_EQ(::chmod(dir().c_str(), mode), 0);
    auto opened = Cache::open({dir(), 0});
    ASSERT_STATUS(opened, Code::kPermission);
    EXPECT_NE(opened.status().message().find("chmod 700"), std::string::npos);
  }
  EXPECT_EQ(posix::list_dir(dir())->size(), 0u) << "nothing was touched";
  ASSERT_EQ(::chmod(dir().c_str(), 0700), 0);
  open();
  close();
  if (::geteuid() != 0) return;  // only root can give a directory away
  ASSERT_EQ(::chown(dir().c_str(), 12345, -1), 0);
  EXPECT_STATUS(Cache::open({dir(), 0}), Code::kPermission);
}

TEST_F(CacheTest, TheDirectoryAndItsParentsAreMadePrivate) {
  auto deep = folder_ / "a/b/c";
  ASSERT_OK(Cache::open({deep, 0}));
  for (const char* part : {"a", "a/b", "a/b/c"}) EXPECT_EQ(posix::stat(folder_ / part)->st_mode & 0777, 0700u);
  ASSERT_OK(posix::write_file_durably(folder_ / "plain", as_bytes("x")));
  EXPECT_FALSE(Cache::open({folder_ / "plain", 0}).is_ok());
  EXPECT_FALSE(Cache::open({folder_ / "plain/below", 0}).is_ok());
}

TEST(CacheDirTest, DefaultsFollowTheEnvironmentAndTellBucketsApart) {
  ::setenv("WEIGHTFS_CACHE", "/some/where", 1);
  auto one = default_cache_dir("s3://bucket/run-1"), two = default_cache_dir("s3://bucket/run.1");
  EXPECT_TRUE(one.starts_with("/some/where/s3-bucket-run-1-")) << one;
  EXPECT_NE(one, two);
  EXPECT_EQ(default_cache_dir("/a/b"), default_cache_dir("file:///a/b/"));
  EXPECT_EQ(default_cache_dir("/a/b"), default_cache_dir("/a/c/../b"));
  EXPECT_LT(default_cache_dir("s3://" + std::string(3000, 'x')).size(), 150u);
  ::unsetenv("WEIGHTFS_CACHE");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_TRUE(default_cache_dir("/a/b").starts_with("/xdg/weightfs/a-b-"));
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_TRUE(default_cache_dir("/a/b").starts_with(::geteuid() == 0 ? "/var/cache/weightfs/" : "/"));
}

TEST_F(CacheTest, ManyThreadsShareFilesBlobsAndPins) {
  open(40 * kBlock);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; round++) {
        auto which = id(static_cast<std::uint64_t>(round % 5), static_cast<std::uint32_t>((round + t) % 3));
        auto opened = cache_->open_file(which, blocks_of(4));
        ASSERT_TRUE(opened.is_ok()) << opened.status().to_string();
        auto block = static_cast<std::size_t>(round % 4);
        auto status = fill(**opened, blocks_of(4), block);
        EXPECT_TRUE(status.is_ok() || status.code() == Code::kNoSpace) << status.to_string();
        EXPECT_EQ(check(**opened, blocks_of(4), block), status.is_ok());
        cache_->put_blob(Sha256::of(as_bytes(std::to_string(round))), as_bytes(std::to_string(round)));
        cache_->get_blob(Sha256::of(as_bytes(std::to_string(round / 2))));
        cache_->touch(which);
        cache_->set_newest("m", static_cast<std::uint64_t>(round % 5));
        if (round % 50 == 0) {
          EXPECT_OK(cache_->set_pinned("m", 4, t % 2 == 0));
        }
        if (round % 40 == 0) cache_->drop_version("m", static_cast<std::uint64_t>(t));
        EXPECT_LE(used(), 40u * kBlock);
      }
    });
  }
  threads.clear();
  for (std::uint64_t number = 0; number < 5; number++) cache_->drop_version("m", number);
  EXPECT_EQ(cache_->usage().flat_bytes, 0u) << "every charge was given back";
}

}  // namespace
}  // namespace weightfs
