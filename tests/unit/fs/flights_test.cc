#include "fs/flights.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/support/fake_clock.h"

namespace weightfs {
namespace {

class FlightsTest : public testing::Test {
 protected:
  using Table = Flights<std::string, int>;
  // Joins and returns what will come.
  std::future<Result<int>> join(std::uint64_t waiter, Table::Ask ask, const std::string& key = "k") {
    auto answer = std::make_shared<std::promise<Result<int>>>();
    auto future = answer->get_future();
    flights_.join(key, waiter, Duration(1000), std::move(ask),
                  [answer](const Result<int>& r) { answer->set_value(r); });
    return future;
  }

  FakeClock clock_;
  WorkerPool pool_{"test", 2};
  Table flights_{pool_, clock_, Duration(5000)};
};

TEST_F(FlightsTest, WhoAsksTheSameMeanwhileGetsTheOneAnswer) {
  std::promise<void> go;
  auto held = go.get_future().share();
  std::atomic<int> asked = 0;
  auto ask = [&asked, held](const CallOptions&) -> Result<int> {
    asked++;
    held.wait();
    return 42;
  };
  auto first = join(flights_.new_waiter(), ask), second = join(flights_.new_waiter(), ask);
  go.set_value();
  EXPECT_EQ(*first.get(), 42);
  EXPECT_EQ(*second.get(), 42);
  EXPECT_EQ(asked, 1);
}

TEST_F(FlightsTest, WhoLeavesIsInterruptedAndTheOthersAreNot) {
  std::promise<void> go;
  auto held = go.get_future().share();
  auto ask = [held](const CallOptions& options) -> Result<int> {
    held.wait();
    if (options.cancel->cancelled()) return Status(Code::kInterrupted, "cancelled");
    return 1;
  };
  auto leaver = flights_.new_waiter();
  auto left = join(leaver, ask), stays = join(flights_.new_waiter(), ask);
  EXPECT_TRUE(flights_.leave("k", leaver));
  EXPECT_EQ(left.get().code(), Code::kInterrupted);
  EXPECT_FALSE(flights_.leave("k", leaver));
  go.set_value();
  EXPECT_EQ(*stays.get(), 1);
}

TEST_F(FlightsTest, AQuestionThatNobodyWaitsForIsCancelled) {
  std::promise<void> started, ended;
  auto waiter = flights_.new_waiter();
  auto left = join(waiter, [&](const CallOptions& options) -> Result<int> {
    started.set_value();
    while (!options.cancel->cancelled()) std::this_thread::yield();
    ended.set_value();
    return Status(Code::kInterrupted, "cancelled");
  });
  started.get_future().wait();
  EXPECT_TRUE(flights_.leave("k", waiter));
  ended.get_future().wait();
  EXPECT_EQ(left.get().code(), Code::kInterrupted);
}

TEST_F(FlightsTest, ABucketOutOfReachIsNotAskedAgainForAWhile) {
  int asked = 0;
  auto down = [&](const CallOptions&) -> Result<int> {
    asked++;
    return Status(Code::kUnavailable, "down");
  };
  EXPECT_EQ(join(1, down).get().code(), Code::kUnavailable);
  EXPECT_EQ(join(2, down).get().code(), Code::kUnavailable);
  EXPECT_EQ(asked, 1);
  clock_.advance(Duration(5001));
  EXPECT_EQ(*join(3, [](const CallOptions&) -> Result<int> { return 7; }).get(), 7);
  EXPECT_EQ(asked, 1);
}

TEST_F(FlightsTest, OtherErrorsAreAskedEachTime) {
  int asked = 0;
  auto ask = [&](const CallOptions&) -> Result<int> {
    asked++;
    return Status(Code::kNotFound, "no");
  };
  EXPECT_EQ(join(1, ask).get().code(), Code::kNotFound);
  EXPECT_EQ(join(2, ask).get().code(), Code::kNotFound);
  EXPECT_EQ(asked, 2);
}

TEST_F(FlightsTest, AfterThePoolHasStoppedTheAnswerIsInterrupted) {
  pool_.stop();
  EXPECT_EQ(join(1, [](const CallOptions&) -> Result<int> { return 1; }).get().code(), Code::kInterrupted);
}

}  // namespace
}  // namespace weightfs
