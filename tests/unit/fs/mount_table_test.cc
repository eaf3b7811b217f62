#include "fs/mount_table.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

namespace weightfs {
namespace {

TEST(MountTableTest, LinesAreTakenApart) {
  auto entries = parse_mountinfo(
      "22 28 0:21 / /proc rw,nosuid - proc proc rw\n"
      "99 28 0:52 / /mnt/my\\040models rw,nosuid shared:7 master:1 - fuse.weightfs weightfs rw,user_id=0\n"
      "broken line\n");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[1].mountpoint, "/mnt/my models");
  EXPECT_EQ(entries[1].type, "fuse.weightfs");
  EXPECT_EQ(entries[1].source, "weightfs");
  EXPECT_EQ(device_number(entries[1]), makedev(0, 52));
}

TEST(MountTableTest, ThisMachineHasProcMounted) {
  auto entry = mount_at("/proc");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->type, "proc");
  EXPECT_FALSE(mount_of("/proc/self/status").has_value());  // no weightfs
  EXPECT_FALSE(is_dead_mount("/proc"));
}

TEST(MountTableTest, WhoStandsInADirectoryKeepsItBusy) {
  bool found = false;
  for (const auto& process : busy_processes("/proc/self/fd")) found = found || process.pid == ::getpid();
  EXPECT_FALSE(found);
  char cwd[4096];
  ASSERT_NE(::getcwd(cwd, sizeof(cwd)), nullptr);
  for (const auto& process : busy_processes(cwd)) found = found || process.pid == ::getpid();
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace weightfs
