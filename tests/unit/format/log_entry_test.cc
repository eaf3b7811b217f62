#include <gtest/gtest.h>

#include "random_values.h"
#include "store/format/log_entry.h"

namespace weightfs {
namespace {

using testing::expect_damage_is_harmless;
using testing::Random;

const ModelName kModel = *ModelName::parse("m");
const std::string kDigest(64, 'a'), kId(32, 'b');

std::string entry(const std::string& kind, const std::string& fields, int number = 9) {
  return with_check(R"({"format":1,"kind":")" + kind + R"(","model":"m","number":)" + std::to_string(number) +
                    R"(,"id":")" + kId + (number > 1 ? R"(","previous":")" + kDigest : "") +
                    R"(","snapshot":0,"time":"2026-12-01T13:29:05.123Z",)" + fields + "}");
}
std::string edge(const std::string& to, const std::string& from = "") {
  return R"("edge":{)" + from + R"("to":)" + to + R"(,"pack":")" + kId +
         R"(","objects":1,"last_size":100,"meta_offset":10,"index_offset":50,"index_digest":")" + kDigest +
         R"(","total_bytes":100,"frames":3})";
}
std::string publish(const std::string& edge_json, const std::string& parent = "") {
  return R"("version":"v","manifest":{"digest":")" + kDigest + R"(","size":7},)" + parent + edge_json +
         R"(,"plain_bytes":1,"stored_bytes":2,"changed_elements":3,"total_elements":4)";
}
Result<LogEntry> parse(const std::string& json, int number = 9) {
  return parse_log_entry(as_bytes(json), kModel, number);
}

TEST(LogEntryTest, WhatIsWrittenIsReadForRandomEntries) {
  std::set<std::size_t> kinds;
  for (std::uint64_t seed = 0; seed < 500; seed++) {
    auto written = Random(seed).entry();
    kinds.insert(written.body.index());
    auto parsed = parse_log_entry(serialize(written), written.model, written.number);
    ASSERT_TRUE(parsed.is_ok()) << seed << ": " << parsed.status().to_string();
    ASSERT_TRUE(*parsed == written) << seed;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<decltype(LogEntry::body)>);
}

TEST(LogEntryTest, DamageIsRefusedOrHarmless) {
  auto model = *ModelName::parse("m n");
  for (std::uint64_t seed = 1000, seen = 0; seen != 0x7f; seed++) {
    Random random(seed);
    auto sample = random.entry();
    if ((seen & (1u << sample.body.index())) != 0) continue;
    seen |= 1u << sample.body.index();
    auto bytes = serialize(sample);
    if (bytes.size() > 1500) bytes.resize(1500);
    expect_damage_is_harmless(
        bytes, [&](const Bytes& damaged) { return parse_log_entry(damaged, sample.model, sample.number); },
        [](const LogEntry& parsed) { return serialize(parsed); });
  }
}

TEST(LogEntryTest, AnEntryOfAnotherModelOrNumberIsCorrupt) {
  auto json = entry("remove", R"("target":3,"version":"v")");
  ASSERT_TRUE(parse(json).is_ok()) << parse(json).status().to_string();
  EXPECT_EQ(parse(json, 8).code(), Code::kCorrupt);
  EXPECT_EQ(parse_log_entry(as_bytes(json), *ModelName::parse("other"), 9).code(), Code::kCorrupt);
}

TEST(LogEntryTest, UnknownKindsAreUnsupportedUnlessMarkedAsIgnorable) {
  EXPECT_EQ(parse(entry("later", R"("x":1)")).code(), Code::kUnsupported);
  EXPECT_EQ(parse(entry("later", R"("ignorable":false)")).code(), Code::kUnsupported);
  EXPECT_EQ(parse(entry("later", R"("ignorable":1)")).code(), Code::kUnsupported);
  auto ignored = parse(entry("later", R"("x":[{"y":1.5}],"ignorable":true)"));
  ASSERT_TRUE(ignored.is_ok()) << ignored.status().to_string();
  EXPECT_EQ(std::get<IgnoredEntry>(ignored->body).kind, "later");
  EXPECT_EQ(parse(R"({"format":2})").code(), Code::kUnsupported);
}

TEST(LogEntryTest, AnyChangedByteOfAnEntryIsFound) {
  auto json = entry("remove", R"("target":3,"version":"v")");
  for (std::size_t i = 0; i < json.size(); i++) {
    auto damaged = json;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(parse(damaged).is_ok()) << i << ": " << damaged;
  }
}

TEST(LogEntryTest, UnknownFieldsAreIgnored) {
  EXPECT_TRUE(parse(entry("remove", R"("target":3,"version":"v","why":{"a":[null,true]})")).is_ok());
}

