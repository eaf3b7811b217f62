// What entries add up to; snapshots and saved states; what reading costs.
#include <gmock/gmock.h>

#include "log_fixture.h"
#include "store/log/state_snapshot.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;
using Body = decltype(LogEntry::body);

class StateTest : public ::testing::Test {
 protected:
  ModelStatePtr read() { return *ModelLog(bucket_, model_, clock_, nullptr).refresh(); }
  ModelStatePtr replayed() {  // without snapshots
    StateBuilder builder(model_);
    for (std::uint64_t n = 1; n <= writer_.head(); n++) {
      auto bytes = bucket_.objects().contents(log_entry_key(model_, n).str());
      EXPECT_OK(builder.apply(*parse_log_entry(bytes, model_, n), Sha256::of(bytes)));
    }
    return std::move(builder).build();
  }
  ObjectKey pack(const std::string& name) { return pack_object_key(model_, id_of("pack " + name), 0); }

  FakeClock clock_;
  MemoryBucket bucket_{clock_};
  ModelName model_ = model_name("m");
  LogWriter writer_{bucket_.objects(), model_};
};

TEST_F(StateTest, ANameRemovedAndPublishedAgainIsAnotherVersion) {
  writer_.publish("v");
  writer_.publish("w", writer_.node(1));
  writer_.add(RemoveEntry{1, version_name("v")});
  EXPECT_EQ(read()->live(version_name("v")), nullptr);
  EXPECT_EQ(read()->latest()->number, 2u);
  writer_.publish("v");
  auto state = read();
  EXPECT_EQ(state->live(version_name("v"))->number, 4u);
  EXPECT_EQ(state->latest()->number, 4u);
  EXPECT_EQ(state->live_versions().size(), 2u);
  EXPECT_EQ(state->version(1)->removed, 3u);
}

TEST_F(StateTest, EntriesThatTheLogDoesNotAllowHaveNoEffect) {
  writer_.publish("v");
  auto before = read();
  writer_.publish("v");                                        // the name is taken
  writer_.add(RemoveEntry{1, version_name("other")});          // another name
  writer_.add(EdgeEntry{edge_of("e", {}, 2)});                 // no version 2
  writer_.add(HoldEntry{2, model_name("child"), id_of("c")});  // nor here
  auto state = read();
  EXPECT_FALSE(state->broken);
  EXPECT_EQ(state->head, 5u);
  EXPECT_EQ(state->live(version_name("v"))->number, 1u);
  EXPECT_EQ(state->edges.size(), before->edges.size());
  EXPECT_TRUE(state->holds.empty());
}

TEST_F(StateTest, ARemovedVersionStaysUntilTheLastEdgeThatBuildsItIsCollected) {
  writer_.publish("v1");
  writer_.publish("v2", writer_.node(1));
  writer_.add(EdgeEntry{edge_of("full", {}, 1)});
  writer_.add(RemoveEntry{1, version_name("v1")});
  writer_.add(CollectEntry{.objects = {pack("v1")}, .edges = {1}});
  EXPECT_NE(read()->version(1), nullptr);
  EXPECT_TRUE(is_buildable(*read(), 2));
  writer_.add(CollectEntry{.objects = {pack("full")}, .edges = {3}});
  EXPECT_EQ(read()->version(1), nullptr);
  EXPECT_FALSE(is_buildable(*read(), 2));
}

TEST_F(StateTest, FinishedCollectsAreForgottenButNotKeysThatCouldComeAgain) {
  writer_.publish("v1");
  writer_.add(RemoveEntry{1, version_name("v1")});
  auto manifest = manifest_key(model_, digest_of("manifest v1"));
  auto collect = writer_.add(CollectEntry{.objects = {pack("v1"), manifest, pack("garbage")}, .edges = {1}});
  auto state = read();
  EXPECT_EQ(state->collects.size(), 1u);
  for (const auto& key : {pack("v1"), manifest, pack("garbage")}) EXPECT_TRUE(state->is_collected(key));
  EXPECT_FALSE(state->is_collected(pack("v2")));
  writer_.add(CollectEntry{.finished = {collect}});
  state = read();
  EXPECT_TRUE(state->collects.empty());
  EXPECT_TRUE(state->edges.empty());
  EXPECT_TRUE(state->is_collected(manifest));
  EXPECT_TRUE(state->is_collected(pack("garbage")));
  EXPECT_FALSE(state->is_collected(pack("v1")));
}

TEST_F(StateTest, ASnapshotTellsWhatTheLogFromItsStartTells) {
  writer_.publish("v1");
  for (int i = 2; i < 60; i++) {
    auto name = "v" + std::to_string(i);
    if (i % 7 == 0) writer_.add(HoldEntry{1, model_name("child" + std::to_string(i)), id_of(name)});
    if (i % 9 == 0) writer_.add(EdgeEntry{edge_of("e" + name, writer_.node(1), writer_.head())});
    if (i % 10 == 0) {
      auto at = writer_.publish(name, writer_.node(1));
      writer_.add(RemoveEntry{at, version_name(name)});
      auto collect = writer_.add(CollectEntry{.objects = {pack(name), pack("x" + name)}, .edges = {at}});
      if (i % 20 == 0) writer_.add(CollectEntry{.finished = {collect}});
    }
    writer_.publish(name, writer_.node(1));
    if (i % 13 == 0) writer_.snapshot();
    ASSERT_EQ(describe(*read()), describe(*replayed()));
  }
}

