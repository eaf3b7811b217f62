#include "fs/errno.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace weightfs {
namespace {

TEST(ErrnoTest, EveryCodeHasItsOneRow) {
  std::set<Code> seen;
  for (const auto& row : errno_table()) EXPECT_TRUE(seen.insert(row.code).second) << to_string(row.code);
  for (int code = 1; code <= static_cast<int>(Code::kIo); code++) {
    EXPECT_TRUE(seen.contains(static_cast<Code>(code))) << to_string(static_cast<Code>(code));
  }
}

TEST(ErrnoTest, TheAnswersOfTheContract) {
  EXPECT_EQ(Errno::from(Code::kNotFound).value(), ENOENT);
  EXPECT_EQ(Errno::from(Code::kExists).value(), EEXIST);
  EXPECT_EQ(Errno::from(Code::kCorrupt).value(), EIO);
  EXPECT_EQ(Errno::from(Code::kUnavailable).value(), EIO);
  EXPECT_EQ(Errno::from(Code::kPermission).value(), EACCES);
  EXPECT_EQ(Errno::from(Code::kNoSpace).value(), ENOSPC);
  EXPECT_EQ(Errno::from(Code::kBusy).value(), EBUSY);
  EXPECT_EQ(Errno::from(Code::kReadOnly).value(), EROFS);
  EXPECT_EQ(Errno::from(Code::kInterrupted).value(), EINTR);
}

TEST(ErrnoTest, TheNameFitsTheNumber) {
  for (const auto& row : errno_table()) EXPECT_EQ(Errno::from(row.code).name(), row.name);
}

}  // namespace
}  // namespace weightfs
