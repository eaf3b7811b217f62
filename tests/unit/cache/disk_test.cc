// A disk that is full, read-only or failing. Full ones are small tmpfs, failing ones an ext4 on a loop device whose
// backing file cannot grow; both need root. A plain user's run has the same claims about the quota in quota_test.cc.
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "store/base/posix.h"
#include "tests/unit/cache/cache_fixture.h"

namespace weightfs {
namespace {

class DiskTest : public CacheFixture {
 protected:
  void SetUp() override {
    ASSERT_OK(posix::mkdir(dir()));
    if (::geteuid() == 0) mount(dir(), "size=8m");
  }
  void TearDown() override {
    close();
    for (auto it = mounts_.rbegin(); it != mounts_.rend(); ++it) ::umount2(it->c_str(), MNT_DETACH);
  }
  void mount(const std::string& at, const char* options) {
    ASSERT_EQ(::mount("tmpfs", at.c_str(), "tmpfs", MS_NOSUID, (std::string(options) + ",mode=0700").c_str()), 0);
    mounts_.push_back(at);
  }
  bool on_small_disk() const { return !mounts_.empty(); }
  // Takes all that is left of the disk.
  void fill_disk() {
    auto fd = posix::open(dir() + "/filler", O_CREAT | O_WRONLY).value();
    Bytes page(4096, std::byte{1});
    while (posix::write_exact(fd.get(), page).is_ok()) {
    }
  }
  std::vector<std::string> mounts_;
};

TEST_F(DiskTest, AFullDiskEvictsAndThenRefuses) {
  if (!on_small_disk()) return;
  open();  // no quota of ours
  constexpr std::uint32_t kMiB = 1 << 20;
  for (std::uint64_t number = 1; number <= 20; number++) put(id(number), blocks_of(1, kMiB));
  auto left = cache_->cached_versions("m");
  EXPECT_LT(left.size(), 8u);
  EXPECT_EQ(left.back(), 20u);
  std::vector<FlatFilePtr> held;
  for (auto number : left) held.push_back(file(id(number), blocks_of(1, kMiB)));
  auto flat = file(id(30), blocks_of(8, kMiB));
  Status status;
  std::size_t block = 0;
  for (; block < 8 && status.is_ok(); block++) status = fill(*flat, blocks_of(8, kMiB), block);
  EXPECT_STATUS(status, Code::kNoSpace);
  EXPECT_EQ(flat->presence(block - 1), FlatFile::Presence::kAbsent);
  for (const auto& one : held) EXPECT_TRUE(check(*one, blocks_of(1, kMiB), 0)) << "open files are whole";
  EXPECT_STATUS(cache_->charge_draft(64 << 20), Code::kNoSpace);
}

TEST_F(DiskTest, AFullDiskStopsNeitherDraftsNorMetadataWhileThereIsSomethingToEvict) {
  if (!on_small_disk()) return;
  open();
  put(id(1), blocks_of(1, 1 << 20));
  fill_disk();
  auto draft = cache_->create_draft("m", "step-2");
  ASSERT_OK(draft) << "a cached file made room";
  EXPECT_FALSE(cache_->has_some(id(1)));
  put(id(2), blocks_of(1, 512 << 10));
  fill_disk();
  draft->reason = std::string(100'000, 'x');
  ASSERT_OK(cache_->update_draft(*draft));
  fill_disk();
  draft->reason = std::string(1'000'000, 'y');
  EXPECT_STATUS(cache_->update_draft(*draft), Code::kNoSpace) << "nothing is left to evict";
  for (std::uint64_t i = 0; i < 100; i++) {
    auto blob = content(id(i), 0, 50'000);
    cache_->put_blob(Sha256::of(blob), blob);
    auto back = cache_->get_blob(Sha256::of(blob));
    EXPECT_TRUE(!back || *back == blob);
  }
  reopen();
  ASSERT_EQ(cache_->drafts().size(), 1u);
  EXPECT_EQ(cache_->drafts()[0].reason, std::string(100'000, 'x')) << "the old record is whole";
}

TEST_F(DiskTest, ACacheThatStartsOnAFullDiskReadsWhatItHas) {
  if (!on_small_disk()) return;
  open();
  put(id(1), blocks_of(4));
  ASSERT_OK(cache_->set_pinned("m", 1, true));
  close();
  fill_disk();
  open();
  auto flat = file(id(1), blocks_of(4));
  for (std::size_t block = 0; block < 4; block++) EXPECT_TRUE(check(*flat, blocks_of(4), block));
  cache_->put_blob(Sha256::of(as_bytes("blob")), as_bytes("blob"));
  cache_->get_blob(Sha256::of(as_bytes("blob")));
}

TEST_F(DiskTest, AReadOnlyDiskIsReadAndNothingElse) {
  if (!on_small_disk()) return;
  open();
  put(id(1), blocks_of(4));
  put(id(2), blocks_of(4));
  auto draft = cache_->create_draft("m", "step-2").value();
  ASSERT_OK(posix::write_file_durably(cache_->draft_dir(draft.id) + "/a", Bytes(1000)));
  close();
  ASSERT_EQ(::mount("none", dir().c_str(), nullptr, MS_REMOUNT | MS_RDONLY | MS_NOSUID, "size=8m"), 0);
  open(9 * kBlock);
  auto flat = file(id(1), blocks_of(4));
  for (std::size_t block = 0; block < 4; block++) EXPECT_TRUE(check(*flat, blocks_of(4), block));
  flat->damaged(2, kBlock);
  EXPECT_FALSE(fill(*flat, blocks_of(4), 2).is_ok());
  EXPECT_FALSE(cache_->open_file(id(9), blocks_of(4)).is_ok());
  EXPECT_FALSE(cache_->set_pinned("m", 1, true).is_ok());
  EXPECT_FALSE(cache_->create_draft("m", "x").is_ok());
  ASSERT_EQ(cache_->drafts().size(), 1u);
  EXPECT_FALSE(cache_->update_draft(draft).is_ok());
  cache_->put_blob(Sha256::of(as_bytes("blob")), as_bytes("blob"));
  EXPECT_TRUE(cache_->get_blob(Sha256::of(as_bytes("blob")))) << "kept in memory";
  cache_->make_room(9 * kBlock);
  cache_->drop_version("m", 2);
  flat.reset();
  close();
  ASSERT_EQ(::mount("none", dir().c_str(), nullptr, MS_REMOUNT | MS_NOSUID, "size=8m"), 0);
  open();
  EXPECT_EQ(cache_->drafts().size(), 1u);
  EXPECT_TRUE(check(*file(id(1), blocks_of(4)), blocks_of(4), 1));
}

// Writes succeed, and fail when the kernel writes them back: whoever reads after that may get old bytes.
TEST_F(DiskTest, BlocksThatTheDiskRefusedLaterAreNoLongerPresent) {
  if (!on_small_disk()) return;
  auto image = dir() + "/image", at = folder_ / "ext4";
  auto fd = posix::open(image, O_CREAT | O_RDWR).value();
  ASSERT_OK(posix::truncate(fd.get(), 64 << 20));
  ASSERT_OK(posix::mkdir(at));
  auto command =
      "mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1 " + image + " && mount -o loop " + image + " " + at;
  ASSERT_EQ(std::system(command.c_str()), 0);
  mounts_.push_back(at);
  auto opened = Cache::open({at + "/cache", 0});
  ASSERT_OK(opened);
  cache_ = std::move(opened).value();
  Sizes sizes = blocks_of(24, 1 << 20);  // three times the disk below
  auto flat = file(id(1), sizes);
  for (std::size_t block = 0; block < sizes.size(); block++) ASSERT_OK(fill(*flat, sizes, block));
  EXPECT_TRUE(flat->complete());
  EXPECT_FALSE(posix::fsync(posix::open(at + "/cache/files/m/1/0", O_RDONLY)->get()).is_ok());
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (flat->presence(23) != FlatFile::Presence::kAbsent && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  for (std::size_t block = 0; block < sizes.size(); block++) {
    EXPECT_EQ(flat->presence(block), FlatFile::Presence::kAbsent);
  }
  EXPECT_EQ(cache_->usage().flat_bytes, 0u);
}

}  // namespace
}  // namespace weightfs
