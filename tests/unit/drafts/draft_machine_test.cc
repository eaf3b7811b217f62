// The draft's state machine, arrow by arrow, with the time in the test's hand.
#include "store/drafts/draft_machine.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace weightfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const ProcessId kCp{100, 7}, kOther{200, 8};

class DraftMachineTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  DraftMachine made_by_cp(bool final_name = true) { return {DraftTimes{}, final_name, kCp, clock_.now()}; }
  DraftMachine made_by_nobody_known() { return {DraftTimes{}, true, std::nullopt, clock_.now()}; }

  // One file written and closed as cp does.
  void write_file(DraftMachine& draft, std::optional<ProcessId> who = kCp, WriterHandle handle = 1) {
    EXPECT_OK(draft.begin_change(who, clock_.now()));
    EXPECT_OK(draft.open_writer(handle, 10 + handle, who, clock_.now()));
    draft.end_change(clock_.now());
    draft.wrote(who, clock_.now());
    draft.flushed(handle, false);
    draft.released(handle, clock_.now());
  }
  void end_cp(DraftMachine& draft, ProcessEnd end = {ProcessEnd::How::kExited, 0}) {
    draft.process_ended(kCp, end, "cp", clock_.now());
  }
  // Goes on to the next wake-up until something is to be done, at most `limit`.
  DraftActions run(DraftMachine& draft, Duration limit = std::chrono::hours(1)) {
    auto end = clock_.now() + limit;
    while (true) {
      auto actions = draft.decide(clock_.now());
      if (actions.check || actions.publish || actions.refuse || !actions.wake || *actions.wake > end) return actions;
      clock_.advance(std::chrono::ceil<Duration>(*actions.wake - clock_.now()));
    }
  }
  DraftActions run_complete(DraftMachine& draft) {
    auto actions = run(draft);
    if (!actions.check) return actions;
    draft.checked(*actions.check, {});
    return run(draft);
  }
  DraftMachine publishing_by_itself() {
    auto draft = made_by_cp();
    write_file(draft);
    end_cp(draft);
    attempt_ = run_complete(draft).publish->attempt;
    return draft;
  }
  void rename(DraftMachine& draft, bool final_name) {
    ASSERT_OK(draft.hold());
    draft.renamed(final_name, clock_.now());
    draft.unhold();
  }
  std::uint64_t attempt_ = 0;
  std::string text(const DraftMachine& draft) { return draft.status(clock_.now()).text(); }
};

TEST_F(DraftMachineTest, TheShortSettleTimeHoldsWhenTheMakerWroteAllAndHasEnded) {
  auto draft = made_by_cp();
  write_file(draft);
  clock_.advance(seconds(10));
  end_cp(draft);
  auto ended = clock_.now();
  auto actions = run_complete(draft);
  ASSERT_TRUE(actions.publish);
  EXPECT_EQ(clock_.now() - ended, seconds(1));
  EXPECT_EQ(text(draft), "publishing");
}

TEST_F(DraftMachineTest, ALivingMakerGetsTheLongSettleTime) {
  auto draft = made_by_cp();
  write_file(draft);
  auto last = clock_.now();
  ASSERT_TRUE(run_complete(draft).publish);
  EXPECT_EQ(clock_.now() - last, seconds(30));
}

TEST_F(DraftMachineTest, AShellLoopOfManyCpIsOneDraft) {
  auto draft = made_by_cp();  // by mkdir, say
  end_cp(draft);
  for (pid_t pid = 1000; pid < 1050; pid++) {
    write_file(draft, ProcessId{pid, 1});
    draft.process_ended({pid, 1}, {ProcessEnd::How::kExited, 0}, "cp", clock_.now());
    clock_.advance(milliseconds(20));
    EXPECT_FALSE(draft.decide(clock_.now()).publish);
  }
  auto last = clock_.now() - milliseconds(20);
  ASSERT_TRUE(run_complete(draft).publish);
  EXPECT_EQ(clock_.now() - last, seconds(30));
}

