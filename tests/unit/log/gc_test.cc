// What gc takes, keeps, and in which order; and its restarts. Its races are in interleavings_test.cc.
#include "store/log/gc.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "log_fixture.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;
using What = GcItem::What;
using ::testing::HasSubstr;

constexpr auto kGrace = std::chrono::hours(24);

class GcTest : public ::testing::Test {
 protected:
  NodeRef publish_in(const ModelName& model, const std::string& version, std::optional<NodeRef> parent = {},
                     std::uint64_t bytes = 100) {
    auto entry = publish_of(version, parent, bytes);
    put_objects(bucket_, model, entry);
    auto done = publish(logs_, model, id_of("publish " + version), entry);
    EXPECT_OK(done);
    return {model, done->number};
  }
  void remove(const ModelName& model, const std::string& version) {
    ASSERT_OK(remove_version(logs_, model, id_of("remove " + version), version_name(version)));
  }
  void full_edge(const NodeRef& to, std::uint64_t bytes) {
    auto edge = edge_of("full " + std::to_string(to.number), {}, to.number, bytes);
    put_pack(bucket_, to.model, edge);
    ASSERT_OK(add_edge(logs_, to.model, id_of(edge.pack), edge));
  }
  GcResult run(const ModelName& model, Duration grace = kGrace) {
    auto result = gc(logs_, model, {.grace = grace, .call = {}});
    EXPECT_OK(result);
    return result.is_ok() ? *result : GcResult{};
  }
  // Both phases.
  void run_to_end(const ModelName& model) {
    run(model);
    clock_.advance(kGrace);
    run(model);
  }
  bool has_pack(const ModelName& model, const std::string& name) {
    return bucket_.objects().has(pack_object_key(model, id_of("pack " + name), 0).str());
  }
  bool has_manifest(const ModelName& model, const std::string& version) {
    return bucket_.objects().has(manifest_key(model, digest_of("manifest " + version)).str());
  }

  FakeClock clock_;
  MemoryBucket bucket_{clock_};
  ModelLogs logs_{bucket_, clock_, nullptr};
  ModelName m_ = model_name("m"), child_ = model_name("child");
};

TEST_F(GcTest, WhereAllIsNeededNothingIsWritten) {
  auto v1 = publish_in(m_, "v1");
  publish_in(m_, "v2", v1);
  clock_.advance(kGrace * 10);
  auto head = logs_.get(m_).state()->head;
  auto result = run(m_);
  EXPECT_TRUE(result.items.empty());
  EXPECT_EQ(result.kept_objects, 4u);
  EXPECT_EQ(logs_.get(m_).state()->head, head);
}

TEST_F(GcTest, ARemovedVersionInTheMiddleOfAPathStaysUntilTheresACheaperWay) {
  auto v1 = publish_in(m_, "v1", {}, 1000);
  auto v2 = publish_in(m_, "v2", v1);
  auto v3 = publish_in(m_, "v3", v2);
  remove(m_, "v2");
  clock_.advance(kGrace);
  EXPECT_TRUE(run(m_).items.empty());
  full_edge(v3, 900);
  auto first = run(m_);
  EXPECT_EQ(first.count(What::kCollected), 3u);  // two packs and a manifest
  EXPECT_EQ(first.count(What::kDeleted), 0u);
  EXPECT_EQ(first.ready, clock_.wall() + kGrace);
  EXPECT_TRUE(has_pack(m_, "v2"));
  clock_.advance(kGrace - std::chrono::hours(1));
  EXPECT_EQ(run(m_).count(What::kWaiting), 3u);
  EXPECT_TRUE(has_pack(m_, "v2"));
  clock_.advance(std::chrono::hours(1));
  EXPECT_EQ(run(m_).count(What::kDeleted), 3u);
  EXPECT_FALSE(has_pack(m_, "v2"));
  EXPECT_FALSE(has_pack(m_, "v3"));
  EXPECT_FALSE(has_manifest(m_, "v2"));
  EXPECT_TRUE(has_pack(m_, "v1"));
  EXPECT_TRUE(has_pack(m_, "full 3"));
  EXPECT_TRUE(has_manifest(m_, "v3"));
  auto state = logs_.get(m_).state();
  EXPECT_TRUE(state->collects.empty());
  EXPECT_EQ(state->version(2), nullptr);
  EXPECT_EQ(state->edges.size(), 2u);
}

