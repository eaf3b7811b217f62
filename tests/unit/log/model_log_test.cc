// Finding the head and reading the state, whatever the hint says and whatever is damaged.
#include <gmock/gmock.h>

#include "log_fixture.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;
using ::testing::HasSubstr;

class ModelLogTest : public ::testing::Test {
 protected:
  void fill(std::uint64_t entries) {
    while (writer_.head() < entries) writer_.publish("v" + std::to_string(writer_.head() + 1));
  }
  ModelStatePtr read() {
    auto state = ModelLog(bucket_, model_, clock_, nullptr).refresh();
    EXPECT_OK(state);
    return state.is_ok() ? *state : nullptr;
  }
  std::string key(std::uint64_t number) { return log_entry_key(model_, number).str(); }

  FakeClock clock_;
  MemoryBucket bucket_{clock_};
  ModelName model_ = model_name("m");
  LogWriter writer_{bucket_.objects(), model_};
};

TEST_F(ModelLogTest, AModelThatDoesNotExistHasHeadZero) {
  auto state = read();
  EXPECT_EQ(state->head, 0u);
  EXPECT_EQ(state->latest(), nullptr);
  EXPECT_FALSE(state->broken);
}

TEST_F(ModelLogTest, TheHeadIsFoundWhateverTheHintSays) {
  for (std::uint64_t entries : {1, 2, 3, 8, 9, 10, 11, 17, 31, 100, 250, 1000}) {
    fill(entries);
    for (std::uint64_t hint = 0; hint <= entries + 20; hint += 1 + hint / 7) {
      writer_.hint(hint);
      ASSERT_EQ(read()->head, entries) << "hint " << hint;
    }
    for (auto wrong : {std::uint64_t{1} << 40, (std::uint64_t{1} << 63) - 1}) {
      writer_.hint(wrong);
      ASSERT_EQ(read()->head, entries) << "hint " << wrong;
    }
    for (std::string_view garbage : {"", "x", "{}", R"({"head":-3})"}) {
      bucket_.objects().set_contents(log_hint_key(model_).str(), to_bytes(garbage));
      ASSERT_EQ(read()->head, entries) << "hint '" << garbage << "'";
    }
    ASSERT_OK(bucket_.remove(log_hint_key(model_)));
    ASSERT_EQ(read()->head, entries) << "no hint";
  }
}

TEST_F(ModelLogTest, APollWithoutNewsIsOneRequest) {
  fill(20);
  ModelLog log(bucket_, model_, clock_, nullptr);
  ASSERT_OK(log.refresh());
  bucket_.forget_calls();
  ASSERT_OK(log.refresh());
  EXPECT_EQ(bucket_.calls().size(), 1u);
  fill(21);
  bucket_.forget_calls();
  EXPECT_EQ((*log.refresh())->head, 21u);
  EXPECT_EQ(bucket_.calls().size(), 2u);
}

TEST_F(ModelLogTest, AModelIsEmptyOnlyWhereNoEntryIsFoundOrDamaged) {
  auto logs = [&] { return std::make_unique<ModelLogs>(bucket_, clock_, nullptr); };
  auto fresh = logs();
  EXPECT_STATUS(fresh->refresh_with_bases(model_), Code::kNotFound);
  EXPECT_TRUE(fresh->is_empty(model_));
  fill(1);
  ASSERT_OK(fresh->refresh_with_bases(model_));
  EXPECT_FALSE(fresh->is_empty(model_));
  bucket_.objects().flip_byte(key(1), 3);
  auto damaged = logs();
  EXPECT_STATUS(damaged->refresh_with_bases(model_), Code::kCorrupt);
  EXPECT_FALSE(damaged->is_empty(model_));
}

TEST_F(ModelLogTest, GoingOnFromAStateGivesWhatAFreshReaderSees) {
  ModelLog log(bucket_, model_, clock_, nullptr);
  for (std::uint64_t entries : {1, 2, 4, 13, 40, 41, 300}) {
    fill(entries);
    writer_.hint(entries);
    auto state = log.refresh();
    ASSERT_OK(state);
    EXPECT_EQ(describe(**state), describe(*read()));
    EXPECT_EQ(log.state()->head, entries);
  }
}

TEST_F(ModelLogTest, ADamagedEntryLeavesWhatIsBeforeItReadable) {
  fill(30);
  writer_.hint(30);
  for (std::uint64_t number : {1, 2, 17, 29, 30}) {
    auto whole = bucket_.objects().contents(key(number));
    for (std::size_t at : {std::size_t{3}, whole.size() / 2, whole.size() - 5}) {
      bucket_.objects().flip_byte(key(number), at);
      auto state = read();
      ASSERT_EQ(state->head, number - 1);
      ASSERT_TRUE(state->broken);
      EXPECT_EQ(state->broken->code(), Code::kCorrupt);
      EXPECT_THAT(state->broken->message(), HasSubstr(key(number)));
      bucket_.objects().set_contents(key(number), whole);
    }
    ASSERT_OK(bucket_.remove(log_entry_key(model_, number)));
    auto state = read();
    ASSERT_EQ(state->head, number - 1);
    ASSERT_EQ(state->broken.has_value(), number != 30);
    bucket_.objects().set_contents(key(number), whole);
  }
  EXPECT_EQ(read()->head, 30u);
}