TEST_F(DraftMachineTest, AWriterThatCannotBeToldGetsTheLongSettleTime) {
  auto foreign = made_by_nobody_known();
  write_file(foreign, std::nullopt);
  auto last = clock_.now();
  ASSERT_TRUE(run_complete(foreign).publish);
  EXPECT_EQ(clock_.now() - last, seconds(30));

  auto mixed = made_by_cp();
  write_file(mixed, std::nullopt);
  end_cp(mixed);
  last = clock_.now();
  ASSERT_TRUE(run_complete(mixed).publish);
  EXPECT_EQ(clock_.now() - last, seconds(30));
}

TEST_F(DraftMachineTest, PagesThatTheKernelWritesBackAreNotAnotherWriter) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  draft.wrote_back(clock_.now());
  draft.flushed(1, false);
  draft.released(1, clock_.now());
  end_cp(draft);
  auto last = clock_.now();
  ASSERT_TRUE(run_complete(draft).publish);
  EXPECT_EQ(clock_.now() - last, seconds(1));
}

TEST_F(DraftMachineTest, EveryChangePutsOffTheSettleTime) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  for (int i = 0; i < 100; i++) {
    clock_.advance(milliseconds(900));
    ASSERT_OK(draft.begin_change(kCp, clock_.now()));
    EXPECT_FALSE(draft.decide(clock_.now()).check);
    draft.end_change(clock_.now());
    EXPECT_FALSE(draft.decide(clock_.now()).check);
  }
  EXPECT_TRUE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, AnOpenHandleCountsUntilItsRelease) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  draft.flushed(1, false);  // close(), but a mapping lives on
  end_cp(draft);
  clock_.advance(std::chrono::hours(5));
  auto actions = draft.decide(clock_.now());
  EXPECT_FALSE(actions.check || actions.publish || actions.wake);
  EXPECT_EQ(text(draft), "draft: 1 file open for writing");
  draft.released(1, clock_.now());
  EXPECT_FALSE(draft.decide(clock_.now()).check);
  EXPECT_TRUE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, NothingIsPublishedInsideABracket) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  ASSERT_OK(draft.begin_change(kCp, clock_.now()));
  clock_.advance(std::chrono::hours(1));
  EXPECT_FALSE(draft.decide(clock_.now()).check);
  EXPECT_OK(draft.ask(clock_.now()));
  EXPECT_FALSE(draft.decide(clock_.now()).publish);
  draft.end_change(clock_.now());
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, WhatIsMissingIsSaidAndHoldsUntilAChange) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  auto actions = run(draft);
  ASSERT_TRUE(actions.check);
  EXPECT_FALSE(draft.decide(clock_.now()).check) << "one check at a time";
  draft.checked(*actions.check, {"'a' is missing", "'b' is missing", "c", "d", "e"});
  EXPECT_EQ(text(draft), "draft: 'a' is missing; 'b' is missing; c; and 2 more");
  actions = run(draft);
  EXPECT_FALSE(actions.publish || actions.check || actions.wake);
  write_file(draft);
  EXPECT_TRUE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, ACheckOfOlderContentsCountsForNothing) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  auto actions = run(draft);
  ASSERT_TRUE(actions.check);
  write_file(draft);
  draft.checked(*actions.check, {});
  EXPECT_FALSE(draft.decide(clock_.now()).publish);
  auto again = run(draft);
  ASSERT_TRUE(again.check);
  EXPECT_NE(*again.check, *actions.check);
}

TEST_F(DraftMachineTest, ALongSettleTimeShowsWhatIsMissingEarly) {
  auto draft = made_by_cp();
  write_file(draft);
  auto last = clock_.now();
  auto actions = run(draft);
  ASSERT_TRUE(actions.check);
  EXPECT_EQ(clock_.now() - last, seconds(1));
  draft.checked(*actions.check, {});
  EXPECT_EQ(text(draft), "draft: complete; published in 29 s unless it changes (30 s after the last change)");
}

TEST_F(DraftMachineTest, ATemporaryNameIsNeverPublishedByItself) {
  auto draft = made_by_cp(false);
  write_file(draft);
  end_cp(draft);
  clock_.advance(std::chrono::hours(10));
  auto actions = draft.decide(clock_.now());
  EXPECT_FALSE(actions.check || actions.publish || actions.wake);
  EXPECT_STATUS(draft.ask(clock_.now()), Code::kInvalid);
  EXPECT_THAT(text(draft), HasSubstr("temporary"));
}

