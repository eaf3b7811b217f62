// Every call that rm, gc and snapshots make of the bucket fails once, for every call there is: what lives is read as
// before, and trying again ends where an undisturbed run ends.
#include <gtest/gtest.h>

#include "store/gc.h"
#include "store/log/model_logs.h"
#include "tests/support/checkpoint.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/store_host.h"

namespace weightfs {
namespace {

using testing::CheckpointShape;
using testing::read_tree;
using testing::StoreHost;
using testing::write_checkpoint;

constexpr CheckpointShape kTiny{.shards = 1, .tensors_per_shard = 2, .elements = 2'000};
constexpr std::uint64_t kNeverEnds = 300;
const CallOptions kImpatient{.deadline = std::chrono::milliseconds(1), .cancel = nullptr};

// A bucket with the versions run/0 ← run/1, which live, and run/old, which nothing builds on.
struct World {
  explicit World(std::string steps) : sources(std::move(steps)) {
    StoreHost host(shared);
    host.publish(source(0), "run/0");
    host.publish(source(1), "run/1");
    host.publish(source(2), "run/old", {.none = true, .named = {}});
  }
  std::string source(int step) const { return sources + "/step-" + std::to_string(step); }
  void a_day_passes() { clock.advance(std::chrono::hours(25)); }
  // What a host that never saw a fault reads; nullopt: the version is not there.
  std::optional<bool> reads_right(const std::string& version, int step) {
    StoreHost fresh(shared);
    auto dest = fresh.dir / "out";
    auto status = fresh.get(version, dest);
    if (status.code() == Code::kNotFound) return std::nullopt;
    EXPECT_OK(status);
    return status.is_ok() && read_tree(dest) == read_tree(source(step));
  }
  void expect_the_living() {
    EXPECT_EQ(reads_right("run/0", 0), std::optional(true));
    EXPECT_EQ(reads_right("run/1", 1), std::optional(true));
  }
  Status gc(StoreHost& host, const CallOptions& call = {}) {
    GcOptions options;
    options.call = call;
    auto models = WFS_TRY(gc_bucket(*host.store, options));
    for (auto& one : models) WFS_TRY(std::move(one.result));
    return {};
  }
  // gc until there is nothing left to delete; the objects that are kept besides the log.
  std::set<std::string> settle() {
    for (int pass = 0; pass < 2; pass++) {
      StoreHost host(shared);
      EXPECT_OK(gc(host));
      a_day_passes();
    }
    std::set<std::string> kept;
    for (const auto& key : shared.objects().keys()) {
      if (key.find("/packs/") != std::string::npos || key.find("/manifests/") != std::string::npos) kept.insert(key);
    }
    return kept;
  }

  const std::string sources;
  FakeClock clock;
  MemoryBucket shared{clock};
};

class FailNthGcTest : public ::testing::TestWithParam<BucketFault::When> {
 protected:
  FailNthGcTest() {
    for (int step : {0, 1, 2}) write_checkpoint(dir_ / ("step-" + std::to_string(step)), kTiny, step);
  }
  // Runs `act` on a host whose n-th call fails, then `check` (told the n and what act said); n = 1, 2, … until nothing
  // fails. Each time in a world of its own, made ready by `prepare`.
  template <typename Prepare, typename Act, typename Check>
  void for_every_call(const Prepare& prepare, const Act& act, const Check& check) {
    int failed = 0;
    for (std::uint64_t n = 1;; n++) {
      SCOPED_TRACE("call " + std::to_string(n));
      World world(dir_.path());
      prepare(world);
      StoreHost host(world.shared);
      host.bucket->fail_nth(n, GetParam());
      Status status = act(world, host);
      bool struck = !host.bucket->faults_pending();
      host.bucket->clear_faults();
      check(world, host, status);
      failed += status.is_ok() ? 0 : 1;
      if (!struck || HasFailure()) break;
      ASSERT_LT(n, kNeverEnds) << "it never ends";
    }
    EXPECT_GE(failed, 1);
  }

  TempDir dir_;
};

TEST_P(FailNthGcTest, ARemovalIsDoneOrNotAndCanBeRepeated) {
  auto remove = [](World&, StoreHost& host, const CallOptions& call = {}) {
    return remove_version(*host.store, *VersionRef::parse("run/old"), call);
  };
  for_every_call([](World&) {}, [&](World& world, StoreHost& host) { return remove(world, host, kImpatient); },
                 [&](World& world, StoreHost& host, const Status& status) {
                   auto there = world.reads_right("run/old", 2);
                   EXPECT_TRUE(!there || *there);
                   EXPECT_TRUE(!status.is_ok() || !there);
                   auto again = status.is_ok() ? status : remove(world, host);
                   EXPECT_TRUE(again.is_ok() || again.code() == Code::kNotFound) << again.to_string();
                   EXPECT_FALSE(world.reads_right("run/old", 2));
                   world.expect_the_living();
                 });
}

TEST_P(FailNthGcTest, ACollectionBreaksNothingAndCanBeRepeated) {
  auto garbage = [](World& world) {
    StoreHost host(world.shared);
    ASSERT_OK(remove_version(*host.store, *VersionRef::parse("run/old")));
    world.a_day_passes();
  };
  World undisturbed(dir_.path());
  garbage(undisturbed);
  auto objects = undisturbed.settle().size();
  for_every_call(
      garbage,
      [&](World& world, StoreHost& host) {
        auto first = world.gc(host, kImpatient);
        world.a_day_passes();
        auto second = world.gc(host, kImpatient);
        return first.is_ok() ? second : first;
      },
      [&](World& world, StoreHost&, const Status&) {
        world.expect_the_living();
        EXPECT_EQ(world.settle().size(), objects);
        world.expect_the_living();
        EXPECT_FALSE(world.reads_right("run/old", 2));
      });
}

TEST_P(FailNthGcTest, ASnapshotIsThereOrNotAndTheLogIsReadAsBefore) {
  auto write = [](StoreHost& host, const CallOptions& call = {}) {
    auto& log = host.store->logs().get(*ModelName::parse("run"));
    WFS_TRY(log.refresh(call));
    return log.write_snapshot_now(call);
  };
  for_every_call([](World&) {}, [&](World&, StoreHost& host) { return write(host, kImpatient); },
                 [&](World& world, StoreHost& host, const Status& status) {
                   world.expect_the_living();
                   EXPECT_EQ(world.reads_right("run/old", 2), std::optional(true));
                   auto again = status.is_ok() ? status : write(host);
                   EXPECT_OK(again);
                   world.expect_the_living();
                   StoreHost fresh(world.shared);
                   auto state = fresh.store->refresh_model(*ModelName::parse("run"));
                   ASSERT_OK(state.status());
                   EXPECT_GT((*state)->snapshot, 0u);
                 });
}

INSTANTIATE_TEST_SUITE_P(Faults, FailNthGcTest,
                         ::testing::Values(BucketFault::When::kBefore, BucketFault::When::kAfter),
                         [](const auto& one) { return one.param == BucketFault::When::kBefore ? "Before" : "After"; });

}  // namespace
}  // namespace weightfs
