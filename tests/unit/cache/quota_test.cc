#include <algorithm>
#include <random>
#include <thread>

#include "store/base/posix.h"
#include "tests/unit/cache/cache_fixture.h"

namespace weightfs {
namespace {

class QuotaTest : public CacheFixture {
 protected:
  // Numbers of the versions of "m" that are left.
  std::vector<std::uint64_t> left() { return cache_->cached_versions("m"); }
  using Numbers = std::vector<std::uint64_t>;
};

TEST_F(QuotaTest, TheLongestUnusedVersionGoesFirst) {
  open(4 * kBlock);
  for (std::uint64_t number : {1, 2, 3, 4}) put(id(number), blocks_of(1));
  cache_->touch(id(1));
  put(id(5), blocks_of(1));
  EXPECT_EQ(left(), (Numbers{1, 3, 4, 5}));
  put(id(6), blocks_of(1));
  EXPECT_EQ(left(), (Numbers{1, 4, 5, 6}));
  EXPECT_FALSE(*posix::exists(dir() + "/files/m/2"));
  EXPECT_EQ(cache_->usage().flat_bytes, 4 * kBlock);
}

TEST_F(QuotaTest, UseIsRememberedOverAReopen) {
  open(4 * kBlock);
  for (std::uint64_t number : {1, 2, 3, 4}) put(id(number), blocks_of(1));
  cache_->touch(id(1));
  reopen(4 * kBlock);
  put(id(5), blocks_of(1));
  EXPECT_EQ(left(), (Numbers{1, 3, 4, 5}));
}

TEST_F(QuotaTest, FilesOfAVersionInUseGoAfterThoseOfOthers) {
  open(5 * kBlock);
  put(id(100), blocks_of(1));
  cache_->set_newest("m", 100);
  put(id(1, 0), blocks_of(1));
  put(id(1, 1), blocks_of(1));
  put(id(2), blocks_of(1));
  put(id(3), blocks_of(1));
  auto held = file(id(1, 0), blocks_of(1));
  put(id(4), blocks_of(2));
  EXPECT_EQ(left(), (Numbers{1, 4, 100}));
  EXPECT_EQ(cache_->cached_bytes("m", 1), 2 * kBlock) << "1 has a file open";
  put(id(5), blocks_of(3));
  EXPECT_EQ(left(), (Numbers{1, 5, 100}));
  EXPECT_EQ(cache_->cached_bytes("m", 1), kBlock) << "the open file alone stays";
  EXPECT_TRUE(check(*held, blocks_of(1), 0));
}

TEST_F(QuotaTest, PinnedAndOpenFilesStayAndThenNothingFits) {
  open(3 * kBlock);
  put(id(1), blocks_of(1));
  put(id(2), blocks_of(1));
  ASSERT_OK(cache_->set_pinned("m", 1, true));
  auto held = file(id(2), blocks_of(1));
  auto flat = file(id(3), blocks_of(3));
  ASSERT_OK(fill(*flat, blocks_of(3), 0));
  EXPECT_STATUS(fill(*flat, blocks_of(3), 1), Code::kNoSpace);
  EXPECT_EQ(flat->presence(1), FlatFile::Presence::kAbsent);
  EXPECT_EQ(left(), (Numbers{1, 2, 3}));
  ASSERT_OK(cache_->set_pinned("m", 1, false));
  ASSERT_OK(fill(*flat, blocks_of(3), 1));
  EXPECT_EQ(left(), (Numbers{2, 3}));
  held.reset();
  ASSERT_OK(fill(*flat, blocks_of(3), 2));
  EXPECT_EQ(left(), (Numbers{3}));
  EXPECT_TRUE(flat->complete());
}

TEST_F(QuotaTest, TheNewestVersionOfAModelGoesLast) {
  open(4 * kBlock);
  put(id(7), blocks_of(1));
  put(id(3), blocks_of(1));
  put(id(4), blocks_of(1));
  cache_->set_newest("m", 7);
  put(id(1, 0, "other"), blocks_of(1));
  put(id(2, 0, "other"), blocks_of(2));
  EXPECT_EQ(left(), (Numbers{7}));
  EXPECT_EQ(cache_->cached_versions("other"), (Numbers{1, 2}));
  put(id(3, 0, "other"), blocks_of(2));
  EXPECT_EQ(left(), (Numbers{7}));
  put(id(4, 0, "other"), blocks_of(4));
  EXPECT_EQ(left(), Numbers{}) << "when nothing else is left";
}

TEST_F(QuotaTest, TheBaseStaysWhileTheNewestIsBuiltFromIt) {
  open(6 * kBlock);
  put(id(8), blocks_of(2));
  for (std::uint64_t number : {1, 2}) put(id(number), blocks_of(2));
  cache_->set_newest("m", 9);
  auto newest = file(id(9), blocks_of(3));
  for (std::size_t block = 0; block < 3; block++) ASSERT_OK(fill(*newest, blocks_of(3), block));
  EXPECT_EQ(left(), (Numbers{8, 9})) << "8 was used before 1 and 2";
}

TEST_F(QuotaTest, NothingIsEvictedForWhatCannotFit) {
  open(4 * kBlock);
  put(id(1), blocks_of(2));
  auto flat = file(id(2), {5 * kBlock, 3 * kBlock});
  EXPECT_STATUS(flat->write(0, 0, Bytes(5 * kBlock)), Code::kNoSpace);
  EXPECT_EQ(left(), (Numbers{1}));
  ASSERT_OK(cache_->set_pinned("m", 1, true));
  EXPECT_STATUS(flat->write(1, 5 * kBlock, Bytes(3 * kBlock)), Code::kNoSpace);
  EXPECT_EQ(left(), (Numbers{1}));
}

TEST_F(QuotaTest, AQuotaSmallerThanABlockCachesNothingAndBreaksNothing) {
  open(1000);
  auto flat = file(id(1), blocks_of(2));
  EXPECT_STATUS(fill(*flat, blocks_of(2), 0), Code::kNoSpace);
  cache_->put_blob(Sha256::of(as_bytes("blob")), as_bytes("blob"));
  EXPECT_TRUE(cache_->get_blob(Sha256::of(as_bytes("blob"))));
  EXPECT_LE(used(), 1000u);
}

TEST_F(QuotaTest, ASmallerQuotaIsReachedAtOpen) {
  open();
  for (std::uint64_t number = 1; number <= 8; number++) put(id(number), blocks_of(1));
  reopen(3 * kBlock);
  EXPECT_EQ(left(), (Numbers{6, 7, 8}));
}

TEST_F(QuotaTest, DraftsTakeRoomFromFilesAndGiveItBack) {
  open(4 * kBlock);
  for (std::uint64_t number : {1, 2, 3}) put(id(number), blocks_of(1));
  ASSERT_OK(cache_->charge_draft(2 * kBlock));
  EXPECT_EQ(left(), (Numbers{2, 3}));
  EXPECT_EQ(cache_->usage().draft_bytes, 2 * kBlock);
  EXPECT_STATUS(cache_->charge_draft(3 * kBlock), Code::kNoSpace);
  EXPECT_EQ(left(), (Numbers{2, 3}));
  ASSERT_OK(cache_->charge_draft(-std::int64_t{kBlock}));
  ASSERT_OK(cache_->charge_draft(3 * kBlock));
  EXPECT_EQ(left(), (Numbers{}));
  ASSERT_OK(cache_->charge_draft(-(std::int64_t{100} * kBlock)));
  EXPECT_EQ(cache_->usage().draft_bytes, 0u);
  ASSERT_OK(cache_->charge_draft(INT64_MIN));
  EXPECT_STATUS(cache_->charge_draft(INT64_MAX), Code::kNoSpace);
}

TEST_F(QuotaTest, MakeRoomEvictsUntilSoMuchIsFree) {
  open(4 * kBlock);
  for (std::uint64_t number : {1, 2, 3, 4}) put(id(number), blocks_of(1));
  cache_->make_room(2 * kBlock);
  EXPECT_EQ(left(), (Numbers{3, 4}));
  cache_->make_room(2 * kBlock);
  EXPECT_EQ(left(), (Numbers{3, 4}));
}

TEST_F(QuotaTest, ConcurrentWritersStayWithinTheQuotaAndEvictNoMoreThanNeeded) {
  constexpr std::uint64_t kQuota = 64 * kBlock;
  open(kQuota);
  std::atomic<std::uint64_t> most = 0;
  std::atomic<std::uint64_t> next = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; t++) {
    threads.emplace_back([&] {
      for (int round = 0; round < 25; round++) {
        auto which = id(++next);
        auto flat = file(which, blocks_of(4));
        for (std::size_t block = 0; block < 4; block++) {
          ASSERT_OK(fill(*flat, blocks_of(4), block));
          auto now = used();
          auto seen = most.load();
          while (now > seen && !most.compare_exchange_weak(seen, now)) {
          }
        }
      }
    });
  }
  threads.clear();
  EXPECT_LE(most, kQuota);
  EXPECT_GE(used(), kQuota - 8 * 4 * kBlock) << "a file for each thread at most is missing to a full cache";
  std::uint64_t on_disk = 0;
  for (auto number : left()) {
    on_disk += static_cast<std::uint64_t>(posix::stat(dir() + "/files/m/" + std::to_string(number) + "/0")->st_blocks);
  }
  EXPECT_LE(on_disk * 512, kQuota);
  EXPECT_EQ(on_disk * 512, cache_->usage().flat_bytes);
}

TEST_F(QuotaTest, TwoThreadsWritingOneBlockChargeItOnce) {
  open(64 * kBlock);
  for (std::uint64_t number = 1; number <= 20; number++) {
    auto flat = file(id(number), blocks_of(1));
    {
      std::jthread one([&] { EXPECT_OK(fill(*flat, blocks_of(1), 0)); });
      std::jthread two([&] { EXPECT_OK(fill(*flat, blocks_of(1), 0)); });
    }
    EXPECT_EQ(cache_->usage().flat_bytes, number * kBlock);
    EXPECT_TRUE(flat->complete());
  }
}

}  // namespace
}  // namespace weightfs