TEST_F(DraftMachineTest, AHandleClosedByTheEndOfItsProcessInterrupts) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 77, kCp, clock_.now()));
  draft.flushed(1, true);
  draft.released(1, clock_.now());
  end_cp(draft);
  EXPECT_EQ(draft.decide(clock_.now()).interrupted, 77u);
  EXPECT_FALSE(draft.decide(clock_.now()).interrupted) << "told once";
  EXPECT_FALSE(run_complete(draft).publish);
  EXPECT_THAT(text(draft), HasSubstr("interrupted: its writer died"));
  write_file(draft);  // does not heal it
  EXPECT_FALSE(run_complete(draft).publish);
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, OnlyTheLastFlushBeforeReleaseTells) {
  auto forked = made_by_cp();
  ASSERT_OK(forked.open_writer(1, 77, kCp, clock_.now()));
  forked.flushed(1, true);   // a child that inherited it ends
  forked.flushed(1, false);  // the writer closes it
  forked.released(1, clock_.now());
  EXPECT_FALSE(forked.interrupted());

  auto two = made_by_cp();  // two handles of one file: each has its own end
  ASSERT_OK(two.open_writer(1, 77, kCp, clock_.now()));
  ASSERT_OK(two.open_writer(2, 77, kOther, clock_.now()));
  two.flushed(1, true);
  two.flushed(2, false);
  two.released(1, clock_.now());
  two.released(2, clock_.now());
  EXPECT_TRUE(two.interrupted());
}

TEST_F(DraftMachineTest, AWriterKilledBeforeItsFirstFlushInterrupts) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 77, kCp, clock_.now()));
  draft.released(1, clock_.now());
  EXPECT_TRUE(draft.interrupted());
}

TEST_F(DraftMachineTest, AWriterThatEndsBadlyBetweenTwoFilesInterrupts) {
  for (auto end : {ProcessEnd{ProcessEnd::How::kKilled, 9}, ProcessEnd{ProcessEnd::How::kExited, 1}}) {
    auto draft = made_by_cp();
    write_file(draft);
    end_cp(draft, end);
    EXPECT_FALSE(run_complete(draft).publish);
    EXPECT_THAT(text(draft), HasSubstr(end.code == 9 ? "cp (process 100) was killed by signal 9"
                                                     : "cp (process 100) ended with status 1"));
  }
  auto draft = made_by_cp();
  write_file(draft, kOther);
  draft.process_ended(kOther, {ProcessEnd::How::kKilled, 2}, "cp", clock_.now());
  EXPECT_FALSE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, AnEndThatNobodySawCountsAsDone) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft, {});
  auto ended = clock_.now();
  ASSERT_TRUE(run_complete(draft).publish);
  EXPECT_EQ(clock_.now() - ended, seconds(1));
}

TEST_F(DraftMachineTest, AWriterThatGotAnErrorInterrupts) {
  auto draft = made_by_cp();
  draft.writer_failed(5, "no space left");
  EXPECT_EQ(draft.decide(clock_.now()).interrupted, 5u);
  write_file(draft);
  end_cp(draft);
  EXPECT_FALSE(run_complete(draft).publish);
  EXPECT_EQ(text(draft), "interrupted: a writer got an error: no space left");
}

TEST_F(DraftMachineTest, ARestartInterrupts) {
  auto draft = made_by_nobody_known();
  draft.interrupt("the daemon restarted");
  EXPECT_FALSE(run_complete(draft).publish);
  EXPECT_EQ(text(draft), "interrupted: the daemon restarted");
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, RenamingATemporaryNamePublishesAtOnceAndWithoutCheck) {
  for (bool interrupted : {false, true}) {
    auto draft = made_by_cp(false);
    write_file(draft);
    if (interrupted) draft.interrupt("x");
    rename(draft, true);
    EXPECT_TRUE(draft.decide(clock_.now()).publish);
    EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kReadOnly);
  }
}

