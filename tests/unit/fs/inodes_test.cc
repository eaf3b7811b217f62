#include "fs/inodes.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

NodePtr model(const std::string& name) { return std::make_shared<ModelNode>(*ModelName::parse(name)); }

TEST(InodesTest, OneKeyIsOneNodeWhileTheKernelKnowsIt) {
  Inodes inodes;
  auto first = inodes.look_up(model("a"));
  EXPECT_EQ(inodes.look_up(model("a")), first);
  EXPECT_NE(inodes.look_up(model("b")), first);
  EXPECT_EQ(inodes.find(first->id), first);
  EXPECT_EQ(inodes.known("m/a"), first);
}

TEST(InodesTest, AsManyForgetsAsLookupsEndIt) {
  Inodes inodes;
  auto id = inodes.look_up(model("a"))->id;
  inodes.look_up(model("a"));
  inodes.forget(id, 1);
  EXPECT_NE(inodes.find(id), nullptr);
  inodes.forget(id, 1);
  EXPECT_EQ(inodes.find(id), nullptr);
  EXPECT_EQ(inodes.known("m/a"), nullptr);
}

TEST(InodesTest, ANumberIsNeverUsedAgain) {
  Inodes inodes;
  auto id = inodes.look_up(model("a"))->id;
  inodes.forget(id, 1);
  EXPECT_GT(inodes.look_up(model("a"))->id, id);
}

TEST(InodesTest, TheNumberThatStatShowsOutlivesForgetting) {
  Inodes inodes;
  auto first = inodes.look_up(model("a"));
  auto st_ino = first->st_ino;
  inodes.forget(first->id, 1);
  EXPECT_EQ(inodes.look_up(model("a"))->st_ino, st_ino);
  EXPECT_NE(model("b")->st_ino, st_ino);
}

TEST(InodesTest, TheRootStays) {
  Inodes inodes;
  inodes.forget(1, 100);
  ASSERT_NE(inodes.find(1), nullptr);
  EXPECT_EQ(inodes.find(1)->kind, NodeKind::kRoot);
  EXPECT_EQ(inodes.find(1)->st_ino, 1u);
}

TEST(InodesTest, ForgettingTooMuchOrTheUnknownIsHarmless) {
  Inodes inodes;
  auto id = inodes.look_up(model("a"))->id;
  inodes.forget(id, 1000);
  inodes.forget(id, 1);
  inodes.forget(12345, 1);
  EXPECT_EQ(inodes.size(), 1u);
}

TEST(InodesTest, LatestIsAnotherInodeForEachVersionItPointsTo) {
  auto name = *ModelName::parse("m");
  VersionRecord one{.number = 1, .name = *VersionName::parse("a")}, two{.number = 2, .name = *VersionName::parse("b")};
  EXPECT_NE(LatestNode(name, one).key, LatestNode(name, two).key);
}

}  // namespace
}  // namespace weightfs
