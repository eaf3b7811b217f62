// What is there after the owner was killed, or after its index was damaged: right bytes or none, all drafts, all pins
// that a call had confirmed; never a block that counts as verified.
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "store/base/posix.h"
#include "store/cache/draft_record.h"
#include "tests/unit/cache/cache_fixture.h"

namespace weightfs {
namespace {

// Hundreds of opens: in memory, not to wait for a disk at each. Nothing here is about power loss.
struct InMemory {
  InMemory() {
    if (*posix::exists("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

class CrashTest : private InMemory, public CacheFixture {
 protected:
  // Every block is absent, or unverified and then right or found out.
  void expect_no_wrong_byte(std::uint64_t versions, const Sizes& sizes) {
    for (std::uint64_t number = 1; number <= versions; number++) {
      auto flat = file(id(number), sizes);
      ASSERT_NE(flat, nullptr);
      for (std::size_t block = 0; block < sizes.size(); block++) {
        EXPECT_NE(flat->presence(block), FlatFile::Presence::kVerified);
        check(*flat, sizes, block);
      }
    }
  }
  std::string index() const { return dir() + "/index.sqlite"; }
  void sql(const std::string& text) {
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(index().c_str(), &handle), SQLITE_OK);
    char* message = nullptr;
    EXPECT_EQ(sqlite3_exec(handle, text.c_str(), nullptr, nullptr, &message), SQLITE_OK)
        << (message != nullptr ? message : "");
    sqlite3_free(message);
    sqlite3_close(handle);
  }
  std::vector<std::string> aside() {
    std::vector<std::string> out;
    auto names = posix::list_dir(dir()).value();
    for (const auto& name : names) {
      if (name.starts_with("index.sqlite.damaged-") && name.find("-wal") == name.npos) out.push_back(name);
    }
    return out;
  }
  // Files, blobs, states, a pin and a draft; returns the draft.
  DraftRecord furnish(const Sizes& sizes) {
    for (std::uint64_t number = 1; number <= 3; number++) put(id(number), sizes);
    auto half = file(id(4), sizes);
    EXPECT_OK(fill(*half, sizes, sizes.size() / 2));
    for (std::uint64_t i = 0; i < 5; i++) {
      auto blob = content(id(i), i, 700 * (i + 1));
      cache_->put_blob(Sha256::of(blob), blob);
      cache_->save_state("log/" + std::to_string(i), blob);
    }
    EXPECT_OK(cache_->set_pinned("m", 2, true));
    return cache_->create_draft("m", "step-9").value();
  }
  void expect_furnished(const Sizes& sizes, const DraftRecord& draft) {
    auto drafts = cache_->drafts();
    ASSERT_EQ(drafts.size(), 1u);
    EXPECT_EQ(encode_draft_record(drafts[0]), encode_draft_record(draft));
    expect_no_wrong_byte(4, sizes);
    for (std::uint64_t i = 0; i < 5; i++) {
      auto right = content(id(i), i, 700 * (i + 1));
      auto blob = cache_->get_blob(Sha256::of(right));
      EXPECT_TRUE(!blob || *blob == right);
      auto state = cache_->load_state("log/" + std::to_string(i));
      EXPECT_TRUE(!state || *state == right);
    }
  }
};

const Sizes kWorkSizes = blocks_of(6), kVanishSizes = blocks_of(8);

// An owner that ends without closing.
[[noreturn]] void write_and_vanish(const std::string& dir) {
  auto cache = Cache::open({dir, 0}).value();
  FileId which{"m", 1, 0};
  auto flat = cache->open_file(which, kVanishSizes).value();
  bool good = true;
  for (std::size_t block : {0, 3, 4}) {
    good = good && flat->write(block, offset_of(kVanishSizes, block), content(which, block, kVanishSizes[block]));
  }
  ::_exit(good ? 0 : 1);
}

// This program again, with other arguments: main() below. A fork alone would have threads in a process that has none.
pid_t start(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>("cache_crash_test")};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = ::fork();
  if (child == 0) {
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return child;
}

// The owner of the next test: works until it is killed, and says on `out` what is durable.
[[noreturn]] void work_until_killed(const std::string& dir, int out) {
  auto cache = Cache::open({dir, 40 * kBlock}).value();
  auto say = [&](const std::string& line) { posix::write_exact(out, as_bytes(line + "\n")).ignore("killed soon"); };
  for (std::uint64_t round = 1;; round++) {
    FileId which{"m", round % 7 + 1, 0};
    {
      auto flat = cache->open_file(which, kWorkSizes).value();
      for (std::size_t block = 0; block < kWorkSizes.size(); block++) {
        auto bytes = content(which, block, kWorkSizes[block]);
        flat->write(block, offset_of(kWorkSizes, block), bytes).ignore("no room is no matter");
      }
    }
    auto blob = content(which, 99, 5000);
    cache->put_blob(Sha256::of(blob), blob);
    if (cache->set_pinned("p", round, true).is_ok()) say("pin " + std::to_string(round));
    auto draft = cache->create_draft("m", "d" + std::to_string(round)).value();
    say("draft " + draft.id);
    draft.reason = "updated";
    if (cache->update_draft(draft).is_ok()) say("updated " + draft.id);
    if (round % 3 == 0) {
      say("deleting " + draft.id);
      if (cache->delete_draft(draft.id).is_ok()) say("deleted " + draft.id);
    }
    if (round % 5 == 0) cache->drop_version("m", round % 7 + 1);
  }
}

TEST_F(CrashTest, AKilledOwnerLosesNothingThatACallConfirmed) {
  Sizes sizes = kWorkSizes;
  for (int lines = 1; lines < 60; lines += 4) {
    SCOPED_TRACE("killed after " + std::to_string(lines) + " lines");
    ASSERT_OK(posix::remove_tree(dir()));
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    pid_t child = start({"--work", dir(), std::to_string(pipe[1])});
    ::close(pipe[1]);
    Fd reader(pipe[0]);
    std::string said;
    char c;
    for (int seen = 0; seen < lines && ::read(reader.get(), &c, 1) == 1;) {
      said.push_back(c);
      if (c == '\n') seen++;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(reader.get(), &c, 1) == 1) said.push_back(c);

    open(40 * kBlock);
    EXPECT_LE(used(), 40 * kBlock);
    std::map<std::string, DraftRecord> drafts;
    for (auto& record : cache_->drafts()) drafts[record.id] = record;
    std::map<std::string, std::string> last;
    for (std::size_t at = 0, end; (end = said.find('\n', at)) != said.npos; at = end + 1) {
      auto line = said.substr(at, end - at);
      auto space = line.find(' ');
      auto word = line.substr(0, space), what = line.substr(space + 1);
      if (word == "pin") {
        EXPECT_TRUE(cache_->pinned("p", std::stoull(what)));
      } else {
        last[what] = word;
      }
    }
    for (const auto& [draft, word] : last) {
      if (word == "deleting") continue;  // either
      EXPECT_EQ(drafts.contains(draft), word != "deleted");
      if (word == "updated") {
        EXPECT_EQ(drafts[draft].reason, "updated");
      }
    }
    expect_no_wrong_byte(7, sizes);
    close();
  }
}

TEST_F(CrashTest, BlocksWrittenBeforeAKillAreFoundWithoutTheIndexKnowing) {
  Sizes sizes = kVanishSizes;
  int status = 0;
  pid_t child = start({"--write-and-vanish", dir()});
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  open();
  EXPECT_TRUE(cache_->has_some(id(1)));
  auto flat = file(id(1), sizes);
  for (std::size_t block = 0; block < sizes.size(); block++) {
    EXPECT_EQ(check(*flat, sizes, block), block == 0 || block == 3 || block == 4) << block;
  }
}

TEST_F(CrashTest, AFlippedByteAnywhereInTheIndexIsSurvived) {
  Sizes sizes = blocks_of(3, 5000);
  open();
  auto draft = furnish(sizes);
  close();
  auto right = *posix::read_file(index(), 100 << 20);
  ASSERT_GT(right.size(), 20'000u);
  std::size_t step = right.size() / 150;
  for (std::size_t at = 0; at < right.size(); at += at < 100 ? 7 : step) {
    SCOPED_TRACE("byte " + std::to_string(at));
    auto bytes = right;
    bytes[at] ^= std::byte{0x55};
    ASSERT_OK(posix::write_file_durably(index(), bytes));
    open();
    expect_furnished(sizes, draft);
    close();
  }
  EXPECT_LE(aside().size(), 1u);
}

TEST_F(CrashTest, ATornOrForeignIndexIsSetAsideAndRebuiltFromTheFiles) {
  Sizes sizes = blocks_of(3);
  open();
  auto draft = furnish(sizes);
  close();
  auto right = *posix::read_file(index(), 100 << 20);
  std::vector<Bytes> others = {to_bytes("not a database at all, but longer than its header would be........."),
                               Bytes(4096 * 4), Bytes(right.begin(), right.begin() + 5000),
                               Bytes(right.begin(), right.end() - 4096)};
  others.push_back(right);
  std::fill(others.back().begin() + 4096, others.back().end(), std::byte{0xff});
  int n = 0;
  for (const auto& bytes : others) {
    SCOPED_TRACE(n);
    ASSERT_OK(posix::write_file_durably(index(), bytes));
    open();
    EXPECT_EQ(aside(), (std::vector<std::string>{"index.sqlite.damaged-" + std::to_string(++n)}));
    for (std::size_t block = 0; block < sizes.size(); block++) {
      EXPECT_TRUE(check(*file(id(1), sizes), sizes, block));
      EXPECT_EQ(check(*file(id(4), sizes), sizes, block), block == 1);
    }
    EXPECT_EQ(cache_->drafts().size(), 1u);
    EXPECT_EQ(cache_->usage().flat_bytes, 10 * kBlock);
    close();
  }
  EXPECT_EQ(cache_, nullptr);
}

TEST_F(CrashTest, AnIndexOfAnotherSchemaIsSetAside) {
  Sizes sizes = blocks_of(3, 5000);
  int n = 0;
  for (const char* change :
       {"PRAGMA user_version=0", "PRAGMA user_version=2", "PRAGMA application_id=7", "DROP TABLE pins",
        "CREATE TABLE more(x)", "CREATE TRIGGER t AFTER INSERT ON pins BEGIN DELETE FROM drafts; END",
        "CREATE VIEW v AS SELECT 1", "CREATE INDEX i ON pins(number)", "ALTER TABLE files ADD COLUMN x",
        "DROP TABLE metadata; CREATE VIEW metadata AS SELECT 0 kind, x'' key, 1 length, 1 used, x'' bytes"}) {
    SCOPED_TRACE(change);
    ASSERT_OK(posix::remove_tree(dir()));
    open();
    auto draft = furnish(sizes);
    close();
    sql(change);
    open();
    EXPECT_EQ(aside().size(), 1u);
    expect_furnished(sizes, draft);
    EXPECT_TRUE(check(*file(id(1), sizes), sizes, 0));
    close();
    n++;
  }
  EXPECT_EQ(n, 10);
}

TEST_F(CrashTest, RowsThatCannotBeOursAreIgnored) {
  Sizes sizes = blocks_of(3, 5000);
  open();
  auto draft = furnish(sizes);
  close();
  sql("INSERT INTO files VALUES('../../x', 1, 0, 1, 1, x'01', 1), ('m', -1, 0, 1, 1, x'01', 1),"
      "('m', 1, 99999999999, 1, 1, x'01', 1), ('m', 9223372036854775807, 1, 1, 1, x'01', 1),"
      "('m', 'text', 1, 1, 1, x'01', 1), ('m', 77, 1, -5, 1, x'01', 1), ('m', 77, 2, 5, 1000000000000, x'01', 1),"
      "('m', 77, 3, 5, 1, 'text', 1), ('m', 77, 4, 5, 1, x'0101', 1), ('', 77, 4, 5, 1, x'01', 1)");
  sql("UPDATE files SET used=9223372036854775807, present=x'ff', blocks=8 WHERE number=1 AND file=0");
  sql("UPDATE files SET size=77 WHERE number=2 AND file=0");
  sql("INSERT INTO pins VALUES('..', 1), ('m', -1), (x'6d', 3)");
  sql("INSERT INTO drafts VALUES('../../etc', x'00'), ('00000000000000000000000000000000', x'7b7d'),"
      "('11111111111111111111111111111111', 'text')");
  sql("INSERT INTO metadata VALUES(7, x'00', 5, 1, x'00'), (0, x'00', 0, 9223372036854775807, x'00'),"
      "(1, 'text', 3, 1, 7)");
  open();
  EXPECT_EQ(aside().size(), 0u);
  expect_furnished(sizes, draft);
  EXPECT_EQ(cache_->cached_versions("m"), (std::vector<std::uint64_t>{1, 2, 3, 4}));
  EXPECT_TRUE(cache_->pinned("m", 2));
  EXPECT_FALSE(cache_->load_state("text"));
  cache_->put_blob(Sha256::of(as_bytes("new")), as_bytes("new"));
  EXPECT_TRUE(cache_->get_blob(Sha256::of(as_bytes("new"))));
  reopen();
  EXPECT_EQ(aside().size(), 0u);
}

TEST_F(CrashTest, LengthsThatLieAreFoundOutOrHarmless) {
  open();
  furnish(blocks_of(1));
  close();
  for (const char* change :
       {"UPDATE metadata SET length=-1", "UPDATE metadata SET length=9223372036854775807",
        "UPDATE metadata SET length=4611686018427387904 WHERE kind=0", "UPDATE metadata SET length=0",
        "UPDATE metadata SET bytes=zeroblob(3000000) WHERE kind=0"}) {
    SCOPED_TRACE(change);
    sql(change);
    open(64 << 20);
    for (std::uint64_t i = 0; i < 5; i++) {
      auto right = content(id(i), i, 700 * (i + 1));
      auto blob = cache_->get_blob(Sha256::of(right));
      EXPECT_TRUE(!blob || *blob == right);
      cache_->put_blob(Sha256::of(right), right);
    }
    EXPECT_LE(used(), 64u << 20);
    close();
  }
}

TEST_F(CrashTest, AnIndexDamagedWhileRunningIsMadeAnewFromMemory) {
  Sizes sizes = blocks_of(3);
  open();
  auto draft = furnish(sizes);
  std::vector<Bytes> blobs;
  for (std::uint64_t i = 0; i < 60; i++) {  // more than SQLite keeps in memory, and than stays in the log
    blobs.push_back(content(id(i), i, 200'000));
    cache_->put_blob(Sha256::of(blobs.back()), blobs.back());
  }
  EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[59])));
  for (const char* name : {"index.sqlite", "index.sqlite-wal"}) {
    auto fd = posix::open(dir() + "/" + name, O_RDWR).value();
    auto size = static_cast<std::size_t>(posix::fstat(fd.get())->st_size);
    ASSERT_OK(posix::pwrite_exact(fd.get(), 0, Bytes(size, std::byte{0xa5})));
  }
  for (const auto& blob : blobs) {
    auto got = cache_->get_blob(Sha256::of(blob));
    EXPECT_TRUE(!got || *got == blob);
    cache_->put_blob(Sha256::of(blob), blob);
  }
  EXPECT_EQ(aside().size(), 1u);
  EXPECT_TRUE(cache_->get_blob(Sha256::of(blobs[59]))) << "the new one takes blobs";
  EXPECT_EQ(cache_->usage().blob_bytes, 60 * 200'000u) << "and the charge follows it";
  EXPECT_TRUE(file(id(1), sizes)->complete());
  reopen();
  EXPECT_EQ(aside().size(), 1u);
  EXPECT_TRUE(cache_->pinned("m", 2));
  expect_furnished(sizes, draft);
  EXPECT_TRUE(check(*file(id(1), sizes), sizes, 2));
}

TEST_F(CrashTest, LinksInPlaceOfTheIndexOrSidecarsAreNotFollowed) {
  open();
  auto draft = furnish(blocks_of(1));
  close();
  auto victim = folder_ / "victim";
  ASSERT_OK(posix::write_file_durably(victim, as_bytes("precious")));
  auto sidecar = dir() + "/drafts/" + draft.id + "/draft.json";
  for (const auto& path : {index(), index() + "-wal", sidecar}) {
    ASSERT_OK(posix::unlink_if_there(path));
    ASSERT_EQ(::symlink(victim.c_str(), path.c_str()), 0);
  }
  open();
  EXPECT_EQ(cache_->drafts().size(), 1u);
  close();
  EXPECT_EQ(*posix::read_file(victim, 100), to_bytes("precious"));
  EXPECT_TRUE(S_ISREG(posix::lstat(index())->st_mode));
  EXPECT_TRUE(S_ISREG(posix::lstat(sidecar)->st_mode));
  ASSERT_OK(posix::unlink(dir() + "/lock"));
  ASSERT_EQ(::symlink(victim.c_str(), (dir() + "/lock").c_str()), 0);
  EXPECT_FALSE(Cache::open({dir(), 0}).is_ok());
  EXPECT_EQ(*posix::read_file(victim, 100), to_bytes("precious"));
}

}  // namespace

int crash_test_main(int argc, char** argv) {
  std::string what = argc > 1 ? argv[1] : "";
  if (what == "--work" && argc == 4) work_until_killed(argv[2], std::stoi(argv[3]));
  if (what == "--write-and-vanish" && argc == 3) write_and_vanish(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace weightfs

int main(int argc, char** argv) { return weightfs::crash_test_main(argc, argv); }