TEST_F(DraftMachineTest, ARenamePublishesWhenTheLastHandleIsGone) {
  auto draft = made_by_cp(false);
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  rename(draft, true);
  EXPECT_FALSE(run(draft).publish);
  draft.flushed(1, false);
  draft.released(1, clock_.now());
  auto last = clock_.now();
  EXPECT_TRUE(run(draft).publish);
  EXPECT_EQ(clock_.now() - last, seconds(1)) << "changed after the rename: at rest first";
}

TEST_F(DraftMachineTest, AWriterThatDiesAfterTheRenameKeepsItFromPublishing) {
  auto draft = made_by_cp(false);
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  rename(draft, true);
  draft.flushed(1, true);
  draft.released(1, clock_.now());
  EXPECT_FALSE(run_complete(draft).publish);
  EXPECT_THAT(text(draft), HasSubstr("interrupted"));
}

TEST_F(DraftMachineTest, AWriterThatDiedBeforeTheRenameDoesNotThoughItsReleaseComesLater) {
  auto draft = made_by_cp(false);
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  draft.flushed(1, true);
  rename(draft, true);
  draft.released(1, clock_.now());
  EXPECT_TRUE(run(draft).publish);
}

TEST_F(DraftMachineTest, BackToATemporaryNameTakesTheWishBack) {
  auto draft = made_by_cp(false);
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  rename(draft, true);
  rename(draft, false);
  draft.flushed(1, false);
  draft.released(1, clock_.now());
  end_cp(draft);
  EXPECT_FALSE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, FromOneFinalNameToAnotherTheSettleRulesGoOn) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  clock_.advance(milliseconds(900));
  rename(draft, true);
  EXPECT_FALSE(draft.decide(clock_.now()).publish);
  EXPECT_TRUE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, ACommitIsBusyWhileAFileIsOpen) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  EXPECT_STATUS(draft.ask(clock_.now()), Code::kBusy);
}

TEST_F(DraftMachineTest, ACommitWaitsALittleForTheReleaseOfWhatSeemsClosed) {
  auto draft = made_by_cp();
  ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
  draft.flushed(1, false);
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_FALSE(draft.decide(clock_.now()).publish);
  draft.released(1, clock_.now());
  EXPECT_TRUE(draft.decide(clock_.now()).publish);

  auto mapped = made_by_cp();
  ASSERT_OK(mapped.open_writer(1, 1, kCp, clock_.now()));
  mapped.flushed(1, false);
  ASSERT_OK(mapped.ask(clock_.now()));
  auto asked = clock_.now();
  auto actions = run(mapped);
  ASSERT_TRUE(actions.refuse);
  EXPECT_EQ(actions.refuse->code(), Code::kBusy);
  EXPECT_EQ(clock_.now() - asked, milliseconds(500));
  mapped.released(1, clock_.now());
  EXPECT_FALSE(mapped.decide(clock_.now()).publish) << "the wish is gone with the answer";
}

TEST_F(DraftMachineTest, ACommitTakesWhateverIsThere) {
  auto draft = made_by_nobody_known();
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, APublishByItselfGivesWayToAChangeUntilItCommits) {
  for (int kind = 0; kind < 3; kind++) {
    auto draft = publishing_by_itself();
    if (kind == 0) {
      ASSERT_OK(draft.begin_change(kCp, clock_.now()));
    }
    if (kind == 1) {
      ASSERT_OK(draft.open_writer(1, 1, kCp, clock_.now()));
    }
    if (kind == 2) rename(draft, true);
    EXPECT_TRUE(draft.decide(clock_.now()).cancel);
    EXPECT_STATUS(draft.enter_commit(attempt_), Code::kInterrupted);
    if (kind == 0) draft.end_change(clock_.now());
    if (kind == 1) {
      draft.flushed(1, false);
      draft.released(1, clock_.now());
    }
    EXPECT_FALSE(run(draft).publish) << "not two jobs at a time";
    draft.finished(attempt_, Status(Code::kInterrupted, "cancelled"), clock_.now());
    auto actions = run_complete(draft);
    ASSERT_TRUE(actions.publish);
    EXPECT_NE(actions.publish->attempt, attempt_);
  }
}

