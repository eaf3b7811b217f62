#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "store/base/posix.h"
#include "store/cache/draft_record.h"
#include "tests/unit/cache/cache_fixture.h"

namespace weightfs {
namespace {

class DraftsTest : public CacheFixture {
 protected:
  DraftRecord create(const std::string& name = "step-1") {
    auto made = cache_->create_draft("m", name);
    EXPECT_OK(made);
    return made.is_ok() ? *made : DraftRecord();
  }
  void write(const std::string& path, ByteSpan bytes) { ASSERT_OK(posix::write_file_durably(path, bytes)); }
  Bytes whole(const FileId& which, const Sizes& sizes) {
    Bytes all;
    for (std::size_t block = 0; block < sizes.size(); block++) {
      auto part = content(which, block, sizes[block]);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
};

bool same(const DraftRecord& a, const DraftRecord& b) { return encode_draft_record(a) == encode_draft_record(b); }

DraftRecord strange(DraftRecord record) {
  record.name = "x \xff\"\\\n%41 \xe2\x82\xac";
  record.parent = "m/\x01";
  record.state = "open";
  record.reason = std::string("\0zero", 5);
  record.commit_id = "00ff";
  record.extra = R"({"a":[1,{"b":"é"}]})";
  return record;
}

TEST_F(DraftsTest, ARecordIsThereAfterItsCallReturned) {
  open();
  auto record = create();
  EXPECT_TRUE(is_draft_id(record.id));
  EXPECT_EQ(posix::stat(cache_->draft_dir(record.id))->st_mode & 07777, 0700u);
  EXPECT_EQ(posix::stat(cache_->draft_spool_dir(record.id))->st_mode & 07777, 0700u);
  record = strange(record);
  ASSERT_OK(cache_->update_draft(record));
  auto other = create("step-2");
  ASSERT_EQ(cache_->drafts().size(), 2u);
  reopen();
  auto drafts = cache_->drafts();
  ASSERT_EQ(drafts.size(), 2u);
  if (drafts[0].id != record.id) std::swap(drafts[0], drafts[1]);
  EXPECT_TRUE(same(drafts[0], record));
  EXPECT_TRUE(same(drafts[1], other));
  record.id = std::string(32, '0');
  EXPECT_STATUS(cache_->update_draft(record), Code::kNotFound);
  EXPECT_STATUS(cache_->delete_draft("../../x"), Code::kNotFound);
  EXPECT_STATUS(cache_->create_draft(std::string(9 << 20, 'm'), "x"), Code::kInvalid);
}

TEST_F(DraftsTest, ADeletedDraftIsGoneWithItsFilesAndItsCharge) {
  open();
  auto record = create();
  write(cache_->draft_dir(record.id) + "/a", Bytes(1000));
  ASSERT_OK(posix::mkdir(cache_->draft_dir(record.id) + "/sub", 0));
  write(cache_->draft_spool_dir(record.id) + "/pack", Bytes(500));
  ASSERT_OK(cache_->charge_draft(1500 + 7));
  ASSERT_OK(cache_->delete_draft(record.id));
  EXPECT_EQ(cache_->usage().draft_bytes, 7u) << "of other drafts";
  EXPECT_TRUE(cache_->drafts().empty());
  EXPECT_EQ(posix::list_dir(dir() + "/drafts")->size(), 0u);
  reopen();
  EXPECT_TRUE(cache_->drafts().empty());
}

TEST_F(DraftsTest, DraftsSurviveTheLossOfTheIndex) {
  open();
  auto record = strange(create());
  ASSERT_OK(cache_->update_draft(record));
  write(cache_->draft_dir(record.id) + "/a", Bytes(1000));
  close();
  for (const char* name : {"index.sqlite", "index.sqlite-wal"}) ASSERT_OK(posix::unlink_if_there(dir() + "/" + name));
  open();
  ASSERT_EQ(cache_->drafts().size(), 1u);
  EXPECT_TRUE(same(cache_->drafts()[0], record));
  EXPECT_EQ(cache_->usage().draft_bytes, 1000u);
}

TEST_F(DraftsTest, DraftsSurviveTheLossOfTheirSidecar) {
  open();
  auto lost = strange(create()), damaged = create(), foreign = create();
  ASSERT_OK(cache_->update_draft(lost));
  close();
  auto sidecar = [&](const DraftRecord& record) { return dir() + "/drafts/" + record.id + "/draft.json"; };
  ASSERT_OK(posix::unlink(sidecar(lost)));
  write(sidecar(damaged), as_bytes("{\"format\": 1, \"id\": [[[["));
  write(sidecar(foreign), encode_draft_record(lost));
  open();
  ASSERT_EQ(cache_->drafts().size(), 3u);
  for (const auto& record : cache_->drafts()) {
    EXPECT_TRUE(same(record, lost) || same(record, damaged) || same(record, foreign));
    EXPECT_OK(posix::read_file(sidecar(record), 1 << 20)) << "it is written again";
  }
}

TEST_F(DraftsTest, AFolderWithoutAnyRecordIsKeptUnderAHiddenName) {
  open();
  auto record = create();
  write(cache_->draft_dir(record.id) + "/a", Bytes(1000));
  close();
  ASSERT_OK(posix::unlink(dir() + "/drafts/" + record.id + "/draft.json"));
  ASSERT_OK(posix::unlink(dir() + "/index.sqlite"));
  open();
  ASSERT_EQ(cache_->drafts().size(), 1u);
  auto found = cache_->drafts()[0];
  EXPECT_EQ(found.id, record.id);
  EXPECT_TRUE(is_temporary_name(found.name)) << "nothing publishes it by itself";
  EXPECT_FALSE(found.reason.empty());
  EXPECT_TRUE(*posix::exists(cache_->draft_dir(record.id) + "/a"));
}

TEST_F(DraftsTest, ADraftOfANewerProgramIsLeftAlone) {
  open();
  auto record = create();
  close();
  auto sidecar = dir() + "/drafts/" + record.id + "/draft.json";
  write(sidecar, as_bytes(R"({"format": 2, "new": true})"));
  open();
  EXPECT_TRUE(cache_->drafts().empty());
  close();
  EXPECT_EQ(*posix::read_file(sidecar, 1000), to_bytes(R"({"format": 2, "new": true})"));
}

TEST_F(DraftsTest, LeftoversOfACrashGoAndStrangersStay) {
  open();
  auto record = create();
  close();
  auto drafts = dir() + "/drafts/";
  ASSERT_OK(posix::make_dirs(drafts + std::string(32, 'a') + ".new/files"));
  ASSERT_OK(posix::make_dirs(drafts + std::string(32, 'b') + ".deleted/files"));
  ASSERT_OK(posix::make_dirs(drafts + "somebody's"));
  ASSERT_EQ(::symlink("/etc", (drafts + std::string(32, 'c')).c_str()), 0);
  open();
  EXPECT_EQ(cache_->drafts().size(), 1u);
  auto left = *posix::list_dir(drafts);
  std::sort(left.begin(), left.end());
  auto expected = std::vector<std::string>{record.id, std::string(32, 'c'), "somebody's"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(left, expected);
}

TEST_F(DraftsTest, AnAdoptedFileIsTheFlatFileUnverifiedAndReadOnly) {
  open(100 * kBlock);
  auto record = create();
  Sizes sizes = {kBlock, 10, kBlock};
  auto path = cache_->draft_dir(record.id) + "/sub/model.safetensors";
  ASSERT_OK(posix::make_dirs(cache_->draft_dir(record.id) + "/sub"));
  write(path, whole(id(4), sizes));
  ASSERT_OK(cache_->charge_draft(2 * kBlock + 10));
  ASSERT_OK(cache_->adopt(path, id(4), sizes));
  EXPECT_FALSE(*posix::exists(path));
  EXPECT_EQ(cache_->usage().draft_bytes, 0u);
  EXPECT_EQ(cache_->usage().flat_bytes, 2 * kBlock + 10);
  EXPECT_EQ(posix::stat(dir() + "/files/m/4/0")->st_mode & 0777, 0400u);
  auto flat = file(id(4), sizes);
  EXPECT_FALSE(flat->complete());
  for (std::size_t block = 0; block < 3; block++) {
    EXPECT_EQ(flat->presence(block), FlatFile::Presence::kUnverified);
    EXPECT_TRUE(check(*flat, sizes, block));
  }
  EXPECT_TRUE(flat->complete());
  flat.reset();
  reopen();
  EXPECT_TRUE(check(*file(id(4), sizes), sizes, 2));
}

TEST_F(DraftsTest, ACopyIsAdoptedAndTheOriginalStays) {
  open(4 * kBlock);
  put(id(1), blocks_of(2));
  Sizes sizes = blocks_of(3);
  auto path = folder_ / "original";
  write(path, whole(id(4), sizes));
  ASSERT_OK(cache_->adopt_copy(path, id(4), sizes));
  EXPECT_TRUE(*posix::exists(path));
  EXPECT_EQ(cache_->cached_versions("m"), (std::vector<std::uint64_t>{4})) << "1 made room";
  EXPECT_EQ(used(), 3 * kBlock);
  for (std::size_t block = 0; block < 3; block++) EXPECT_TRUE(check(*file(id(4), sizes), sizes, block));
  auto held = file(id(4), sizes);
  EXPECT_STATUS(cache_->adopt_copy(path, id(5), sizes), Code::kNoSpace);
  EXPECT_FALSE(cache_->adopt_copy(folder_ / "none", id(5), blocks_of(1)).is_ok());
  EXPECT_STATUS(cache_->adopt_copy(path, id(5), blocks_of(1)), Code::kInvalid) << "of another size";
  EXPECT_EQ(used(), 3 * kBlock) << "all charges were given back";
  EXPECT_TRUE(posix::list_dir(dir() + "/spool")->empty());
  held.reset();
  close();
  ASSERT_OK(posix::write_file_durably(dir() + "/spool/copy-of-a-killed-owner", Bytes(1000)));
  open();
  EXPECT_FALSE(*posix::exists(dir() + "/spool"));
}

TEST_F(DraftsTest, AdoptionRefusesWhatIsNotThatFile) {
  open();
  auto record = create();
  auto base = cache_->draft_dir(record.id);
  write(base + "/a", Bytes(100));
  write(base + "/b", Bytes(100));
  ASSERT_EQ(::link((base + "/b").c_str(), (base + "/c").c_str()), 0);
  ASSERT_EQ(::symlink("a", (base + "/link").c_str()), 0);
  ASSERT_EQ(::symlink(".", (base + "/dirlink").c_str()), 0);
  EXPECT_STATUS(cache_->adopt(base + "/a", id(1), Sizes{99}), Code::kInvalid);
  EXPECT_STATUS(cache_->adopt(base + "/b", id(1), Sizes{100}), Code::kUnsupported);
  EXPECT_STATUS(cache_->adopt(base + "/link", id(1), Sizes{100}), Code::kInvalid);
  EXPECT_FALSE(cache_->adopt(base + "/dirlink/a", id(1), Sizes{100}).is_ok());
  EXPECT_STATUS(cache_->adopt(base + "/../files/a", id(1), Sizes{100}), Code::kInvalid);
  EXPECT_STATUS(cache_->adopt("/etc/passwd", id(1), Sizes{100}), Code::kInvalid);
  EXPECT_STATUS(cache_->adopt(base + "/none", id(1), Sizes{100}), Code::kNotFound);
  EXPECT_FALSE(cache_->has_some(id(1)));
  auto held = file(id(1), Sizes{100});
  EXPECT_STATUS(cache_->adopt(base + "/a", id(1), Sizes{100}), Code::kBusy);
  ASSERT_OK(held->write(0, 0, content(id(1), 0, 100)));
  held.reset();
  ASSERT_OK(cache_->adopt(base + "/a", id(1), Sizes{100}));
  held = file(id(1), Sizes{100});
  EXPECT_EQ(held->presence(0), FlatFile::Presence::kUnverified) << "the adopted one replaced it";
  EXPECT_EQ(cache_->usage().flat_bytes, 100u);
}

}  // namespace
}  // namespace weightfs