TEST(LogEntryTest, HostileEntriesAreCorrupt) {
  const std::string parent = R"("parent":{"model":"m","number":4,"version":"u"},)";
  const std::string from = R"("from":{"model":"m","number":4},)";
  ASSERT_TRUE(parse(entry("publish", publish(edge("9", from), parent))).is_ok());
  ASSERT_TRUE(parse(entry("edge", edge("8", from))).is_ok());
  const std::string bad[] = {
      entry("publish", publish(edge("8"))),        // edge to another version
      entry("publish", publish(edge("9", from))),  // edge from what is not the parent
      entry("publish", publish(edge("9"), R"("parent":{"model":"m","number":9,"version":"u"},)")),
      entry("publish", publish(edge("9"), R"("parent":{"model":"m","number":0,"version":"u"},)")),
      entry("publish", publish(edge("9"), R"("parent":{"model":"m","number":4},)")),
      entry("publish", publish(edge("9"), R"("parent":null,)")),
      entry("publish", R"("version":"v")"),
      entry("remove", R"("target":9,"version":"v")"),  // itself
      entry("remove", R"("target":0,"version":"v")"),
      entry("remove", R"("target":-1,"version":"v")"),
      entry("remove", R"("target":1.0,"version":"v")"),
      entry("remove", R"("target":"1","version":"v")"),
      entry("remove", R"("target":3,"version":"a%2Fb")"),
      entry("remove", R"("target":3,"version":"latest")"),
      entry("remove", R"("target":3,"version":"v","target":3)"),
      entry("edge", edge("9")),
      entry("edge", edge("4", from)),
      entry("edge", edge("9223372036854775808")),
      entry("hold", R"("target":3,"child":"m","child_commit":")" + kId + "\""),
      entry("hold", R"("target":3,"child":"n","child_commit":"x")"),
      entry("collect", R"("objects":["n/packs/x"],"edges":[])"),  // of another model
      entry("collect", R"("objects":["m/log/00000000000000000001.json"],"edges":[])"),
      entry("collect", R"("objects":["m/../n/x"],"edges":[])"),
      entry("collect", R"("objects":[],"edges":[9])"),
      entry("collect", R"("objects":[3],"edges":[])"),
      entry("collect", R"("objects":[])"),
      entry("snapshot", R"("through":9,"object":"m/snapshots/x","size":9,"directory_offset":1,"directory_digest":")" +
                            kDigest + "\""),
      entry("snapshot", R"("through":8,"object":"m/snapshots/x","size":9,"directory_offset":9,"directory_digest":")" +
                            kDigest + "\""),
      entry("publish", publish(edge("1")), 1).replace(1, 0, R"("previous":3,"format":1,)"),
      "",
      "[]",
      "{",
      "{}",
      "{\"format\":1}",
      std::string(100'000, '{')};
  for (const auto& json : bad) EXPECT_EQ(parse(json).code(), Code::kCorrupt) << json.substr(0, 300);
  auto no_previous = entry("remove", R"("target":3,"version":"v")");
  no_previous.replace(no_previous.find("previous"), 8, "PREVIOUS");
  EXPECT_EQ(parse(no_previous).code(), Code::kCorrupt);
}

TEST(LogEntryTest, TheHintIsANumber) {
  EXPECT_EQ(as_text(serialize_hint(42)), R"({"head":42})");
  EXPECT_EQ(*parse_hint(as_bytes(R"({"head":42,"x":1})")), 42u);
  for (std::string_view bad :
       {"", "42", "{}", R"({"head":-1})", R"({"head":1.5})", R"({"head":9223372036854775808})"}) {
    EXPECT_EQ(parse_hint(as_bytes(bad)).code(), Code::kCorrupt) << bad;
  }
}

TEST(LogEntryTest, KeysSortByNumberAndEncodeNames) {
  auto model = *ModelName::parse("a b");
  EXPECT_EQ(log_entry_key(model, 42).str(), "a%20b/log/00000000000000000042.json");
  EXPECT_EQ(log_hint_key(model).str(), "a%20b/log/hint");
  EXPECT_EQ(heartbeat_key(model, kId).str(), "a%20b/uploads/" + kId);
  EXPECT_EQ(pack_object_key(model, kId, 3).str(), "a%20b/packs/" + kId + "-3");
  EXPECT_EQ(manifest_key(model, Sha256{}).str(), "a%20b/manifests/" + std::string(64, '0'));
  EXPECT_LT(log_entry_key(model, 9), log_entry_key(model, 10));
}

}  // namespace
}  // namespace weightfs
