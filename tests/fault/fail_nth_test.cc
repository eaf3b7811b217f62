// Every call of the bucket fails once, for every call there is: afterwards there is the whole version or none, and
// trying again works.
#include <gtest/gtest.h>

#include "store/log/model_logs.h"
#include "tests/support/checkpoint.h"
#include "tests/support/status_matchers.h"
#include "tests/support/store_host.h"

namespace weightfs {
namespace {

using testing::CheckpointShape;
using testing::read_tree;
using testing::StoreHost;
using testing::write_checkpoint;

constexpr CheckpointShape kTiny{.shards = 2, .tensors_per_shard = 2, .elements = 2'000};

class FailNthTest : public ::testing::TestWithParam<BucketFault::When> {
 protected:
  FailNthTest() {
    for (int step : {0, 1}) {
      write_checkpoint(source(step), kTiny, step);
      trees_[step] = read_tree(source(step));
    }
  }
  std::string source(int step) const { return dir_ / ("step-" + std::to_string(step)); }
  // What a host that never saw a fault reads; nullopt: the version is not there.
  std::optional<bool> reads_right(const MemoryBucket& shared, int step) {
    StoreHost fresh(shared);
    auto dest = fresh.dir / "out";
    auto status = fresh.get("run/" + std::to_string(step), dest);
    if (status.code() == Code::kNotFound) return std::nullopt;
    EXPECT_OK(status);
    return status.is_ok() && read_tree(dest) == trees_[step];
  }

  TempDir dir_;
  std::map<std::string, std::string> trees_[2];
};

TEST_P(FailNthTest, APublishIsWholeOrNotThereAndCanBeRepeated) {
  int failed = 0;
  for (std::uint64_t n = 1;; n++) {
    MemoryBucket shared;
    StoreHost(shared).publish(source(0), "run/0");
    StoreHost host(shared);
    host.bucket->fail_nth(n, GetParam());
    auto result = host.try_publish(source(1), "run/1", {}, {.deadline = std::chrono::milliseconds(1)});
    bool struck = !host.bucket->faults_pending();
    host.bucket->clear_faults();
    auto there = reads_right(shared, 1);
    ASSERT_TRUE(!result.is_ok() || there.has_value()) << "call " << n;
    ASSERT_TRUE(!there || *there) << "call " << n;
    if (!result.is_ok()) {
      failed++;
      auto again = host.try_publish(source(1), "run/1");
      ASSERT_TRUE(again.is_ok() || (again.code() == Code::kExists && there))
          << "call " << n << ": " << again.status().to_string();
      ASSERT_EQ(reads_right(shared, 1), std::optional(true)) << "call " << n;
    }
    ASSERT_EQ(reads_right(shared, 0), std::optional(true)) << "call " << n;
    if (!struck) break;
    ASSERT_LT(n, 200u) << "it never ends";
  }
  EXPECT_GT(failed, 3);
}

TEST_P(FailNthTest, AReadIsRightOrFailsAndCanBeRepeated) {
  MemoryBucket shared;
  StoreHost(shared).publish(source(0), "run/0");
  StoreHost(shared).publish(source(1), "run/1");
  int failed = 0;
  for (std::uint64_t n = 1;; n++) {
    StoreHost host(shared);
    host.bucket->fail_nth(n, GetParam());
    auto dest = host.dir / "out";
    auto status = host.get("run/1", dest);
    bool struck = !host.bucket->faults_pending();
    if (!status.is_ok()) {
      failed++;
      host.bucket->clear_faults();
      ASSERT_OK(host.get("run/1", dest)) << "call " << n;
    }
    ASSERT_TRUE(read_tree(dest) == trees_[1]) << "call " << n;
    if (!struck) break;
    ASSERT_LT(n, 200u) << "it never ends";
  }
  EXPECT_GT(failed, 3);
}

INSTANTIATE_TEST_SUITE_P(Faults, FailNthTest, ::testing::Values(BucketFault::When::kBefore, BucketFault::When::kAfter),
                         [](const auto& one) { return one.param == BucketFault::When::kBefore ? "Before" : "After"; });

}  // namespace
}  // namespace weightfs
