#include "fs/version_tree.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

VersionTree tree(const std::vector<std::pair<std::string, FileKind>>& files) {
  Manifest manifest{*ModelName::parse("m"), *VersionName::parse("v"), {}, {}};
  for (const auto& [path, kind] : files) {
    FileEntry entry{.path = *FilePath::parse(path)};
    entry.kind = kind;
    manifest.files.push_back(entry);
  }
  VersionRecord record{.number = 1, .name = manifest.version};
  return VersionTree(std::make_shared<Version>(NodeRef{manifest.model, 1}, record, manifest));
}

const auto kDir = FileKind::kDirectory;
const auto kFile = FileKind::kFile;

TEST(VersionTreeTest, NamesAreFoundWhereTheyAre) {
  auto t = tree({{"a", kDir}, {"a-b", kFile}, {"a/b", kDir}, {"a/b/c", kFile}, {"z", kFile}});
  EXPECT_EQ(t.child(VersionTree::kTop, "a"), 0u);
  EXPECT_EQ(t.child(VersionTree::kTop, "a-b"), 1u);
  EXPECT_EQ(t.child(0, "b"), 2u);
  EXPECT_EQ(t.child(2, "c"), 3u);
  EXPECT_EQ(t.child(VersionTree::kTop, "b"), std::nullopt);
  EXPECT_EQ(t.child(0, "z"), std::nullopt);
  EXPECT_EQ(t.child(4, "z"), std::nullopt);
  EXPECT_EQ(t.parent(3), 2u);
  EXPECT_EQ(t.subdirectories(VersionTree::kTop), 1u);
}

TEST(VersionTreeTest, APathIsWalkedNameByName) {
  auto t = tree({{"a", kDir}, {"a/b", kDir}, {"a/b/c", kFile}});
  EXPECT_EQ(t.find(""), VersionTree::kTop);
  EXPECT_EQ(t.find("a/b/c"), 2u);
  EXPECT_EQ(t.find("a/x"), std::nullopt);
}

TEST(VersionTreeTest, SiblingsComeInTheOrderOfTheirNames) {
  auto t = tree({{"d", kDir}, {"d/a", kFile}, {"d/b", kFile}, {"e", kFile}});
  EXPECT_EQ(t.children(0), (std::vector<std::uint32_t>{1, 2}));
  EXPECT_EQ(t.children(VersionTree::kTop), (std::vector<std::uint32_t>{0, 3}));
}

TEST(VersionTreeTest, AnEmptyVersionHasAnEmptyTop) { EXPECT_TRUE(tree({}).children(VersionTree::kTop).empty()); }

TEST(VersionTreeTest, AnEntryWithoutItsParentIsNotReachable) {
  auto t = tree({{"a/b", kFile}});
  EXPECT_TRUE(t.children(VersionTree::kTop).empty());
  EXPECT_EQ(t.find("a/b"), std::nullopt);
}

}  // namespace
}  // namespace weightfs