TEST_F(GcTest, TheEdgeFromALiveParentStaysAlthoughAFullEdgeIsCheaper) {
  auto v1 = publish_in(m_, "v1", {}, 1000);
  auto v2 = publish_in(m_, "v2", v1, 100);
  full_edge(v2, 50);
  clock_.advance(kGrace);
  EXPECT_TRUE(run(m_).items.empty());
}

TEST_F(GcTest, UploadsUnderWayAreKeptByAgeOrHeartbeat) {
  publish_in(m_, "v1");
  for (const auto* name : {"old", "young", "beating"}) {
    if (std::string(name) == "young") clock_.advance(kGrace * 2);
    put_pack(bucket_, m_, edge_of(name, {}, 0));
  }
  auto beating = pack_object_key(m_, id_of("pack beating"), 0).str();
  bucket_.objects().set_modified(beating, clock_.wall() - kGrace * 2);
  auto heartbeat = [&](const std::string& name) { return heartbeat_key(m_, id_of("pack " + name)); };
  for (const auto* name : {"beating", "v1"})
    ASSERT_OK(bucket_.put(heartbeat(name), to_bytes("x"), IfExists::kOverwrite));
  auto result = run(m_);
  ASSERT_EQ(result.count(What::kCollected), 1u);
  EXPECT_EQ(result.items[0].key, pack_object_key(m_, id_of("pack old"), 0));
  EXPECT_THAT(result.items[0].why, HasSubstr("never committed"));
  EXPECT_TRUE(bucket_.objects().has(heartbeat("beating").str()));
  EXPECT_FALSE(bucket_.objects().has(heartbeat("v1").str())) << "that pack is committed";
  clock_.advance(kGrace);
  run(m_);
  EXPECT_FALSE(has_pack(m_, "old"));
  EXPECT_TRUE(has_pack(m_, "beating"));  // now both are old, so they are only collected
  clock_.advance(kGrace);
  run(m_);
  EXPECT_FALSE(has_pack(m_, "beating"));
  EXPECT_FALSE(has_pack(m_, "young"));
  EXPECT_FALSE(bucket_.objects().has(heartbeat("beating").str()));
}

TEST_F(GcTest, WhatWasCollectedIsNotTakenForACommit) {
  auto v1 = publish_in(m_, "v1");
  auto entry = publish_of("slow", v1);
  put_objects(bucket_, m_, entry);
  clock_.advance(kGrace * 2);
  run(m_);
  EXPECT_STATUS(publish(logs_, m_, id_of("slow"), entry), Code::kBusy);
  clock_.advance(kGrace);
  run(m_);
  EXPECT_TRUE(logs_.get(m_).state()->collects.empty());
  put_objects(bucket_, m_, entry);  // again, under the same names: a deletion may still be on its way
  EXPECT_STATUS(publish(logs_, m_, id_of("slow"), entry), Code::kBusy);
  entry.edge.pack = id_of("another");
  entry.manifest.digest = digest_of("another");
  EXPECT_OK(publish(logs_, m_, id_of("slow"), entry));
}

TEST_F(GcTest, NothingCanBeBuiltOnWhatWasCollected) {
  auto v1 = publish_in(m_, "v1");
  remove(m_, "v1");
  publish_in(m_, "v2");
  clock_.advance(kGrace);
  run(m_);
  EXPECT_STATUS(publish(logs_, m_, id_of("x"), publish_of("x", v1)), Code::kNotFound);
  EXPECT_STATUS(publish(logs_, child_, id_of("y"), publish_of("y", v1)), Code::kNotFound);
  EXPECT_STATUS(add_edge(logs_, m_, id_of("e"), edge_of("e", v1, 3)), Code::kNotFound);
}

