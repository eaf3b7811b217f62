#include "fs/interrupts.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

namespace weightfs {
namespace {

// A process that sleeps until it is told to end; SIGALRM is blocked or not by the test's choice.
class Sleeper {
 public:
  Sleeper() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  ~Sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void end() {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  }

 private:
  pid_t pid_;
};

TEST(InterruptsTest, ARequestOfADeadThreadIsCancelled) {
  Interrupts interrupts;
  Sleeper sleeper;
  std::promise<void> cancelled;
  auto token = interrupts.add(sleeper.pid(), true, [&] {
    cancelled.set_value();
    return true;
  });
  sleeper.end();
  interrupts.interrupted(token);
  cancelled.get_future().wait();
}

TEST(InterruptsTest, AnotherSignalIsLookedAtAgainUntilAFatalOneComes) {
  Interrupts interrupts;
  Sleeper sleeper;
  std::promise<void> cancelled;
  std::atomic<bool> too_early = true;
  auto token = interrupts.add(sleeper.pid(), false, [&] {
    EXPECT_FALSE(too_early);
    cancelled.set_value();
    return true;
  });
  interrupts.interrupted(token);  // no signal is pending there
  too_early = false;
  sleeper.end();
  cancelled.get_future().wait();
}

TEST(InterruptsTest, ACancelThatFoundNothingIsTriedAgain) {
  Interrupts interrupts;
  Sleeper sleeper;
  std::promise<void> cancelled;
  int calls = 0;
  auto token = interrupts.add(sleeper.pid(), false, [&] {
    if (++calls < 3) return false;
    cancelled.set_value();
    return true;
  });
  sleeper.end();
  interrupts.interrupted(token);
  cancelled.get_future().wait();
  EXPECT_EQ(calls, 3);
}

TEST(InterruptsTest, WhoIsRemovedIsNotCancelled) {
  Interrupts interrupts;
  auto token = interrupts.add(0, false, [] {
    ADD_FAILURE();
    return true;
  });
  interrupts.remove(token);
  interrupts.interrupted(token);
  interrupts.cancel_all();
}

TEST(InterruptsTest, AllAreCancelledAtUnmount) {
  Interrupts interrupts;
  int calls = 0;
  for (int i = 0; i < 3; i++) {
    interrupts.add(::getpid(), true, [&] {
      calls++;
      return true;
    });
  }
  interrupts.cancel_all();
  interrupts.cancel_all();
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace weightfs
