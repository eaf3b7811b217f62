#include "store/format/snapshot.h"

#include <gtest/gtest.h>

#include "random_values.h"

namespace weightfs {
namespace {

using testing::Random;

TEST(SnapshotTest, WhatIsWrittenIsReadForRandomStates) {
  for (std::uint64_t seed = 0; seed < 60; seed++) {
    Random random(seed);
    auto snapshot = random.snapshot(random.sized(300));
    auto written = serialize_snapshot(snapshot);
    auto parsed = parse_snapshot(written.object, snapshot.model, written.entry);
    ASSERT_TRUE(parsed.is_ok()) << seed << ": " << parsed.status().to_string();
    ASSERT_TRUE(*parsed == snapshot) << seed;
  }
}

TEST(SnapshotTest, OnlyTheWantedPagesNeedToBeRead) {
  auto snapshot = Random(7).snapshot(4000);
  auto written = serialize_snapshot(snapshot);
  ASSERT_GT(snapshot.versions.size(), 2 * kSnapshotPageRecords);
  auto place = directory_range(written.entry);
  auto directory = parse_snapshot_directory(ByteSpan(written.object).subspan(place.offset, place.length),
                                            snapshot.model, written.entry);
  ASSERT_TRUE(directory.is_ok()) << directory.status().to_string();
  EXPECT_EQ(directory->head.head_digest, snapshot.head_digest);
  const auto wanted = snapshot.versions[kSnapshotPageRecords + 5];
  Snapshot some(snapshot.model);
  some.through = snapshot.through;
  for (const auto& page : directory->pages) {
    if (page.table != SnapshotPage::Table::kVersions || wanted.number < page.first || wanted.number > page.last)
      continue;
    auto bytes = ByteSpan(written.object).subspan(page.range.offset, page.range.length);
    ASSERT_TRUE(parse_snapshot_page(bytes, page, some).is_ok());
  }
  ASSERT_EQ(some.versions.size(), kSnapshotPageRecords);
  EXPECT_TRUE(some.versions[5] == wanted);
}

TEST(SnapshotTest, ALargeStateIsSmall) {
  auto snapshot = Random(8).snapshot(20'000);
  auto written = serialize_snapshot(snapshot);
  EXPECT_LT(written.object.size() - written.entry.directory_offset, 100u * 1024);
  EXPECT_LT(written.object.size(), 400 * snapshot.versions.size());
}

TEST(SnapshotTest, AFlippedOrMissingByteIsCorrupt) {
  auto snapshot = Random(3).snapshot(5);
  auto written = serialize_snapshot(snapshot);
  for (std::size_t at = 0; at < written.object.size(); at++) {
    auto damaged = written.object;
    damaged[at] ^= std::byte{1};
    ASSERT_EQ(parse_snapshot(damaged, snapshot.model, written.entry).code(), Code::kCorrupt) << at;
    damaged.resize(at);
    ASSERT_EQ(parse_snapshot(damaged, snapshot.model, written.entry).code(), Code::kCorrupt) << at;
  }
  auto other = written.entry;
  other.through++;
  EXPECT_EQ(parse_snapshot(written.object, snapshot.model, other).code(), Code::kCorrupt);
  EXPECT_EQ(parse_snapshot(written.object, *ModelName::parse("other"), written.entry).code(), Code::kCorrupt);
}

// A directory with a right digest, whatever it says.
Code directory_code(const std::string& json, std::uint64_t offset = 100) {
  SnapshotEntry entry{.through = 9, .size = offset + json.size(), .directory_offset = offset};
  entry.directory_digest = Sha256::of(as_bytes(json));
  return parse_snapshot_directory(as_bytes(json), *ModelName::parse("m"), entry).code();
}
std::string directory(const std::string& pages, const std::string& format = "1") {
  return R"({"format":)" + format + R"(,"model":"m","through":9,"head_digest":")" + std::string(64, 'a') +
         R"(","snapshot":0,"pages":[)" + pages + "]}";
}
std::string page(const std::string& table, const std::string& numbers, const std::string& encoding = "zstd") {
  return R"({"table":")" + table + "\"," + numbers + R"(,"encoding":")" + encoding + R"(","digest":")" +
         std::string(64, 'a') + "\"}";
}

