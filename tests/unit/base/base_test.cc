#include <gtest/gtest.h>

#include <atomic>

#include "store/base/bytes.h"
#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/names.h"
#include "store/base/posix.h"
#include "store/base/threads.h"

namespace weightfs {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalid, "odd");
  return value / 2;
}
Result<int> quarter(int value) {
  int once = WFS_TRY(half(value));
  return WFS_TRY(half(once).with("second"));
}

TEST(StatusTest, TryUnwrapsOrReturnsTheErrorWithItsContext) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).status().to_string(), "invalid: second: odd");
  EXPECT_EQ(quarter(7).status().to_string(), "invalid: odd");
}

TEST(StatusTest, AContextThatTheMessageBeginsWithIsNotSaidTwice) {
  Status error(Code::kNotFound, "qwen3: no such model");
  EXPECT_EQ(error.with("qwen3").message(), "qwen3: no such model");
  EXPECT_EQ(error.with("qwen").message(), "qwen: qwen3: no such model");
}

TEST(BytesTest, VarintsComeBackAndRefuseLongOrPaddedForms) {
  for (std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Bytes out;
    ByteWriter(out).varint(value);
    ByteReader in(out);
    EXPECT_EQ(in.varint(), value);
    EXPECT_TRUE(in.done());
  }
  for (std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
    Bytes out;
    ByteWriter(out).svarint(value);
    ByteReader in(out);
    EXPECT_EQ(in.svarint(), value);
  }
  for (std::string_view bad :
       {std::string_view("\x80\x00", 2), std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
        std::string_view("\x80")}) {
    ByteReader in(as_bytes(bad));
    in.varint();
    EXPECT_TRUE(in.failed());
  }
}

TEST(BytesTest, AReaderStaysFailed) {
  ByteReader in(as_bytes("abc"));
  EXPECT_EQ(in.le<std::uint32_t>(), 0u);
  EXPECT_TRUE(in.failed());
  EXPECT_EQ(in.u8(), 0);
  EXPECT_TRUE(in.bytes(0).empty());
  EXPECT_FALSE(in.done());
}

TEST(NamesTest, PercentEncodingIsOneToOne) {
  std::string all;
  for (int c = 0; c < 256; c++) all.push_back(static_cast<char>(c));
  EXPECT_EQ(*percent_decode(percent_encode(all)), all);
  EXPECT_EQ(percent_encode("a b/ü"), "a%20b%2F%C3%BC");
  for (const char* bad : {"%", "%4", "%41", "%2f", "%zz", "a b"})
    EXPECT_EQ(percent_decode(bad).code(), Code::kInvalid) << bad;
}

TEST(NamesTest, IllegalNamesAreRefused) {
  for (const char* bad : {"", ".", "..", "a/b", ".hidden"})
    EXPECT_EQ(ModelName::parse(bad).code(), Code::kInvalid) << bad;
  for (const char* bad : {"latest", "x.tmp", "x.partial", "tmp-x", ".x"}) {
    EXPECT_EQ(VersionName::parse(bad).code(), Code::kInvalid) << bad;
  }
  for (const char* bad : {"", "/a", "a/", "a//b", "a/../b", "./a"})
    EXPECT_EQ(FilePath::parse(bad).code(), Code::kInvalid) << bad;
  EXPECT_EQ(FilePath::parse(std::string("a\0b", 3)).code(), Code::kInvalid);
  EXPECT_EQ(ObjectKey::parse("a b").code(), Code::kInvalid);
  EXPECT_TRUE(FilePath::parse("tokenizer/.hidden").is_ok());
  EXPECT_TRUE(VersionName::parse("step 1 = ü").is_ok());
}

TEST(NamesTest, LongModelNamesAreHashedInKeys) {
  EXPECT_EQ(ModelName::parse("a b")->key_component(), "a%20b");
  auto key = ModelName::parse(std::string(255, ' '))->key_component();
  EXPECT_TRUE(key.starts_with("%h"));
  EXPECT_EQ(key.size(), 66u);
}

TEST(DigestTest, KnownValues) {
  EXPECT_EQ(Sha256::of({}).hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Xxh128::of({}).hex(), "99aa06d3014798d86001c324468d497f");
  Sha256Stream stream;
  stream.update(as_bytes("ab"));
  stream.update(as_bytes("c"));
  EXPECT_EQ(stream.finish(), Sha256::of(as_bytes("abc")));
  EXPECT_NE(random_id(), random_id());
}

TEST(ClockTest, TimesComeBack) {
  auto time = parse_rfc3339("2026-12-01T13:29:05.123Z");
  ASSERT_TRUE(time.is_ok());
  EXPECT_EQ(to_rfc3339(*time), "2026-12-01T13:29:05.123Z");
  for (const char* bad : {"2026-13-01T13:29:05.123Z", "2026-12-01 13:29:05.123Z", "2026-12-01T24:29:05.123Z", ""}) {
    EXPECT_EQ(parse_rfc3339(bad).code(), Code::kInvalid) << bad;
  }
}

TEST(PosixTest, RemoveTreeTakesReadOnlyFoldersAndFollowsNoLink) {
  char root[] = "/tmp/weightfs-base-XXXXXX";
  ASSERT_NE(mkdtemp(root), nullptr);
  std::string base = root;
  ASSERT_TRUE(posix::make_dirs(base + "/keep"));
  ASSERT_TRUE(posix::write_file_durably(base + "/keep/file", as_bytes("x")));
  ASSERT_TRUE(posix::make_dirs(base + "/gone/deep", 0700));
  ASSERT_TRUE(posix::write_file_durably(base + "/gone/deep/f", as_bytes("x")));
  ASSERT_EQ(symlink("../keep", (base + "/gone/link").c_str()), 0);
  ASSERT_EQ(chmod((base + "/gone/deep").c_str(), 0555), 0);
  EXPECT_TRUE(posix::remove_tree(base + "/gone"));
  EXPECT_FALSE(*posix::exists(base + "/gone"));
  EXPECT_TRUE(*posix::exists(base + "/keep/file"));
  EXPECT_TRUE(posix::remove_tree(base));
}

TEST(PosixTest, AFileIsReadToItsEndWhateverStatSays) {
  auto maps = posix::read_file("/proc/self/maps", 1 << 20);
  ASSERT_TRUE(maps.is_ok());
  EXPECT_NE(as_text(*maps).find("[stack]"), std::string_view::npos);
  EXPECT_EQ(posix::read_file("/proc/self/maps", 100).code(), Code::kInvalid);
}

TEST(ThreadsTest, APoolRunsWhatWasQueuedBeforeStop) {
  std::atomic<int> ran = 0;
  WorkerPool pool("test", 2);
  for (int i = 0; i < 100; i++) EXPECT_TRUE(pool.post([&] { ran++; }));
  pool.stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(pool.post([&] { ran++; }));
}

}  // namespace
}  // namespace weightfs
