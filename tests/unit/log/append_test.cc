// Who gets a number, and what is known after an answer that got lost.
#include <gmock/gmock.h>

#include <thread>

#include "log_fixture.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;
using Body = decltype(LogEntry::body);
using ::testing::HasSubstr;

class AppendTest : public ::testing::Test {
 protected:
  std::unique_ptr<ModelLogs> host(Bucket& bucket) {
    return std::make_unique<ModelLogs>(bucket, clock_, nullptr, LogOptions{.parallel = 1});
  }
  Result<LogEntry> publish_in(ModelLogs& logs, const std::string& version, const std::string& id) {
    return publish(logs, model_, id_of(id), publish_of(version), {.deadline = std::chrono::seconds(30)});
  }
  std::string key(std::uint64_t number) { return log_entry_key(model_, number).str(); }

  FakeClock clock_;
  MemoryBucket bucket_{clock_};
  ModelName model_ = model_name("m");
};

TEST_F(AppendTest, TheSecondWriterOfANumberTakesTheNext) {
  auto other_bucket = bucket_.another();
  auto a = host(bucket_), b = host(*other_bucket);
  ASSERT_OK(publish_in(*a, "v1", "a1"));
  ASSERT_OK(publish_in(*b, "v2", "b1"));
  auto third = publish_in(*a, "v3", "a2");
  ASSERT_OK(third);
  EXPECT_EQ(third->number, 3u);
  auto fresh = host(bucket_)->get(model_).refresh();
  EXPECT_EQ((*fresh)->live_versions().size(), 3u);
  EXPECT_FALSE((*fresh)->broken);
}

TEST_F(AppendTest, OfTwoWritersOfOneNameTheSecondGetsExists) {
  auto a = host(bucket_), b = host(bucket_);
  ASSERT_OK(publish_in(*a, "v", "a"));
  EXPECT_STATUS(publish_in(*b, "v", "b"), Code::kExists);
}

TEST_F(AppendTest, ALostAnswerIsAskedForUntilItIsKnown) {
  for (auto when : {BucketFault::When::kBefore, BucketFault::When::kAfter}) {
    for (auto code : {Code::kUnavailable, Code::kExists, Code::kPermission, Code::kNoSpace, Code::kCorrupt}) {
      MemoryBucket bucket(clock_);
      auto logs = host(bucket);
      ASSERT_OK(publish_in(*logs, "v1", "a1"));
      bucket.add_fault({.match = {BucketOp::kPut, "/log/0"}, .when = when, .status = {code, "lost"}});
      auto second = publish_in(*logs, "v2", "a2");
      bool was_refused = when == BucketFault::When::kBefore && (code == Code::kPermission || code == Code::kNoSpace);
      EXPECT_STATUS(second, was_refused ? code : Code::kOk);
      auto state = host(bucket)->get(model_).refresh();
      EXPECT_EQ((*state)->head, was_refused ? 1u : 2u);
    }
  }
}

TEST_F(AppendTest, AnotherWritersEntryAfterALostAnswerIsALossAndTheNextNumberIsTaken) {
  auto other = bucket_.another();
  auto a = host(bucket_), b = host(*other);
  ASSERT_OK(publish_in(*a, "v1", "a1"));
  bucket_.add_fault({.match = {BucketOp::kPut, "/log/0"}});
  bucket_.set_hook([&](const BucketCall& call) {
    if (call.op != BucketOp::kPut || b == nullptr) return;
    EXPECT_OK(publish_in(*b, "other", "b1"));
    b.reset();
  });
  auto mine = publish_in(*a, "v2", "a2");
  ASSERT_OK(mine);
  EXPECT_EQ(mine->number, 3u);
}

TEST_F(AppendTest, UnknownAtTheDeadlineIsUnavailableAndTheSameIdIsNotWrittenTwice) {
  auto logs = host(bucket_);
  ASSERT_OK(publish_in(*logs, "v1", "a1"));
  // The PUT is done, but from then on nothing can be asked.
  bucket_.add_fault({.match = {BucketOp::kPut, key(2)}, .when = BucketFault::When::kAfter});
  bucket_.add_fault({.match = {BucketOp::kGetAll, ""}, .nth = 2, .times = 0});
  EXPECT_STATUS(publish_in(*logs, "v2", "a2"), Code::kUnavailable);
  bucket_.clear_faults();
  auto again = publish_in(*logs, "v2", "a2");
  ASSERT_OK(again);
  EXPECT_EQ(again->number, 2u);
  // Also for one who starts anew, and when others have come since.
  ASSERT_OK(publish_in(*logs, "v3", "a3"));
  auto restarted = publish_in(*host(bucket_), "v2", "a2");
  ASSERT_OK(restarted);
  EXPECT_EQ(restarted->number, 2u);
  EXPECT_EQ((*host(bucket_)->get(model_).refresh())->head, 3u);
}

