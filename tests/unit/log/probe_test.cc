#include "store/log/probe.h"

#include <gmock/gmock.h>

#include "log_fixture.h"

namespace weightfs {
namespace {

TEST(ProbeTest, AStoreThatHonoursTheConditionMayBeWrittenAndIsLeftClean) {
  MemoryBucket bucket;
  EXPECT_OK(probe_conditional_put(bucket));
  EXPECT_TRUE(bucket.objects().keys().empty());
}

TEST(ProbeTest, AStoreThatIgnoresOrLacksTheConditionIsReadOnlyAndNamed) {
  MemoryBucket ignores;
  ignores.set_ignore_conditions(true);
  auto status = probe_conditional_put(ignores);
  EXPECT_STATUS(status, Code::kReadOnly);
  EXPECT_THAT(status.message(), ::testing::HasSubstr(ignores.url()));
  EXPECT_TRUE(ignores.objects().keys().empty());
  MemoryBucket refuses;
  refuses.set_refuse_conditions(true);
  EXPECT_STATUS(probe_conditional_put(refuses), Code::kReadOnly);
}

TEST(ProbeTest, AStoreThatIsOutOfReachOrForbidsIsNotCalledReadOnly) {
  MemoryBucket bucket;
  bucket.set_down(true);
  EXPECT_STATUS(probe_conditional_put(bucket), Code::kUnavailable);
  bucket.set_down(false);
  bucket.set_read_only(true);
  EXPECT_STATUS(probe_conditional_put(bucket), Code::kPermission);
}

TEST(ProbeTest, ARepeatedFirstWriteIsNoProofAgainstTheStore) {
  MemoryBucket bucket;
  bucket.fail_nth(1, BucketFault::When::kAfter, {Code::kExists, "our own"});
  EXPECT_OK(probe_conditional_put(bucket));
}

}  // namespace
}  // namespace weightfs