TEST_F(StateTest, ADamagedSnapshotIsPassedOverForAnOlderOneOrTheWholeLog) {
  for (int i = 0; i < 50; i++) {
    writer_.publish("v" + std::to_string(i));
    if (i % 20 == 19) writer_.snapshot();
  }
  auto expected = describe(*replayed());
  for (const auto& key : bucket_.objects().keys()) {
    if (key.find("/snapshots/") == std::string::npos) continue;
    auto whole = bucket_.objects().contents(key);
    for (std::size_t at = 0; at < whole.size(); at += 1 + whole.size() / 40) {
      bucket_.objects().flip_byte(key, at);
      ASSERT_EQ(describe(*read()), expected) << key << " byte " << at;
      bucket_.objects().set_contents(key, whole);
    }
    bucket_.objects().set_contents(key, Bytes(3));
    EXPECT_EQ(describe(*read()), expected);
    ASSERT_OK(bucket_.remove(ObjectKey::of(key)));
    EXPECT_EQ(describe(*read()), expected);
  }
}

TEST_F(StateTest, ADamagedSnapshotEntryBreaksTheLogThere) {
  for (int i = 0; i < 30; i++) {
    writer_.publish("v" + std::to_string(i));
    if (i % 10 == 9) writer_.snapshot();
  }
  bucket_.objects().flip_byte(log_entry_key(model_, 22).str(), 40);  // the second snapshot's entry
  writer_.hint(31);
  auto state = read();
  EXPECT_EQ(state->head, 33u) << "the newest snapshot does not need it";
  bucket_.objects().flip_byte(log_entry_key(model_, 33).str(), 40);
  state = read();
  EXPECT_EQ(state->head, 21u);
  EXPECT_EQ(state->live_versions().size(), 20u);
  EXPECT_TRUE(state->broken);
}

TEST_F(StateTest, WritersMakeSnapshotsWhenTheyAreDueAndLosersLeaveNone) {
  ModelLogs logs(bucket_, clock_, nullptr);
  auto& log = logs.get(model_);
  std::size_t snapshots = 0;
  for (int i = 0; i < 200; i++) {
    auto name = "v" + std::to_string(i);
    ASSERT_OK(publish(logs, model_, id_of(name), publish_of(name)));
    auto before = log.state()->snapshot;
    ASSERT_OK(log.snapshot_if_due());
    if (log.state()->snapshot != before) snapshots++;
  }
  EXPECT_EQ(snapshots, 200u / 32u);
  EXPECT_EQ(read()->live_versions().size(), 200u);
  // Two want to write one at the same time.
  auto other = bucket_.another();
  ModelLog second(*other, model_, clock_, nullptr);
  ASSERT_OK(second.refresh());
  auto objects = bucket_.objects().keys().size();
  ASSERT_OK(log.write_snapshot_now());
  ASSERT_OK(second.write_snapshot_now());
  EXPECT_EQ(bucket_.objects().keys().size(), objects + 2);  // the object and its entry
}

// ---- The saved state

class Saved : public LogStateStore {
 public:
  std::optional<Bytes> load(const ModelName&) override { return bytes; }
  void save(const ModelName&, Bytes state) override { bytes = std::move(state); }
  std::optional<Bytes> bytes;
};

TEST_F(StateTest, ASavedStateIsThereAfterARestartWithoutTheBucket) {
  for (int i = 0; i < 10; i++) writer_.publish("v" + std::to_string(i));
  Saved saved;
  ASSERT_OK(ModelLog(bucket_, model_, clock_, &saved).refresh());
  bucket_.set_down(true);
  ModelLog restarted(bucket_, model_, clock_, &saved);
  EXPECT_TRUE(restarted.has_saved());
  EXPECT_EQ(restarted.state()->head, 0u);  // not shown before the bucket was asked
  EXPECT_STATUS(restarted.refresh(), Code::kUnavailable);
  EXPECT_FALSE(restarted.has_saved());
  EXPECT_EQ(describe(*restarted.state()), describe(*replayed()));
  bucket_.set_down(false);
  writer_.publish("new");
  EXPECT_EQ((*restarted.refresh())->head, 11u);
  ModelLog again(bucket_, model_, clock_, &saved);
  bucket_.set_down(true);
  EXPECT_STATUS(again.refresh(), Code::kUnavailable);
  EXPECT_EQ(describe(*again.state()), describe(*replayed()));
}