TEST_F(AppendTest, ACommitThatMayYetLandHasNotFailed) {
  for (auto code : {Code::kUnavailable, Code::kCorrupt}) {  // kCorrupt: the answer is of some gateway on the way
    MemoryBucket bucket(clock_);
    auto logs = host(bucket);
    ASSERT_OK(publish_in(*logs, "v1", "a1"));
    // Not done, as far as one can see; it may be on its way.
    bucket.add_fault({.match = {BucketOp::kPut, key(2)}, .status = {code, "no answer"}});
    int calls = 0;
    auto result = logs->get(model_).append(id_of("x"),
                                           [&](const ModelState&) -> Result<Body> {
                                             if (++calls > 1)
                                               return Status(Code::kNotFound, "the condition does not hold any more");
                                             return Body(RemoveEntry{1, version_name("v1")});
                                           },
                                           {.deadline = std::chrono::seconds(5)});
    EXPECT_STATUS(result, Code::kUnavailable) << to_string(code);
  }
}

TEST_F(AppendTest, NothingIsAppendedToABrokenLog) {
  auto logs = host(bucket_);
  ASSERT_OK(publish_in(*logs, "v1", "a1"));
  ASSERT_OK(publish_in(*logs, "v2", "a2"));
  bucket_.objects().flip_byte(key(2), 50);
  auto fresh = host(bucket_);
  auto result = publish_in(*fresh, "v3", "a3");
  EXPECT_STATUS(result, Code::kCorrupt);
  EXPECT_THAT(result.status().message(), HasSubstr(key(2)));
  EXPECT_FALSE(bucket_.objects().has(key(3)));
}

TEST_F(AppendTest, AStoreWithoutConditionalWritesIsReadOnly) {
  bucket_.set_refuse_conditions(true);
  EXPECT_STATUS(publish_in(*host(bucket_), "v1", "a1"), Code::kReadOnly);
}

TEST_F(AppendTest, TheHintFollowsAndItsFailureDoesNotMatter) {
  auto logs = host(bucket_);
  ASSERT_OK(publish_in(*logs, "v1", "a1"));
  EXPECT_EQ(as_text(bucket_.objects().contents("m/log/hint")), R"({"head":1})");
  bucket_.add_fault({.match = {BucketOp::kPut, "hint"}});
  ASSERT_OK(publish_in(*logs, "v2", "a2"));
  EXPECT_EQ((*host(bucket_)->get(model_).refresh())->head, 2u);
}

TEST_F(AppendTest, ACancelledAppendEndsSoon) {
  auto logs = host(bucket_);
  auto cancel = std::make_shared<CancelToken>();
  cancel->cancel();
  CallOptions options{.cancel = cancel};
  EXPECT_STATUS(publish(*logs, model_, id_of("a"), publish_of("v1"), options), Code::kInterrupted);
}

TEST_F(AppendTest, ManyThreadsOnOneLogAndManyHostsLoseNothing) {
  constexpr int kHosts = 3, kThreads = 3, kEach = 8;
  std::vector<std::unique_ptr<MemoryBucket>> buckets;
  std::vector<std::unique_ptr<ModelLogs>> hosts;
  for (int h = 0; h < kHosts; h++) {
    buckets.push_back(bucket_.another());
    hosts.push_back(std::make_unique<ModelLogs>(*buckets.back(), Clock::system(), nullptr));
  }
  {
    std::vector<std::jthread> threads;
    for (int h = 0; h < kHosts; h++) {
      for (int t = 0; t < kThreads; t++) {
        threads.emplace_back([&, h, t] {
          for (int i = 0; i < kEach; i++) {
            auto name = std::to_string(h) + "-" + std::to_string(t) + "-" + std::to_string(i);
            EXPECT_OK(publish(*hosts[h], model_, id_of(name), publish_of(name), {}));
          }
        });
      }
    }
  }
  auto state = host(bucket_)->get(model_).refresh();
  EXPECT_EQ((*state)->head, kHosts * kThreads * kEach);
  EXPECT_EQ((*state)->live_versions().size(), kHosts * kThreads * kEach);
  EXPECT_FALSE((*state)->broken);
}

}  // namespace
}  // namespace weightfs
