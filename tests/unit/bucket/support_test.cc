#include <thread>

#include "tests/support/fake_clock.h"
#include "tests/support/memory_bucket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

const ObjectKey kKey = ObjectKey::of("m/log/1");

TEST(FaultyBucketTest, AFaultBeforeLeavesNothingAndOneAfterLosesTheAnswerOnly) {
  MemoryBucket bucket;
  bucket.fail_nth(1);
  EXPECT_STATUS(bucket.put(kKey, as_bytes("a"), IfExists::kFail), Code::kUnavailable);
  EXPECT_FALSE(bucket.objects().has(kKey.str()));
  bucket.fail_nth(1, BucketFault::When::kAfter);
  EXPECT_STATUS(bucket.put(kKey, as_bytes("a"), IfExists::kFail), Code::kUnavailable);
  EXPECT_TRUE(bucket.objects().has(kKey.str()));
  EXPECT_STATUS(bucket.put(kKey, as_bytes("a"), IfExists::kFail), Code::kExists);
  EXPECT_FALSE(bucket.faults_pending());
}

TEST(FaultyBucketTest, FaultsMatchByOperationAndKeyFromTheNthOn) {
  MemoryBucket bucket;
  bucket.add_fault({.match = {BucketOp::kHead, "log/"}, .nth = 2, .times = 0, .status = {Code::kPermission, "no"}});
  ASSERT_OK(bucket.put(kKey, as_bytes("a"), IfExists::kFail));
  EXPECT_OK(bucket.head(kKey));
  EXPECT_STATUS(bucket.head(kKey), Code::kPermission);
  EXPECT_STATUS(bucket.head(kKey), Code::kPermission);
  EXPECT_OK(bucket.get_all(kKey, 10));
  EXPECT_EQ(bucket.count({BucketOp::kHead}), 3u);
  EXPECT_EQ(bucket.calls().at(2).str(), "head m/log/1");
  EXPECT_EQ(bucket.calls().at(2).code, Code::kPermission);
}

TEST(FaultyBucketTest, AHookLetsAnotherActorGoFirst) {
  MemoryBucket mine;
  auto other = mine.another();
  mine.set_hook([&](const BucketCall& call) {
    if (call.op == BucketOp::kPut) {
      ASSERT_OK(other->put(kKey, as_bytes("theirs"), IfExists::kFail));
    }
  });
  EXPECT_STATUS(mine.put(kKey, as_bytes("mine"), IfExists::kFail), Code::kExists);
  EXPECT_EQ(as_text(mine.objects().contents(kKey.str())), "theirs");
}

TEST(FaultyBucketTest, AHeldCallWaitsUntilReleasedOrCancelled) {
  MemoryBucket bucket;
  auto held = bucket.hold_next({BucketOp::kPut});
  std::thread writer([&] { EXPECT_OK(bucket.put(kKey, as_bytes("a"), IfExists::kFail)); });
  held->wait_until_held();
  EXPECT_FALSE(bucket.objects().has(kKey.str()));
  held->release();
  writer.join();
  EXPECT_TRUE(bucket.objects().has(kKey.str()));

  auto token = std::make_shared<CancelToken>();
  held = bucket.hold_next({BucketOp::kGetAll});
  std::thread reader([&] { EXPECT_STATUS(bucket.get_all(kKey, 10, {.cancel = token}), Code::kInterrupted); });
  held->wait_until_held();
  token->cancel();
  reader.join();
}

TEST(FaultyBucketTest, HiddenListRightsMakeAMissingObjectLookForbidden) {
  MemoryBucket bucket;
  bucket.set_hide_list_rights(true);
  EXPECT_STATUS(bucket.head(kKey), Code::kPermission);
  EXPECT_STATUS(bucket.get_all(kKey, 1), Code::kPermission);
  EXPECT_STATUS(bucket.list_prefixes(""), Code::kPermission);
  ASSERT_OK(bucket.put(kKey, as_bytes("a"), IfExists::kFail));
  EXPECT_OK(bucket.head(kKey));
}

TEST(MemoryBucketTest, TheServersTimeIsTheClocks) {
  FakeClock clock;
  MemoryBucket bucket(clock);
  ASSERT_OK(bucket.put(kKey, as_bytes("a"), IfExists::kFail));
  auto then = clock.wall();
  clock.sleep_for(std::chrono::hours(1));
  EXPECT_EQ(bucket.head(kKey)->modified, then);
  EXPECT_EQ(*bucket.server_time(), then + std::chrono::hours(1));
}

}  // namespace
}  // namespace weightfs