TEST_F(DraftMachineTest, PastTheCommitNothingGivesWay) {
  auto draft = publishing_by_itself();
  ASSERT_OK(draft.enter_commit(attempt_));
  EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kReadOnly);
  EXPECT_STATUS(draft.open_writer(1, 1, kCp, clock_.now()), Code::kReadOnly);
  EXPECT_STATUS(draft.hold(), Code::kReadOnly);
  EXPECT_STATUS(draft.may_remove(), Code::kBusy);
  EXPECT_EQ(text(draft), "publishing");
  draft.finished(attempt_, {}, clock_.now());
  EXPECT_EQ(text(draft), "committed");
  EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kReadOnly);
  EXPECT_STATUS(draft.may_remove(), Code::kReadOnly);
  EXPECT_OK(draft.ask(clock_.now()));
}

TEST_F(DraftMachineTest, ACommitThatJoinsAPublishMakesItFirm) {
  auto draft = publishing_by_itself();
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kReadOnly);
}

TEST_F(DraftMachineTest, TheNameTakenFailsAndKeepsTheDraft) {
  auto draft = publishing_by_itself();
  ASSERT_OK(draft.enter_commit(attempt_));
  draft.finished(attempt_, Status(Code::kExists, "m/v is taken"), clock_.now());
  EXPECT_EQ(text(draft), "failed: m/v is taken");
  auto actions = run(draft);
  EXPECT_FALSE(actions.publish || actions.wake);
  // Another name repairs it.
  rename(draft, true);
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, AChangeOfAFailedDraftStartsTheSettleRulesAgain) {
  auto draft = publishing_by_itself();
  draft.finished(attempt_, Status(Code::kPermission, "no"), clock_.now());
  EXPECT_EQ(text(draft), "failed: no");
  write_file(draft);
  EXPECT_TRUE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, OutOfReachBeforeTheCommitFailsAndIsTriedAgainWithBackOff) {
  auto draft = publishing_by_itself();
  std::vector<std::int64_t> waits;
  for (int i = 0; i < 8; i++) {
    draft.finished(attempt_, Status(Code::kUnavailable, "out of reach"), clock_.now());
    EXPECT_EQ(text(draft), "failed: out of reach (it is tried again)");
    auto failed = clock_.now();
    auto actions = run(draft);
    ASSERT_TRUE(actions.publish);
    EXPECT_FALSE(actions.publish->resumed);
    attempt_ = actions.publish->attempt;
    waits.push_back(std::chrono::duration_cast<seconds>(clock_.now() - failed).count());
  }
  EXPECT_EQ(waits, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 60, 60}));
}

TEST_F(DraftMachineTest, AnAskedForCommitThatFailsIsTheAskersToRepeat) {
  auto draft = made_by_cp();
  write_file(draft);
  ASSERT_OK(draft.ask(clock_.now()));
  auto actions = draft.decide(clock_.now());
  draft.finished(actions.publish->attempt, Status(Code::kUnavailable, "out of reach"), clock_.now());
  EXPECT_EQ(text(draft), "failed: out of reach");
  EXPECT_FALSE(run(draft).publish);
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, WhileNobodyKnowsTheOutcomeItIsPublishingAndNeverFailed) {
  for (auto code : {Code::kUnavailable, Code::kInterrupted}) {
    auto draft = publishing_by_itself();
    ASSERT_OK(draft.enter_commit(attempt_));
    for (int i = 0; i < 20; i++) {
      draft.finished(attempt_, Status(code, "?"), clock_.now());
      EXPECT_EQ(text(draft), "publishing");
      EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kReadOnly);
      auto actions = run(draft);
      ASSERT_TRUE(actions.publish);
      EXPECT_TRUE(actions.publish->resumed);
      EXPECT_EQ(actions.publish->attempt, attempt_);
      EXPECT_OK(draft.enter_commit(attempt_)) << "the same commit, sent again";
    }
    draft.finished(attempt_, {}, clock_.now());
    EXPECT_EQ(text(draft), "committed");
  }
}