TEST_F(StateTest, ADamagedSavedStateIsDropped) {
  for (int i = 0; i < 5; i++) writer_.publish("v" + std::to_string(i));
  Saved saved;
  ASSERT_OK(ModelLog(bucket_, model_, clock_, &saved).refresh());
  auto whole = *saved.bytes;
  for (std::size_t at = 0; at < whole.size(); at += 3) {
    saved.bytes = whole;
    (*saved.bytes)[at] ^= std::byte{1};
    ModelLog log(bucket_, model_, clock_, &saved);
    bucket_.set_down(true);
    EXPECT_STATUS(log.refresh(), Code::kUnavailable);
    EXPECT_TRUE(log.state()->head == 0 || describe(*log.state()) == describe(*replayed())) << at;
    bucket_.set_down(false);
    EXPECT_EQ((*log.refresh())->head, 5u);
  }
  saved.bytes = Bytes(whole.begin(), whole.begin() + 20);
  EXPECT_FALSE(ModelLog(bucket_, model_, clock_, &saved).has_saved());
}

TEST_F(StateTest, ASavedStateOfAnotherLogIsDropped) {
  for (int i = 0; i < 5; i++) writer_.publish("v" + std::to_string(i));
  Saved saved;
  ASSERT_OK(ModelLog(bucket_, model_, clock_, &saved).refresh());
  MemoryBucket anew(clock_);  // the bucket was emptied and filled again
  LogWriter writer(anew.objects(), model_);
  for (int n = 0; n < 7; n++) {
    writer.publish("w" + std::to_string(n));
    Saved copy = saved;
    ModelLog log(anew, model_, clock_, &copy);
    auto state = log.refresh();
    ASSERT_OK(state);
    EXPECT_EQ((*state)->head, writer.head());
    EXPECT_NE((*state)->live(version_name("w0")), nullptr);
    EXPECT_FALSE((*state)->broken);
    EXPECT_NE(copy.bytes, saved.bytes);
  }
}

// Whoever has seen (model, 3) may have its files open, and cached under that name.
TEST_F(StateTest, NumbersThatWereShownNeverBecomeOtherVersions) {
  for (int i = 0; i < 5; i++) writer_.publish("v" + std::to_string(i));
  Saved saved;
  ASSERT_OK(ModelLog(bucket_, model_, clock_, &saved).refresh());
  auto shown_offline = std::make_unique<ModelLog>(bucket_, model_, clock_, &saved);
  bucket_.set_down(true);
  EXPECT_STATUS(shown_offline->refresh(), Code::kUnavailable);
  bucket_.set_down(false);
  bucket_.set_hide_list_rights(true);  // each poll looks at the head again
  auto followed = std::make_unique<ModelLog>(bucket_, model_, clock_, nullptr);
  ASSERT_OK(followed->refresh());
  auto before = describe(*followed->state());
  for (const auto& key : bucket_.objects().keys()) ASSERT_OK(bucket_.objects().remove(ObjectKey::of(key)));
  LogWriter writer(bucket_.objects(), model_);
  for (int n = 0; n < 7; n++) {
    writer.publish("w" + std::to_string(n));
    for (auto* log : {shown_offline.get(), followed.get()}) {
      auto state = log->refresh();
      if (state.is_ok()) {
        ASSERT_TRUE((*state)->broken) << n;
      }
      auto without = *log->state();
      without.broken.reset();
      EXPECT_EQ(describe(without), before) << n;
    }
  }
}

// ---- Cost

// Requests and round trips of a fresh reading. With one request at a time and a hook that counts, "at once" cannot be
// seen, so the bound on round trips follows from the requests: all but a few are for entries since the snapshot.
TEST_F(StateTest, OpeningALogCostsNoMoreWhenItIsLonger) {
  std::uint64_t last_snapshot = 0;
  for (std::uint64_t entries : {10, 1'000, 10'000}) {
    while (writer_.head() < entries) {
      writer_.publish("v" + std::to_string(writer_.head()));
      if (writer_.head() - last_snapshot >= std::clamp<std::uint64_t>(last_snapshot / 10, 32, 128)) {
        writer_.snapshot();
        last_snapshot = writer_.head();
      }
    }
    for (std::uint64_t behind : {0, 1, 5}) {  // the hint is a little old
      writer_.hint(writer_.head() - behind);
      bucket_.forget_calls();
      ModelLog log(bucket_, model_, clock_, nullptr);
      ASSERT_OK(log.refresh());
      ASSERT_EQ(log.state()->head, writer_.head());
      auto since = writer_.head() - last_snapshot;
      EXPECT_LE(since, 128u);
      EXPECT_LE(bucket_.calls().size(), since + 20) << entries << " entries";
      bucket_.forget_calls();
      ASSERT_OK(log.refresh());
      EXPECT_EQ(bucket_.calls().size(), 1u);
    }
    // Without a hint it is found by doubling and bisection.
    ASSERT_OK(bucket_.remove(log_hint_key(model_)));
    bucket_.forget_calls();
    ModelLog log(bucket_, model_, clock_, nullptr);
    ASSERT_OK(log.refresh());
    ASSERT_EQ(log.state()->head, writer_.head());
    EXPECT_LE(bucket_.calls().size(), writer_.head() - last_snapshot + 90);
  }
}

}  // namespace
}  // namespace weightfs