TEST_F(GcTest, AHoldKeepsAVersionWhileItIsYoungAndWhileTheChildBuildsOnIt) {
  auto v1 = publish_in(m_, "v1", {}, 1000);
  auto w1 = publish_in(child_, "w1", v1);
  remove(m_, "v1");
  clock_.advance(kGrace * 10);
  EXPECT_TRUE(run(m_).items.empty()) << "the child lives";
  full_edge(w1, 10);
  EXPECT_EQ(run(child_).count(What::kCollected), 0u + 1u) << "its parent is not live, so the edge goes";
  run_to_end(m_);
  EXPECT_FALSE(has_pack(m_, "v1"));
  EXPECT_FALSE(has_manifest(m_, "v1"));
}

TEST_F(GcTest, AHoldWhoseCommitNeverCameLastsAnHourAtLeast) {
  auto v1 = publish_in(m_, "v1", {}, 1000);
  ASSERT_OK(hold(logs_, v1, child_, id_of("never")));
  remove(m_, "v1");
  clock_.advance(kHoldLasts - std::chrono::minutes(1));
  EXPECT_TRUE(run(m_, Duration(0)).items.empty());
  clock_.advance(std::chrono::minutes(1));
  EXPECT_EQ(run(m_, Duration(0)).count(What::kDeleted), 2u);
}

TEST_F(GcTest, APublishThatWasHeldUpLongerThanItsHoldFailsCleanOrSucceedsWhole) {
  auto v1 = publish_in(m_, "v1", {}, 1000);
  remove(m_, "v1");
  auto entry = publish_of("w1", v1);
  put_objects(bucket_, child_, entry);
  // The host sleeps for hours, right before its commit arrives; gc runs meanwhile.
  auto other = bucket_.another();
  bucket_.set_hook([&](const BucketCall& call) {
    if (call.op != BucketOp::kPut || call.key != log_entry_key(child_, 1).str()) return;
    bucket_.set_hook({});
    clock_.advance(std::chrono::hours(3));
    ModelLogs elsewhere(*other, clock_, nullptr);
    EXPECT_EQ(gc(elsewhere, m_, {.grace = Duration(0), .call = {}})->count(What::kDeleted), 2u);
  });
  EXPECT_STATUS(publish(logs_, child_, id_of("w1"), entry, {.deadline = std::chrono::hours(5)}), Code::kNotFound);
  EXPECT_TRUE((*logs_.get(child_).refresh())->live_versions().empty());
}

TEST_F(GcTest, OldSnapshotsGoAndTheTwoNewestStay) {
  publish_in(m_, "v1");
  for (int i = 0; i < 4; i++) ASSERT_OK(logs_.get(m_).write_snapshot_now());
  clock_.advance(kGrace);
  EXPECT_EQ(run(m_).count(What::kCollected), 2u);
  clock_.advance(kGrace);
  run(m_);
  auto keys = bucket_.objects().keys();
  auto snapshots = [](const std::string& key) { return key.find("/snapshots/") != std::string::npos; };
  EXPECT_EQ(std::count_if(keys.begin(), keys.end(), snapshots), 2);
}

TEST_F(GcTest, ADryRunTellsAndWritesNothing) {
  publish_in(m_, "v1");
  remove(m_, "v1");
  clock_.advance(kGrace);
  bucket_.set_read_only(true);
  auto result = gc(logs_, m_, {.grace = kGrace, .dry_run = true, .call = {}});
  ASSERT_OK(result);
  EXPECT_EQ(result->count(What::kCollected), 2u);
  EXPECT_THAT(result->items[0].why, HasSubstr("v1"));
  bucket_.set_read_only(false);
  run(m_);
  clock_.advance(kGrace);
  bucket_.set_read_only(true);
  result = gc(logs_, m_, {.grace = kGrace, .dry_run = true, .call = {}});
  EXPECT_EQ(result->count(What::kDeleted), 2u);
}