TEST_F(DraftMachineTest, ACommitAskedForWhileTheOutcomeIsUnknownAsksAtOnce) {
  auto draft = publishing_by_itself();
  ASSERT_OK(draft.enter_commit(attempt_));
  draft.finished(attempt_, Status(Code::kUnavailable, "?"), clock_.now());
  EXPECT_FALSE(draft.decide(clock_.now()).publish);
  ASSERT_OK(draft.ask(clock_.now()));
  EXPECT_TRUE(draft.decide(clock_.now()).publish);
}

TEST_F(DraftMachineTest, ACommitUnderWayIsResumedAfterARestart) {
  auto draft = made_by_nobody_known();
  draft.interrupt("the daemon restarted");
  draft.resume_commit();
  EXPECT_EQ(text(draft), "publishing");
  auto actions = draft.decide(clock_.now());
  ASSERT_TRUE(actions.publish);
  EXPECT_TRUE(actions.publish->resumed);
  draft.finished(actions.publish->attempt, Status(Code::kExists, "taken"), clock_.now());
  EXPECT_EQ(text(draft), "failed: taken");
  write_file(draft);
  EXPECT_EQ(text(draft), "interrupted: the daemon restarted");
  EXPECT_FALSE(run_complete(draft).publish);
}

TEST_F(DraftMachineTest, ACommitIdThatCannotBeWrittenDownSendsNothing) {
  auto draft = publishing_by_itself();
  ASSERT_OK(draft.enter_commit(attempt_));
  draft.leave_commit(attempt_);
  draft.finished(attempt_, Status(Code::kNoSpace, "disk full"), clock_.now());
  EXPECT_EQ(text(draft), "failed: disk full");
}

TEST_F(DraftMachineTest, ARemovedDraftDoesNothingAnyMore) {
  auto draft = made_by_cp();
  write_file(draft);
  end_cp(draft);
  ASSERT_OK(draft.may_remove());
  draft.remove();
  clock_.advance(seconds(100));
  auto actions = draft.decide(clock_.now());
  EXPECT_FALSE(actions.check || actions.publish || actions.wake);
  EXPECT_STATUS(draft.begin_change(kCp, clock_.now()), Code::kNotFound);
  EXPECT_STATUS(draft.ask(clock_.now()), Code::kNotFound);
}

TEST_F(DraftMachineTest, ShuttingDownDoesNotWaitForTheSettleTimeOfAWriterThatIsGone) {
  auto done = made_by_cp();
  write_file(done);
  end_cp(done);
  auto now = clock_.now();
  done.hurry();
  EXPECT_TRUE(done.under_way(now));
  EXPECT_TRUE(run_complete(done).publish);
  EXPECT_EQ(clock_.now(), now);

  auto live = made_by_cp();
  write_file(live);
  live.hurry();
  EXPECT_FALSE(live.under_way(clock_.now()));
}

TEST_F(DraftMachineTest, GivingUpVoidsAPublishBeforeItsCommitAndRemembersWhoAsked) {
  auto settled = publishing_by_itself();
  settled.give_up();
  EXPECT_TRUE(settled.decide(clock_.now()).cancel);
  EXPECT_STATUS(settled.enter_commit(attempt_), Code::kInterrupted);
  EXPECT_FALSE(settled.asked_for());

  auto renamed = made_by_cp(false);
  rename(renamed, true);
  auto attempt = renamed.decide(clock_.now()).publish->attempt;
  EXPECT_EQ(renamed.asked_for(), PublishTrigger::kRenamed);
  renamed.give_up();
  renamed.finished(attempt, Status(Code::kInterrupted, "stop"), clock_.now());
  EXPECT_EQ(renamed.asked_for(), PublishTrigger::kRenamed);
  EXPECT_FALSE(renamed.decide(clock_.now()).publish);
  EXPECT_STATUS(renamed.ask(clock_.now()), Code::kInterrupted);

  auto committing = publishing_by_itself();
  ASSERT_OK(committing.enter_commit(attempt_));
  committing.give_up();
  EXPECT_TRUE(committing.decide(clock_.now()).cancel);
  committing.finished(attempt_, Status(Code::kInterrupted, "stop"), clock_.now());
  EXPECT_TRUE(committing.committing());
  EXPECT_FALSE(run(committing).publish);
}