TEST_F(ModelLogTest, AnEntryThatWasExchangedForAnotherIsFoundByTheChain) {
  fill(9);
  MemoryBucket other(clock_);
  LogWriter forger(other.objects(), model_);
  while (forger.head() < 9) forger.publish(forger.head() == 4 ? "forged" : "v" + std::to_string(forger.head() + 1));
  bucket_.objects().set_contents(key(5), other.objects().contents(key(5)));
  auto state = read();
  EXPECT_EQ(state->head, 4u);
  ASSERT_TRUE(state->broken);
  EXPECT_THAT(state->broken->message(), HasSubstr(key(5)));
}

TEST_F(ModelLogTest, ALaterFormatOrKindStopsTheReaderThere) {
  fill(3);
  auto text = std::string(R"({"format":2,"what":"ever"})");
  bucket_.objects().set_contents(key(4), to_bytes(text));
  auto state = read();
  EXPECT_EQ(state->head, 3u);
  ASSERT_TRUE(state->broken);
  EXPECT_EQ(state->broken->code(), Code::kUnsupported);
}

TEST_F(ModelLogTest, ARepairedLogIsNotBrokenAnyMore) {
  fill(5);
  ModelLog log(bucket_, model_, clock_, nullptr);
  bucket_.objects().flip_byte(key(4), 60);
  ASSERT_TRUE((*log.refresh())->broken);
  bucket_.objects().flip_byte(key(4), 60);
  auto state = log.refresh();
  ASSERT_OK(state);
  EXPECT_FALSE((*state)->broken);
  EXPECT_EQ((*state)->head, 5u);
}

TEST_F(ModelLogTest, AnOutageLeavesTheStateAsItWas) {
  fill(5);
  ModelLog log(bucket_, model_, clock_, nullptr);
  ASSERT_OK(log.refresh());
  bucket_.set_down(true);
  EXPECT_STATUS(log.refresh(), Code::kUnavailable);
  EXPECT_EQ(log.state()->head, 5u);
  bucket_.set_down(false);
  EXPECT_OK(log.refresh());
}

TEST_F(ModelLogTest, AFailureOfAnyRequestIsAnErrorOrNoMatter) {
  fill(40);
  writer_.hint(20);
  for (std::uint64_t n = 1;; n++) {
    bucket_.clear_faults();
    bucket_.fail_nth(n);
    ModelLog log(bucket_, model_, clock_, nullptr, {.parallel = 1});
    auto state = log.refresh();
    bool struck = !bucket_.faults_pending();
    if (struck) {
      ASSERT_STATUS(state, Code::kUnavailable) << n;
      EXPECT_EQ(log.state()->head, 0u);
    }
    bucket_.clear_faults();
    state = log.refresh();
    ASSERT_OK(state);
    ASSERT_EQ((*state)->head, 40u);
    if (!struck) break;
  }
}

TEST_F(ModelLogTest, WithoutListRightsAForbiddenNextEntryIsNothingNew) {
  fill(12);
  writer_.hint(9);
  bucket_.set_hide_list_rights(true);
  ModelLog log(bucket_, model_, clock_, nullptr);
  auto state = log.refresh();
  ASSERT_OK(state);
  EXPECT_EQ((*state)->head, 12u);
  ASSERT_OK(log.refresh());
  fill(14);
  EXPECT_EQ((*log.refresh())->head, 14u);
}

TEST_F(ModelLogTest, RightsThatWereTakenAwayAreAnError) {
  fill(12);
  ModelLog log(bucket_, model_, clock_, nullptr);
  ASSERT_OK(log.refresh());
  bucket_.add_fault({.match = {}, .times = 0, .status = {Code::kPermission, "forbidden"}});
  EXPECT_STATUS(log.refresh(), Code::kPermission);
  EXPECT_EQ(log.state()->head, 12u);
}

TEST_F(ModelLogTest, WithoutListRightsAMissingModelCannotBeToldFromAForbiddenOne) {
  bucket_.set_hide_list_rights(true);
  ModelLog log(bucket_, model_, clock_, nullptr);
  EXPECT_STATUS(log.refresh(), Code::kPermission);
  // Appending decides.
  EXPECT_OK(log.append(id_of("a"), [&](const ModelState&) -> Result<decltype(LogEntry::body)> {
    auto entry = publish_of("first");
    entry.edge.to = 1;
    return decltype(LogEntry::body)(entry);
  }));
  EXPECT_EQ((*log.refresh())->head, 1u);
}

}  // namespace
}  // namespace weightfs
