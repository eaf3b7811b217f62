#include "fs/removals.h"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"

namespace weightfs {
namespace {

// Only what needs no kernel: hiding itself is tested over a mount (mount_test.cc).
TEST(RemovalsTest, AnEmptyVersionHidesAllAndAnotherHidesNothing) {
  FakeClock clock;
  Interrupts interrupts;
  WorkerPool pool("test", 1);
  Removals removals(clock, interrupts, pool, [](const VersionRef&, const CallOptions&) { return Status(); });
  auto tree = [](bool with_file) {
    Manifest manifest{*ModelName::parse("m"), *VersionName::parse("v"), {}, {}};
    if (with_file) manifest.files.push_back(FileEntry{.path = *FilePath::parse("w")});
    VersionRecord record{.number = 1, .name = manifest.version};
    return VersionTree(std::make_shared<Version>(NodeRef{manifest.model, 1}, record, manifest));
  };
  EXPECT_TRUE(removals.hides_all(tree(false), VersionTree::kTop));
  EXPECT_FALSE(removals.hides_all(tree(true), VersionTree::kTop));
  EXPECT_FALSE(removals.hides({*ModelName::parse("m"), 1}, 0));
}

}  // namespace
}  // namespace weightfs
