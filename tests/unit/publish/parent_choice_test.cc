// Another parent than the newest version has to be at least a fifth cheaper.
#include "store/publish/parent_choice.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

TEST(ParentChoiceTest, TheNewestIsTakenUnlessAnotherIsAFifthCheaper) {
  EXPECT_EQ(cheapest_candidate({1000}), 0U);
  EXPECT_EQ(cheapest_candidate({1000, 1000, 1000}), 0U);
  EXPECT_EQ(cheapest_candidate({1000, 801}), 0U);
  EXPECT_EQ(cheapest_candidate({1000, 800}), 1U);
  EXPECT_EQ(cheapest_candidate({1000, 2000, 10}), 2U);
  EXPECT_EQ(cheapest_candidate({1000, 700, 600, 650}), 2U);
  EXPECT_EQ(cheapest_candidate({0, 0}), 0U);
}

}  // namespace
}  // namespace weightfs