TEST(SnapshotTest, HostileDirectoriesAreRefused) {
  const std::string good = R"("first":1,"last":5,"records":3,"offset":0,"length":100,"plain_length":400)";
  EXPECT_EQ(directory_code(directory(page("versions", good))), Code::kOk);
  EXPECT_EQ(directory_code(directory(page("later", good))), Code::kUnsupported);
  EXPECT_EQ(directory_code(directory(R"({"table":"later","ignorable":true})")), Code::kOk);
  EXPECT_EQ(directory_code(directory(page("versions", good, "brotli"))), Code::kUnsupported);
  EXPECT_EQ(directory_code(directory("7", "2")), Code::kUnsupported);
  for (std::string numbers :
       {R"("first":6,"last":5,"records":3,"offset":0,"length":100,"plain_length":400)",
        R"("first":1,"last":5,"records":0,"offset":0,"length":100,"plain_length":400)",
        R"("first":1,"last":5,"records":1025,"offset":0,"length":100,"plain_length":400)",
        R"("first":1,"last":5,"records":3,"offset":1,"length":100,"plain_length":400)",
        R"("first":1,"last":5,"records":3,"offset":9223372036854775807,"length":100,"plain_length":400)",
        R"("first":1,"last":5,"records":3,"offset":0,"length":0,"plain_length":400)",
        R"("first":1,"last":5,"records":3,"offset":0,"length":1,"plain_length":257)",  // a bomb
        R"("first":1,"last":5,"records":3,"offset":0,"length":100,"plain_length":33554433)"}) {
    EXPECT_EQ(directory_code(directory(page("versions", numbers))), Code::kCorrupt) << numbers;
  }
}

TEST(SnapshotTest, PagesThatDecompressToSomethingElseAreRefused) {
  auto snapshot = Random(3).snapshot(5);
  auto written = serialize_snapshot(snapshot);
  auto parsed = parse_snapshot_directory(ByteSpan(written.object).subspan(written.entry.directory_offset),
                                         snapshot.model, written.entry);
  ASSERT_TRUE(parsed.is_ok());
  auto page = parsed->pages[0];
  auto bytes = ByteSpan(written.object).subspan(page.range.offset, page.range.length);
  auto code = [&](const SnapshotPage& changed) {
    Snapshot into(snapshot.model);
    into.through = snapshot.through;
    return parse_snapshot_page(bytes, changed, into).code();
  };
  EXPECT_EQ(code(page), Code::kOk);
  auto refused = [&](auto change) {
    auto changed = page;
    change(changed);
    return code(changed) == Code::kCorrupt;
  };
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.plain_length--; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.plain_length++; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.records--; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.records++; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.first--; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.last++; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.compressed = false; }));
  EXPECT_TRUE(refused([](SnapshotPage& p) { p.table = SnapshotPage::Table::kEdges; }));
}

TEST(SnapshotTest, APageThatCompressesTooWellIsStoredPlain) {
  Snapshot snapshot(*ModelName::parse("m"));
  snapshot.through = 10;
  CollectRecord collect{.entry = 5};
  collect.objects.assign(20'000, ObjectKey::of("m/packs/" + std::string(64, 'a')));
  snapshot.collects.push_back(collect);
  auto written = serialize_snapshot(snapshot);
  EXPECT_GT(written.object.size(), 20'000u * 60);
  auto parsed = parse_snapshot(written.object, snapshot.model, written.entry);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string();
  EXPECT_TRUE(*parsed == snapshot);
}

}  // namespace
}  // namespace weightfs
