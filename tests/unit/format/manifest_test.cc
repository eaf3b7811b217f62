#include <gtest/gtest.h>

#include "random_values.h"
#include "store/format/manifest.h"

namespace weightfs {
namespace {

using testing::expect_damage_is_harmless;
using testing::Random;

const std::string kDigest(64, 'a');

std::string with_files(const std::string& files) {
  return R"({"format":1,"model":"m","version":"v","files":[)" + files + "]}";
}
std::string file(const std::string& path, const std::string& rest = R"("size":0,"pages":[])") {
  return R"({"path":")" + path + R"(","kind":"file","mode":420,"mtime_ns":0,)" + rest + "}";
}
std::string directory(const std::string& path) {
  return R"({"path":")" + path + R"(","kind":"directory","mode":493,"mtime_ns":-5})";
}
Code code_of(const std::string& json) { return parse_manifest(as_bytes(json)).code(); }

TEST(ManifestTest, WhatIsWrittenIsReadForRandomManifests) {
  for (std::uint64_t seed = 0; seed < 300; seed++) {
    auto manifest = Random(seed).manifest();
    auto parsed = parse_manifest(serialize(manifest));
    ASSERT_TRUE(parsed.is_ok()) << seed << ": " << parsed.status().to_string();
    ASSERT_TRUE(*parsed == manifest) << seed;
  }
}

TEST(ManifestTest, DamageIsRefusedOrHarmless) {
  auto sample = with_files(directory("d") + "," + file("d%2Ff", R"("size":5,"pages":[")" + kDigest + "\"]"));
  expect_damage_is_harmless(
      to_bytes(sample), [](const Bytes& bytes) { return parse_manifest(bytes); },
      [](const Manifest& manifest) { return serialize(manifest); });
}

TEST(ManifestTest, UnknownFieldsAreIgnoredAndWhiteSpaceToo) {
  auto json = R"( {"files" : [], "later": {"a": [1.5, -3, null]}, "version": "v", "model": "m%20x", "format": 1} )";
  auto manifest = parse_manifest(as_bytes(json));
  ASSERT_TRUE(manifest.is_ok()) << manifest.status().to_string();
  EXPECT_EQ(manifest->model.str(), "m x");
}

TEST(ManifestTest, ALaterFormatIsUnsupportedWhateverItsFilesAre) {
  EXPECT_EQ(code_of(R"({"files":[{"new":true}],"format":2})"), Code::kUnsupported);
  EXPECT_EQ(
      code_of(R"({"format":1,"model":"m","version":"v","files":[{"path":"x","kind":"fifo","mode":0,"mtime_ns":0}]})"),
      Code::kUnsupported);
}

TEST(ManifestTest, HostileManifestsAreCorrupt) {
  const std::string page = "\"" + kDigest + "\"";
  for (const auto& files : std::vector<std::string>{
           file("b") + "," + file("a"),      // order
           file("a") + "," + file("a"),      // twice
           file("d%2Ff"),                    // no directory
           file("d") + "," + file("d%2Ff"),  // a file as directory
           file("..%2Fescape"),
           file("%2Fabsolute"),
           file("a%2F%2Fb"),
           file("."),
           file(""),
           file("a%00b"),
           file("a%2fb"),
           file("%41"),
           file("a b"),  // names not as we encode them
           file("a", R"("size":-1,"pages":[])"),
           file("a", R"("size":1.0,"pages":[])"),
           file("a", R"("size":18446744073709551615,"pages":[])"),
           file("a", R"("size":1e3,"pages":[])"),
           file("a", R"("size":1125899906842625,"pages":[])"),
           file("a", R"("size":"1","pages":[])"),
           file("a", R"("size":1,"pages":[])"),
           file("a", R"("size":0,"pages":[)" + page + "]"),
           file("a", R"("size":4096,"pages":[)" + page + "," + page + "]"),
           file("a", R"("size":4294967297,"pages":[)" + page + "]"),
           file("a", R"("size":1,"pages":["xyz"])"),
           file("a", R"("size":1,"pages":{})"),
           file("a", R"("size":1,"size":1,"pages":[)" + page + "]"),  // a name twice
           R"({"path":"a","kind":"file","mode":4096,"mtime_ns":0,"size":0,"pages":[]})",
           R"({"path":"a","kind":"file","mode":420,"mtime_ns":9223372036854775808,"size":0,"pages":[]})",
           R"({"path":"a","kind":"symlink","mode":420,"mtime_ns":0,"target":""})",
           R"({"path":"a","kind":"symlink","mode":420,"mtime_ns":0,"target":"%00"})",
           R"({"path":"a","kind":"symlink","mode":420,"mtime_ns":0})",
           "3",
           "[]",
           "null"}) {
    EXPECT_EQ(code_of(with_files(files)), Code::kCorrupt) << files;
  }
  for (std::string json : {"", "{", "[]", "{}", "nul", "{\"format\":1}", "{\"format\":0}", "{\"format\":1.0}",
                           "\xff\xfe", "{\"\xff\":1}"}) {
    EXPECT_EQ(code_of(json), Code::kCorrupt) << json;
  }
  EXPECT_EQ(code_of(with_files(file("a")) + "x"), Code::kCorrupt);
  EXPECT_EQ(code_of(with_files(file("a")) + std::string("\0x", 2)), Code::kCorrupt);
  EXPECT_EQ(code_of(R"({"format":1,"model":"m","version":"v","files":{}})"), Code::kCorrupt);
  EXPECT_EQ(code_of(R"({"format":1,"model":".m","version":"v","files":[]})"), Code::kCorrupt);
  EXPECT_EQ(code_of(R"({"format":1,"model":"m","version":"latest","files":[]})"), Code::kCorrupt);
}

TEST(ManifestTest, DepthAndNumberOfValuesAreBounded) {
  EXPECT_EQ(code_of(std::string(1'000'000, '[')), Code::kCorrupt);
  EXPECT_EQ(code_of(R"({"format":1,"x":)" + std::string(15, '[') + std::string(15, ']') +
                    R"(,"model":"m","version":"v","files":[]})"),
            Code::kOk);
  EXPECT_EQ(code_of(R"({"format":1,"x":)" + std::string(16, '[') + std::string(16, ']') +
                    R"(,"model":"m","version":"v","files":[]})"),
            Code::kCorrupt);
  std::string many = "[0";
  for (int i = 0; i < 1'100'000; i++) many += ",0";
  EXPECT_EQ(code_of(R"({"x":)" + many + "]}"), Code::kCorrupt);
}

TEST(ManifestTest, ManyFilesAreReadOneByOne) {
  Manifest manifest{*ModelName::parse("m"), *VersionName::parse("v"), {}, {}};
  for (int i = 0; i < 200'000; i++) {
    auto digits = std::to_string(i);
    manifest.files.push_back({.path = *FilePath::parse(std::string(6 - digits.size(), '0') + digits)});
  }
  auto parsed = parse_manifest(serialize(manifest));  // 1.4 million values, more than may be alive at a time
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string();
  EXPECT_TRUE(*parsed == manifest);
  EXPECT_EQ(parsed->find("000777"), &parsed->files[777]);
  EXPECT_EQ(parsed->find("777"), nullptr);
}

TEST(BlockListTest, WhatIsWrittenIsReadAndDamageIsHarmless) {
  for (std::uint64_t seed = 0; seed < 50; seed++) {
    Random random(seed);
    auto list = random.block_list(1 + random.below(kPageBlocks));
    auto parsed = parse_block_list(serialize_block_list(list));
    ASSERT_TRUE(parsed.is_ok()) << seed;
    ASSERT_EQ(*parsed, list) << seed;
  }
  expect_damage_is_harmless(
      serialize_block_list(Random(1).block_list(3)), [](const Bytes& bytes) { return parse_block_list(bytes); },
      [](const BlockList& list) { return serialize_block_list(list); });
}

}  // namespace
}  // namespace weightfs
