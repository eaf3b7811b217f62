#include "fs/caller.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weightfs {
namespace {

using internal::maps_file;
using internal::syscall_is_page_fault;
using internal::task_flags;

TEST(CallerTest, MinusOneIsAPageFault) {
  EXPECT_TRUE(syscall_is_page_fault("-1 0x7ffd 0x55\n", 0x400000));
  EXPECT_FALSE(syscall_is_page_fault("0 0x3 0x7f 0x1000 0x0 0x0 0x0 0x7ffd 0x55\n", 0x400000));
  EXPECT_FALSE(syscall_is_page_fault("running\n", 0x400000));
}

TEST(CallerTest, HelpersOfIoUringDoNotFault) {
  EXPECT_FALSE(syscall_is_page_fault("-1 0x0 0x0\n", 0x10));
  EXPECT_FALSE(syscall_is_page_fault("-1 0x0 0x0\n", 0x4000));
}

TEST(CallerTest, FlagsAreFoundBehindAnyName) {
  EXPECT_EQ(task_flags("42 (cp) R 1 42 42 0 -1 4194308 0"), 4194308u);
  EXPECT_EQ(task_flags("42 (a ) b (c)) D 1 42 42 0 -1 4 0"), 4u);
  EXPECT_EQ(task_flags("42 (cp"), 0u);
  EXPECT_EQ(task_flags("42 (cp) R 1"), 0u);
}

PendingSignal pending(const char* thread, const char* process, const char* blocked, const char* ignored,
                      const char* caught) {
  return internal::pending_signal(std::string("Name:\tx\nSigPnd:\t") + thread + "\nShdPnd:\t" + process +
                                  "\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored + "\nSigCgt:\t" + caught + "\n");
}

TEST(CallerTest, KillIsFatalWhateverElse) {
  EXPECT_EQ(pending("0000000000000100", "0", "0", "0", "0"), PendingSignal::kFatal);
  EXPECT_EQ(pending("0", "0000000000000100", "ffffffff", "ffffffff", "ffffffff"), PendingSignal::kFatal);
}

TEST(CallerTest, ASignalThatIsNotCaughtEndsTheProcess) {
  EXPECT_EQ(pending("0", "0000000000004000", "0", "0", "0"), PendingSignal::kFatal);                // SIGTERM
  EXPECT_EQ(pending("0", "0000000000004000", "0", "0000000000004000", "0"), PendingSignal::kNone);  // ignored
  EXPECT_EQ(pending("0", "0000000000004000", "0000000000004000", "0", "0"), PendingSignal::kNone);  // blocked
}

TEST(CallerTest, ACaughtSigintIsSomeonesWish) {
  EXPECT_EQ(pending("0", "0000000000000002", "0", "0", "0000000000000002"), PendingSignal::kPerson);
}

TEST(CallerTest, ChildrenAlarmsAndWindowsEndNothing) {
  EXPECT_EQ(pending("0", "0000000008010000", "0", "0", "0"), PendingSignal::kNone);                 // SIGCHLD, SIGWINCH
  EXPECT_EQ(pending("0", "0000000000002000", "0", "0", "0000000000002000"), PendingSignal::kNone);  // caught SIGALRM
}

TEST(CallerTest, MapsAreMatchedByDeviceAndInode) {
  std::string maps =
      "55d0-55d1 r--p 00000000 fd:00 123  /bin/x\n"
      "7f00-7f10 r--s 00000000 00:34 987654321  /mnt/m/file\n"
      "7ffd-7ffe rw-p 00000000 00:00 0  [stack]\n";
  EXPECT_TRUE(maps_file(maps, makedev(0, 0x34), 987654321));
  EXPECT_FALSE(maps_file(maps, makedev(0, 0x34), 123));
  EXPECT_FALSE(maps_file(maps, makedev(0, 0x35), 987654321));
  EXPECT_FALSE(maps_file("", 0, 0));
}

TEST(CallerTest, AThreadThatIsGoneIsFatal) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(pending_signal(child), PendingSignal::kFatal);
  EXPECT_FALSE(is_exiting(child));
  EXPECT_FALSE(waits_in_page_fault(child, 0, 0));
}

TEST(CallerTest, AProcessThatSleepsIsNeither) {
  EXPECT_EQ(pending_signal(::getpid()), PendingSignal::kNone);
  EXPECT_FALSE(is_exiting(::getpid()));
}

}  // namespace
}  // namespace weightfs
