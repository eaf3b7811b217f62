// Real processes: what /proc and pidfds tell of them.
#include "store/drafts/writers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "tests/support/status_matchers.h"

namespace weightfs {
namespace {

// A child that waits until it is told how to end.
class Child {
 public:
  Child() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      char code = 0;
      ::close(fds[1]);
      auto got = ::read(fds[0], &code, 1);
      ::_exit(got == 1 ? code : 99);
    }
    ::close(fds[0]);
    tell_ = Fd(fds[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      reap();
    }
  }
  pid_t pid() const { return pid_; }
  void exit(char code) { EXPECT_EQ(::write(tell_.get(), &code, 1), 1); }
  void kill(int signal) { ::kill(pid_, signal); }
  void reap() {
    int status;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
  Fd tell_;
};

class WritersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = ProcessWatcher::start([this](ProcessId process, ProcessEnd end, const std::string&) {
      MutexLock lock(mutex_);
      ends_.emplace(process, end);
      changed_.notify_all();
    });
    ASSERT_OK(started);
    watcher_ = std::move(*started);
  }
  ProcessEnd wait_for(ProcessId process) {
    MutexLock lock(mutex_);
    while (!ends_.contains(process)) changed_.wait(mutex_);
    return ends_.at(process);
  }
  std::size_t told() {
    MutexLock lock(mutex_);
    return ends_.size();
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<ProcessId, ProcessEnd> ends_ GUARDED_BY(mutex_);
  std::unique_ptr<ProcessWatcher> watcher_;
};

TEST_F(WritersTest, AThreadBelongsToItsProcess) {
  auto own = watcher_->process_of(::getpid());
  ASSERT_TRUE(own);
  EXPECT_EQ(own->pid, ::getpid());
  EXPECT_GT(own->start, 0u);
  std::optional<ProcessId> of_thread;
  pid_t tid = 0;
  std::thread([&] {
    tid = ::gettid();
    of_thread = watcher_->process_of(tid);
  }).join();
  EXPECT_NE(tid, ::getpid());
  EXPECT_EQ(of_thread, own);
}

TEST_F(WritersTest, WhatCannotBeToldIsNobody) {
  EXPECT_FALSE(watcher_->process_of(0));
  EXPECT_FALSE(watcher_->process_of(-1));
  Child child;
  auto pid = child.pid();
  child.exit(0);
  child.reap();
  EXPECT_FALSE(watcher_->process_of(pid));
}

TEST_F(WritersTest, TheEndIsToldWithItsStatusBeforeAndAfterTheParentTakesNote) {
  for (bool reap : {true, false}) {
    Child fine, failed, killed;
    std::map<Child*, ProcessId> ids;
    for (auto* child : {&fine, &failed, &killed}) {
      ids[child] = watcher_->process_of(child->pid()).value();
      watcher_->watch(ids[child]);
      watcher_->watch(ids[child]);
    }
    fine.exit(0);
    failed.exit(3);
    killed.kill(SIGKILL);
    if (reap) {
      for (auto* child : {&fine, &failed, &killed}) child->reap();
    }
    auto end = wait_for(ids[&fine]);
    EXPECT_FALSE(end.badly());
    for (auto* child : {&failed, &killed}) {
      end = wait_for(ids[child]);
      // An old kernel may not know when the parent is faster than we; it never says that all is well.
      if (end.how != ProcessEnd::How::kUnknown) {
        EXPECT_TRUE(end.badly());
        EXPECT_EQ(end.code, child == &failed ? 3 : SIGKILL);
      }
    }
  }
  EXPECT_EQ(told(), 6u);
}

TEST_F(WritersTest, AWriterGoneBeforeAPidfdIsOpenHasEnded) {
  Child child;
  auto id = watcher_->process_of(child.pid());
  ASSERT_TRUE(id);
  child.exit(0);
  child.reap();
  watcher_->watch(*id);
  EXPECT_EQ(wait_for(*id).how, ProcessEnd::How::kUnknown);
}

TEST_F(WritersTest, AnIdUsedAgainIsAnotherProcess) {
  auto own = watcher_->process_of(::getpid()).value();
  ProcessId before{own.pid, own.start - 1};
  watcher_->watch(before);
  EXPECT_EQ(wait_for(before).how, ProcessEnd::How::kUnknown);
  watcher_->watch(own);
  EXPECT_EQ(told(), 1u);
}

TEST_F(WritersTest, TheWatcherStopsWithProcessesStillWatched) {
  Child child;
  watcher_->watch(watcher_->process_of(child.pid()).value());
  watcher_.reset();
  EXPECT_EQ(told(), 0u);
}

}  // namespace
}  // namespace weightfs