// Random events in random order: what must hold whatever happens.
TEST_F(DraftMachineTest, InvariantsHoldUnderRandomEvents) {
  for (unsigned seed = 1; seed <= 3000; seed++) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    bool temporary = random() % 4 == 0;
    DraftMachine draft(DraftTimes{}, !temporary, random() % 5 ? std::optional(kCp) : std::nullopt, clock_.now());
    std::set<WriterHandle> open;
    int brackets = 0;
    std::optional<std::uint64_t> job, entered;
    std::uint64_t next_handle = 1, contents = 0, published = 0;
    bool bad = false, asked = false, was_committed = false, resumed = false;
    for (int step = 0; step < 60; step++) {
      auto who = random() % 3 ? std::optional(kCp) : random() % 2 ? std::optional(kOther) : std::nullopt;
      auto now = clock_.now();
      bool frozen = draft.committing() || was_committed;
      switch (random() % 13) {
        case 0:
        case 1:
          if (draft.open_writer(next_handle, 1, who, now)) {
            EXPECT_FALSE(frozen);
            open.insert(next_handle++);
            contents++;
          }
          break;
        case 2:
          if (!open.empty()) {
            draft.wrote(who, now);
            contents++;
          }
          break;
        case 3:
          if (draft.begin_change(who, now)) {
            EXPECT_FALSE(frozen);
            brackets++;
            contents++;
          }
          break;
        case 4:
          if (brackets > 0) {
            draft.end_change(now);
            brackets--;
          }
          break;
        case 5:
        case 6:
          if (!open.empty()) {
            bool exiting = random() % 8 == 0;
            draft.flushed(*open.begin(), exiting);
            draft.released(*open.begin(), now);
            open.erase(open.begin());
            bad = bad || exiting;
          }
          break;
        case 7:
          draft.process_ended(kCp, {random() % 8 ? ProcessEnd::How::kExited : ProcessEnd::How::kKilled, 0}, "cp", now);
          break;
        case 8:
          if (random() % 3 == 0) asked = draft.ask(now).is_ok() || asked;
          break;
        case 9:
          if (random() % 4 == 0 && draft.hold()) {
            EXPECT_FALSE(frozen);
            bool to_final = random() % 2;
            asked = asked || to_final;
            draft.renamed(to_final, now);
            draft.unhold();
            temporary = !to_final;
          }
          break;
        case 10:
          if (job && resumed && random() % 2) {
            draft.not_committed(*job);
            entered.reset();
            resumed = false;
          }
          if (job && !entered && draft.enter_commit(*job)) {
            entered = job;
            resumed = false;
            EXPECT_EQ(published, contents) << "committed what it has not read";
          }
          break;
        case 11:
          if (job) {
            static constexpr Code kCodes[] = {Code::kOk, Code::kUnavailable, Code::kExists, Code::kInterrupted};
            auto code = entered ? kCodes[random() % 4] : kCodes[1 + random() % 3];
            draft.finished(*job, code == Code::kOk ? Status() : Status(code, "x"), now);
            if (code == Code::kOk) was_committed = true;
            if (entered && code != Code::kUnavailable && code != Code::kInterrupted) entered.reset();
            job.reset();
          }
          break;
        default:
          clock_.advance(milliseconds(random() % 40000));
      }
      auto actions = draft.decide(clock_.now());
      if (actions.check) draft.checked(*actions.check, {});
      if (actions.publish) {
        EXPECT_FALSE(job) << "two jobs at a time";
        EXPECT_TRUE(open.empty() && brackets == 0) << "published while being written";
        EXPECT_FALSE(temporary);
        EXPECT_TRUE(!bad || asked) << "an interrupted draft published by itself";
        job = actions.publish->attempt;
        resumed = actions.publish->resumed;
        EXPECT_EQ(actions.publish->resumed, entered.has_value());
        published = contents;
      }
      EXPECT_EQ(draft.writers(), static_cast<int>(open.size()));
      auto shown = text(draft);
      EXPECT_TRUE(!entered || was_committed || shown == "publishing") << shown;
      EXPECT_TRUE(!was_committed || shown == "committed") << shown;
    }
  }
}

}  // namespace
}  // namespace weightfs
