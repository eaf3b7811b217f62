// verify, gc and diff over a bucket in memory.
#include "store/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "store/diff.h"
#include "store/gc.h"
#include "tests/support/checkpoint.h"
#include "tests/support/memory_bucket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using ::testing::HasSubstr;

VersionRef ref(const std::string& text) { return VersionRef::parse(text).value(); }

class VerifyTest : public ::testing::Test {
 protected:
  // A store of a host of its own.
  std::unique_ptr<Store> host() {
    StoreOptions options;
    options.bucket_url = "memory://test";
    options.cache_dir = dir_ / ("cache-" + std::to_string(hosts_++));
    options.memory = std::uint64_t{256} << 20;
    options.use_bucket = bucket_.another();
    return Store::open(std::move(options)).value();
  }
  PublishResult publish(Store& store, const std::string& version, int step) {
    std::string source = dir_ / ("step-" + std::to_string(step));
    testing::write_checkpoint(source, {.tensors_per_shard = 2, .elements = 40'000}, step);
    return store.publish(source, ref(version), {}).value();
  }
  std::vector<Damage> damage(bool deep = false) {
    auto store = host();
    auto report = verify(*store, {.deep = deep});
    EXPECT_OK(report);
    return report ? report->damaged : std::vector<Damage>();
  }

  TempDir dir_;
  MemoryBucket bucket_;
  int hosts_ = 0;
};

TEST_F(VerifyTest, ASoundBucketHasNoDamage) {
  auto store = host();
  for (int step = 0; step < 3; step++) publish(*store, "m/v" + std::to_string(step), step);
  auto report = verify(*host(), {.deep = true}).value();
  EXPECT_TRUE(report.damaged.empty());
  EXPECT_EQ(report.versions, 3u);
  EXPECT_EQ(report.edges, 3u);
  EXPECT_GT(report.plain_bytes, 3u * 4 * 40'000 * 2);
}

TEST_F(VerifyTest, EveryFlippedByteOfEveryObjectIsFoundAndTheObjectIsNamed) {
  auto store = host();
  publish(*store, "m/v0", 0);
  publish(*store, "m/v1", 1);
  int tried = 0;
  for (const std::string& key : bucket_.objects().keys()) {
    bool needed = key.starts_with("m/log/0") || key.starts_with("m/manifests/") || key.starts_with("m/packs/");
    if (!needed) continue;
    std::size_t size = bucket_.objects().contents(key).size();
    for (std::size_t at : {std::size_t{0}, size / 3, size / 2, size - 1}) {
      bucket_.objects().flip_byte(key, at);
      auto found = damage();
      ASSERT_FALSE(found.empty()) << key << " at " << at;
      EXPECT_TRUE(std::any_of(
          found.begin(), found.end(),
          [&](const Damage& one) { return one.object == key || one.problem.find(key) != std::string::npos; }))
          << key << " at " << at << ": " << found.front().object << ": " << found.front().problem;
      bucket_.objects().flip_byte(key, at);
      tried++;
    }
  }
  EXPECT_GT(tried, 20);
  EXPECT_TRUE(damage().empty());
}

TEST_F(VerifyTest, AMissingPackIsFound) {
  auto store = host();
  publish(*store, "m/v0", 0);
  for (const std::string& key : bucket_.objects().keys()) {
    if (!key.starts_with("m/packs/")) continue;
    ASSERT_OK(bucket_.objects().remove(ObjectKey::parse(key).value()));
    auto found = damage();
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.front().object, key);
    EXPECT_THAT(found.front().problem, HasSubstr("missing"));
  }
}

TEST_F(VerifyTest, AScopeThatIsNotThereIsNotFound) {
  auto store = host();
  publish(*store, "m/v0", 0);
  EXPECT_STATUS(verify(*store, {.model = ModelName::parse("m").value(), .version = "v9"}), Code::kNotFound);
  EXPECT_STATUS(verify(*store, {.model = ModelName::parse("other").value()}), Code::kNotFound);
  EXPECT_OK(verify(*store, {.model = ModelName::parse("m").value(), .version = "latest"}));
}

TEST_F(VerifyTest, ARemovedVersionIsGoneAndGcKeepsWhatTheOthersNeed) {
  auto store = host();
  for (int step = 0; step < 4; step++) publish(*store, "m/v" + std::to_string(step), step);
  ASSERT_OK(remove_version(*store, ref("m/v1")));
  EXPECT_STATUS(remove_version(*store, ref("m/v1")), Code::kNotFound);
  EXPECT_STATUS(store->find_version(ref("m/v1").model, "v1"), Code::kNotFound);
  GcOptions now{.grace = Duration(0)};
  for (int run = 0; run < 2; run++) {
    auto done = gc_bucket(*store, now);
    ASSERT_OK(done);
    for (const ModelGc& model : *done) EXPECT_OK(model.result);
  }
  EXPECT_TRUE(damage(true).empty());
  auto reader = host();
  auto last = reader->find_version(ref("m/v3").model, "v3").value();
  ASSERT_OK(reader->get(last, dir_ / "got"));
  EXPECT_EQ(testing::read_tree(dir_ / "got"), testing::read_tree(dir_ / "step-3"));
}

TEST_F(VerifyTest, AModelWithoutAVersionYetIsNeitherDamageNorLitter) {
  auto store = host();
  publish(*store, "m/v0", 0);
  auto sent = ObjectKey::parse("new/packs/" + std::string(32, '1') + "-0").value();
  ASSERT_OK(bucket_.objects().put(sent, as_bytes("frames"), IfExists::kFail));
  auto done = gc_bucket(*host(), {.grace = Duration(0)});
  ASSERT_OK(done);
  for (const ModelGc& model : *done) EXPECT_OK(model.result);
  EXPECT_TRUE(damage().empty());
  EXPECT_EQ(bucket_.objects().contents(sent.str()).size(), 6u);
}

TEST_F(VerifyTest, DiffCountsWhatPublishCounted) {
  auto store = host();
  publish(*store, "m/v0", 0);
  auto second = publish(*store, "m/v1", 1);
  ModelName model = ref("m/v0").model;
  auto a = store->find_version(model, "v0").value(), b = store->find_version(model, "v1").value();
  auto changed = diff(*store, a, b).value();
  EXPECT_EQ(changed.changed_elements, second.changed_elements);
  EXPECT_EQ(changed.total_elements, second.total_elements);
  EXPECT_EQ(changed.tensors.size(), 4u);
  auto same = diff(*store, b, b).value();
  EXPECT_EQ(same.changed_elements, 0u);
  EXPECT_TRUE(same.files.empty());
}

TEST(DiffElements, StepsAreCountedOnTheNumberLine) {
  auto step = [](codec::ElementType type, std::uint16_t a, std::uint16_t b) {
    return diff_elements(type, std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1))).largest_step;
  };
  EXPECT_EQ(step(codec::ElementType::kBf16, 0x3F80, 0x3F81), 1u);  // 1.0 and its successor
  EXPECT_EQ(step(codec::ElementType::kBf16, 0x3F7F, 0x3F80), 1u);  // across exponents
  EXPECT_EQ(step(codec::ElementType::kBf16, 0x8001, 0x0001), 2u);  // across zero
  EXPECT_EQ(step(codec::ElementType::kBf16, 0x8000, 0x0000), 0u);  // -0 and +0 differ in bits only
  EXPECT_EQ(step(codec::ElementType::kInt16, 0xFFFF, 0x0001), 2u);
  EXPECT_EQ(step(codec::ElementType::kInt16, 5, 5), 0u);
}

}  // namespace
}  // namespace weightfs