TEST_F(GcTest, ItIsRestartedWhereverItFailed) {
  for (std::uint64_t n = 1;; n++) {
    FakeClock clock;
    MemoryBucket bucket(clock);
    ModelLogs logs(bucket, clock, nullptr, {.parallel = 1});
    auto entry = publish_of("v1");
    put_objects(bucket, m_, entry);
    ASSERT_OK(publish(logs, m_, id_of("a"), entry));
    ASSERT_OK(remove_version(logs, m_, id_of("b"), version_name("v1")));
    put_pack(bucket, m_, edge_of("garbage", {}, 0));
    clock.advance(kGrace);
    bucket.fail_nth(n, n % 2 == 0 ? BucketFault::When::kAfter : BucketFault::When::kBefore);
    auto result = gc(logs, m_, {.grace = Duration(0), .call = {.deadline = std::chrono::seconds(1)}});
    bool struck = !bucket.faults_pending();
    bucket.clear_faults();
    ASSERT_OK(gc(logs, m_, {.grace = Duration(0), .call = {}}));
    for (const auto& key : bucket.objects().keys()) {
      EXPECT_TRUE(key.find("/packs/") == std::string::npos && key.find("/manifests/") == std::string::npos)
          << key << " after a failure of call " << n;
    }
    if (!struck) {
      EXPECT_OK(result);
      break;
    }
  }
}

TEST_F(GcTest, CancellingStopsBetweenDeletions) {
  publish_in(m_, "v1");
  for (int i = 0; i < 30; i++) put_pack(bucket_, m_, edge_of("garbage " + std::to_string(i), {}, 0));
  clock_.advance(kGrace);
  auto cancel = std::make_shared<CancelToken>();
  std::uint64_t deleted = 0;
  GcOptions options{.grace = Duration(0), .call = {.cancel = cancel}};
  options.progress = [&](const GcItem&, std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, 30u);
    if ((deleted = done) == 3) cancel->cancel();
  };
  EXPECT_STATUS(gc(logs_, m_, options), Code::kInterrupted);
  EXPECT_LT(deleted, 30u);
  EXPECT_EQ(run(m_, Duration(0)).count(What::kDeleted) + deleted, 30u);
}

TEST_F(GcTest, DeletionsKeepToTheirRate) {
  publish_in(m_, "v1");
  for (int i = 0; i < 40; i++) put_pack(bucket_, m_, edge_of("garbage " + std::to_string(i), {}, 0));
  clock_.advance(kGrace);
  auto begin = clock_.now();
  ASSERT_OK(gc(logs_, m_, {.grace = Duration(0), .deletes_per_second = 10, .call = {}}));
  EXPECT_GE(clock_.now() - begin, std::chrono::seconds(4));
}

TEST_F(GcTest, AVersionThatCannotBeRebuiltStopsIt) {
  LogWriter writer(bucket_.objects(), m_);
  writer.publish("v1");
  writer.publish("v2", writer.node(1));
  writer.add(CollectEntry{.edges = {1}});  // as a wrong writer might
  put_pack(bucket_, m_, edge_of("garbage", {}, 0));
  clock_.advance(kGrace);
  EXPECT_STATUS(gc(logs_, m_, {.call = {}}), Code::kCorrupt);
  EXPECT_TRUE(has_pack(m_, "garbage"));
}

TEST_F(GcTest, ACollectEntryThatNamesWhatIsUsedDeletesNothing) {
  LogWriter writer(bucket_.objects(), m_);
  writer.publish("v1");
  put_objects(bucket_, m_, publish_of("v1"));
  writer.add(CollectEntry{
      .objects = {pack_object_key(m_, id_of("pack v1"), 0), manifest_key(m_, digest_of("manifest v1"))}, .edges = {}});
  clock_.advance(kGrace * 2);
  run(m_);
  EXPECT_TRUE(has_pack(m_, "v1"));
  EXPECT_TRUE(has_manifest(m_, "v1"));
}

TEST_F(GcTest, ADamagedLogIsNotCollected) {
  auto v1 = publish_in(m_, "v1");
  publish_in(child_, "w1", v1);
  clock_.advance(kGrace * 10);
  bucket_.objects().flip_byte(log_entry_key(child_, 1).str(), 50);
  ModelLogs fresh(bucket_, clock_, nullptr);
  EXPECT_STATUS(gc(fresh, child_, {.call = {}}), Code::kCorrupt);
  remove(m_, "v1");
  auto kept = gc(fresh, m_, {.call = {}});
  ASSERT_OK(kept);
  EXPECT_TRUE(kept->items.empty()) << "whether the child needs it cannot be told";
}

}  // namespace
}  // namespace weightfs
