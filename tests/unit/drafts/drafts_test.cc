// Drafts: each rule of publishing, with real folders and scripted publishers, writers and time.
#include "tests/unit/drafts/drafts_fixture.h"

namespace weightfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST_F(DraftsTest, CpBecomesAVersionASecondAfterItsEnd) {
  auto draft = cp("step-1");
  pass(milliseconds(500));
  EXPECT_THAT(publisher_.published(), IsEmpty());
  pass(milliseconds(500));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
  EXPECT_EQ(draft->status().text(), "committed");
  EXPECT_THAT(drafts_->list(), IsEmpty());
  EXPECT_EQ(drafts_->find(model_, "step-1"), nullptr);
  EXPECT_EQ(folder_.record(draft->id()).id, "");
  EXPECT_FALSE(*posix::exists(draft->root()));
  EXPECT_TRUE(was_changed(draft));
  EXPECT_STATUS(draft->begin_change(kCp), Code::kReadOnly);
  EXPECT_OK(commit(draft));
}

TEST_F(DraftsTest, ATrainerAliveGetsThirtySeconds) {
  auto draft = mkdir("step-1");
  write(draft, "pytorch_model.bin");
  pass(seconds(20));
  write(draft, "tokenizer.json");
  pass(milliseconds(29'500));
  EXPECT_THAT(publisher_.published(), IsEmpty());
  EXPECT_THAT(draft->status().text(), StartsWith("draft: complete; published in"));
  pass(milliseconds(500));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, AShellLoopOfManyCpIsOneDraft) {
  auto draft = mkdir("step-1", kCp);  // by mkdir(1)
  watcher_->end(kCp);
  for (pid_t pid = 100; pid < 120; pid++) {
    write(draft, "part-" + std::to_string(pid) + ".bin", pid);
    watcher_->end(pid);
    pass(milliseconds(20));
  }
  pass(seconds(29));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  pass(seconds(2));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, AnotherPidNamespaceGetsThirtySeconds) {
  auto draft = mkdir("step-1", 0);
  write(draft, "pytorch_model.bin", kForeign);
  pass(seconds(29));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  pass(seconds(1));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, WhatIsMissingIsSaidUntilItComes) {
  auto draft = mkdir("step-1");
  write(draft, "m-00001-of-00002.bin");
  watcher_->end(kCp);
  pass(seconds(100));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_EQ(draft->status().text(), "draft: 'm-00002-of-00002.bin' is missing");
  write(draft, "m-00002-of-00002.bin", kOther);
  EXPECT_EQ(draft->status().text(), "draft: being written");
  pass(seconds(30));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, AWriterThatDiesInterruptsAndNamesItsFile) {
  auto draft = mkdir("step-1");
  write(draft, "config.json");
  write(draft, "pytorch_model.bin", kCp, true);
  watcher_->end(kCp, {ProcessEnd::How::kKilled, 9});
  pass(seconds(100));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_EQ(draft->status().text(), "interrupted: 'pytorch_model.bin': its writer died, or ended without closing it");
  EXPECT_TRUE(was_changed(draft));
  EXPECT_EQ(folder_.record(draft->id()).state, "interrupted");
  EXPECT_OK(commit(draft));
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, ACpKilledBetweenTwoFilesOrFailingInterrupts) {
  for (auto how : {ProcessEnd{ProcessEnd::How::kKilled, 2}, ProcessEnd{ProcessEnd::How::kExited, 1}}) {
    auto draft = mkdir("step-" + std::to_string(how.code));
    write(draft, "pytorch_model.bin");
    watcher_->end(kCp, how);
    pass(seconds(100));
    EXPECT_THAT(draft->status().text(), StartsWith("interrupted: its writer cp (process 10) "));
  }
  EXPECT_THAT(publisher_.calls(), IsEmpty());
}

TEST_F(DraftsTest, AWriterThatGotAnErrorInterrupts) {
  auto draft = mkdir("step-1");
  write(draft, "pytorch_model.bin");
  draft->writer_failed(0, Status(Code::kNoSpace, "write: disk full"));
  watcher_->end(kCp);
  pass(seconds(100));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_EQ(draft->status().text(), "interrupted: a writer got an error: write: disk full");
}

TEST_F(DraftsTest, RenamingAnInterruptedTemporaryNamePublishesIt) {
  auto draft = mkdir("step-1.tmp");
  write(draft, "whatever.txt", kCp, true);
  ASSERT_OK(drafts_->rename(draft, "step-1"));
  drafts_->wait_idle();
  EXPECT_THAT(publisher_.published(), ElementsAre("step-1"));
}

TEST_F(DraftsTest, TemporaryNamesAreNeverPublishedByThemselves) {
  for (auto name : {".step", "step.tmp", "step.partial", "tmp-step"}) cp(name);
  pass(seconds(500));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_EQ(drafts_->list(model_).size(), 4u);
  EXPECT_STATUS(commit(drafts_->find(model_, ".step")), Code::kInvalid);
}

TEST_F(DraftsTest, ARenameIsDurableAndFreesTheOldName) {
  auto draft = mkdir("a.tmp");
  EXPECT_EQ(drafts_->find(model_, "a.tmp"), draft);
  ASSERT_OK(drafts_->rename(draft, "b.tmp"));
  EXPECT_EQ(folder_.record(draft->id()).name, "b.tmp");
  EXPECT_EQ(drafts_->find(model_, "a.tmp"), nullptr);
  EXPECT_EQ(drafts_->find(model_, "b.tmp"), draft);
  folder_.fail_next_write(Code::kNoSpace);
  EXPECT_STATUS(drafts_->rename(draft, "c"), Code::kNoSpace);
  EXPECT_EQ(draft->name(), "b.tmp");
  EXPECT_EQ(drafts_->find(model_, "b.tmp"), draft);
  EXPECT_EQ(drafts_->find(model_, "c"), nullptr);
  drafts_->wait_idle();
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_OK(drafts_->rename(draft, "b.tmp"));
}

TEST_F(DraftsTest, NamesAreRefusedThatAreTakenOrNotLegal) {
  live_ = {"old"};
  auto draft = mkdir("new");
  for (auto name : {"old", "new"}) EXPECT_STATUS(drafts_->create(model_, name, kCp, 0755), Code::kExists) << name;
  for (std::string name : {std::string("latest"), std::string("a/b"), std::string(".a/b"), std::string("."),
                           std::string(".."), std::string(), std::string(300, 'a'), std::string("a\0b", 3)}) {
    EXPECT_STATUS(drafts_->create(model_, name, kCp, 0755), Code::kInvalid) << name;
    EXPECT_STATUS(drafts_->rename(draft, name), Code::kInvalid) << name;
  }
  auto other = mkdir("other");
  EXPECT_STATUS(drafts_->rename(other, "old"), Code::kExists);
  EXPECT_STATUS(drafts_->rename(other, "new"), Code::kExists);
  folder_.fail_next_write(Code::kNoSpace);
  EXPECT_STATUS(drafts_->create(model_, "full", kCp, 0755), Code::kNoSpace);
  EXPECT_OK(drafts_->create(model_, "full", kCp, 0755));
  auto elsewhere = ModelName::parse("m2").value();
  EXPECT_OK(drafts_->create(elsewhere, "new", kCp, 0755));
  EXPECT_EQ(drafts_->list(elsewhere).size(), 1u);
  EXPECT_EQ(drafts_->list().size(), 4u);
}

TEST_F(DraftsTest, MkdirsModeIsThatOfTheDirectory) {
  auto draft = drafts_->create(model_, "a", kCp, 01750);
  ASSERT_OK(draft);
  EXPECT_EQ(posix::lstat((*draft)->root())->st_mode & 07777, 01750u);
}

TEST_F(DraftsTest, RmdirTakesAnEmptyDraftOnly) {
  auto draft = mkdir("a");
  write(draft, "f");
  EXPECT_STATUS(drafts_->remove(draft), Code::kExists);
  ASSERT_OK(draft->begin_change(kCp));
  ASSERT_OK(posix::unlink(draft->root() + "/f"));
  draft->end_change();
  ASSERT_OK(drafts_->remove(draft));
  EXPECT_THAT(drafts_->list(), IsEmpty());
  EXPECT_THAT(folder_.drafts(), IsEmpty());
  EXPECT_STATUS(drafts_->remove(draft), Code::kNotFound);
  EXPECT_STATUS(commit(draft), Code::kNotFound);
  mkdir("a");
}

TEST_F(DraftsTest, ACommitPublishesWhateverIsThereAndIsBusyWhileAFileIsOpen) {
  auto draft = mkdir("a");
  EXPECT_OK(draft->writer_opened(1, 1, kCp));
  EXPECT_EQ(draft->writers(), 1);
  EXPECT_STATUS(commit(draft), Code::kBusy);
  draft->flushed(1, kCp, false);
  auto answer = ask(draft);
  EXPECT_FALSE(answer->has_value()) << "its RELEASE is on its way";
  draft->released(1);
  drafts_->wait_idle();
  ASSERT_TRUE(answer->has_value());
  ASSERT_OK(**answer);
  EXPECT_EQ((**answer)->version.str(), "m/a");
}

TEST_F(DraftsTest, ACommitOfAMappedFileIsBusyInTheEnd) {
  auto draft = mkdir("a");
  EXPECT_OK(draft->writer_opened(1, 1, kCp));
  draft->flushed(1, kCp, false);
  auto answer = ask(draft);
  pass(milliseconds(500));
  ASSERT_TRUE(answer->has_value());
  EXPECT_STATUS(**answer, Code::kBusy);
  EXPECT_THAT((*answer)->status().message(), HasSubstr("m/a: 1 file in it open for writing"));
}

TEST_F(DraftsTest, AnAutomaticPublishGivesWayUntilItCommits) {
  publisher_.hold(Hold::kBefore);
  auto draft = cp("a");
  clock_.advance(seconds(1));
  drafts_->run_due();
  publisher_.wait_until_held();
  EXPECT_EQ(draft->status().text(), "publishing");
  EXPECT_EQ(draft->status().total_bytes, 2u);
  ASSERT_OK(draft->begin_change(kOther));
  EXPECT_THAT(draft->status().text(), StartsWith("draft"));
  draft->end_change();
  drafts_->wait_idle();  // the job is cancelled
  publisher_.hold(Hold::kNo);
  EXPECT_THAT(publisher_.published(), IsEmpty());
  pass(seconds(30));
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
  EXPECT_EQ(publisher_.most_at_once(), 1u);
}

TEST_F(DraftsTest, WhatIsAskedForOrCommittingDoesNotGiveWay) {
  publisher_.hold(Hold::kBefore);
  auto asked = mkdir("asked");
  auto answer = ask(asked);
  publisher_.wait_until_held();
  EXPECT_STATUS(asked->begin_change(kCp), Code::kReadOnly);
  EXPECT_STATUS(asked->writer_opened(1, 1, kCp), Code::kReadOnly);
  EXPECT_STATUS(drafts_->rename(asked, "x"), Code::kReadOnly);
  EXPECT_STATUS(drafts_->remove(asked), Code::kBusy);
  EXPECT_STATUS(asked->set_parent({.none = true}), Code::kReadOnly);
  publisher_.hold(Hold::kAfter);
  publisher_.wait_until_held();
  EXPECT_EQ(folder_.record(asked->id()).state, "committing");
  EXPECT_NE(folder_.record(asked->id()).commit_id, "");
  auto second = ask(asked);  // joins
  publisher_.hold(Hold::kNo);
  drafts_->wait_idle();
  EXPECT_OK(answer->value());
  EXPECT_OK(second->value());
  EXPECT_EQ(publisher_.calls().size(), 1u);
}

TEST_F(DraftsTest, TheNameTakenFailsKeepsTheDraftAndAnotherNameRepairsIt) {
  publisher_.fail_after(Code::kExists, false);
  auto draft = cp("a");
  pass(seconds(2));
  EXPECT_EQ(draft->status().text(), "failed: after");
  EXPECT_EQ(folder_.record(draft->id()).state, "failed");
  EXPECT_TRUE(was_changed(draft));
  EXPECT_TRUE(*posix::exists(draft->root() + "/pytorch_model.bin"));
  pass(seconds(500));
  EXPECT_EQ(publisher_.calls().size(), 1u);
  EXPECT_STATUS(commit(draft), Code::kExists) << "each time it is asked";
  publisher_.fail_after(std::nullopt, false);
  ASSERT_OK(drafts_->rename(draft, "b"));
  drafts_->wait_idle();
  EXPECT_THAT(publisher_.published(), ElementsAre("b"));
  EXPECT_NE(publisher_.calls()[0].commit_id, publisher_.calls().back().commit_id);
}

TEST_F(DraftsTest, OutOfReachIsTriedAgainUntilItWorks) {
  publisher_.fail_before(Code::kUnavailable);
  auto draft = cp("a");
  pass(seconds(8));
  EXPECT_EQ(draft->status().text(), "failed: before (it is tried again)");
  EXPECT_GE(publisher_.calls().size(), 3u);
  ASSERT_OK(draft->begin_change(kCp)) << "it is a writable draft";
  draft->end_change();
  publisher_.fail_before(std::nullopt);
  pass(seconds(90));
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
}

TEST_F(DraftsTest, WhileTheOutcomeIsUnknownItIsPublishingAndTriedWithTheSameId) {
  for (bool done : {false, true}) {
    SCOPED_TRACE(done);
    publisher_.fail_after(Code::kUnavailable, done);
    std::string name = done ? "done" : "lost";
    auto draft = cp(name);
    auto before = publisher_.calls().size();
    clock_.advance(seconds(1));
    drafts_->run_due();
    drafts_->wait_idle();
    EXPECT_EQ(draft->status().text(), "publishing");
    EXPECT_STATUS(draft->begin_change(kCp), Code::kReadOnly);
    auto answer = ask(draft);
    drafts_->wait_idle();
    if (!done) {
      EXPECT_FALSE(answer->has_value());
      EXPECT_EQ(draft->status().text(), "publishing");
    }
    publisher_.fail_after(std::nullopt, false);
    pass(seconds(60));
    ASSERT_TRUE(answer->has_value());
    EXPECT_OK(**answer);
    auto calls = publisher_.calls();
    for (std::size_t i = before; i < calls.size(); i++) {
      EXPECT_EQ(calls[i].commit_id, calls[before].commit_id);
      EXPECT_EQ(calls[i].resumed, i > before);
    }
  }
  EXPECT_THAT(publisher_.published(), ElementsAre("done", "lost"));
}

TEST_F(DraftsTest, ALogThatCannotBeReadLeavesTheOutcomeOpenWhateverTheError) {
  publisher_.fail_after(Code::kUnavailable, true);
  auto draft = cp("a");
  clock_.advance(seconds(1));
  drafts_->run_due();
  drafts_->wait_idle();
  for (auto code : {Code::kPermission, Code::kCorrupt, Code::kIo}) {
    publisher_.fail_reading_log(code);
    pass(seconds(60));
    EXPECT_EQ(draft->status().text(), "publishing");
  }
  restart();
  pass(seconds(60));
  EXPECT_EQ(drafts_->find(model_, "a")->status().text(), "publishing");
  publisher_.fail_reading_log(std::nullopt);
  pass(seconds(60));
  EXPECT_THAT(drafts_->list(), IsEmpty());
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
}

TEST_F(DraftsTest, AResumedCommitThatIsNotInTheLogFailsAsAnyOther) {
  publisher_.fail_after(Code::kUnavailable, false);
  auto draft = cp("a");
  clock_.advance(seconds(1));
  drafts_->run_due();
  drafts_->wait_idle();
  EXPECT_EQ(draft->status().text(), "publishing");
  publisher_.fail_before(Code::kPermission);
  pass(seconds(60));
  EXPECT_EQ(draft->status().text(), "failed: before");
}

TEST_F(DraftsTest, ACommitIdThatCannotBeWrittenDownSendsNothing) {
  auto draft = cp("a");
  publisher_.hold(Hold::kBefore);
  clock_.advance(seconds(1));
  drafts_->run_due();
  publisher_.wait_until_held();
  folder_.fail_next_write(Code::kNoSpace);
  publisher_.hold(Hold::kNo);
  drafts_->wait_idle();
  EXPECT_THAT(publisher_.published(), IsEmpty());
  EXPECT_THAT(draft->status().text(), HasSubstr("failed: the commit id cannot be recorded: the disk says no"));
}

TEST_F(DraftsTest, TheParentIsTheNewestUnlessChosenAndChoiceIsDurable) {
  auto draft = mkdir("a");
  EXPECT_EQ(draft->parent()->str(), "m/newest");
  ASSERT_OK(draft->set_parent({.named = VersionRef::parse("other/base").value()}));
  restart();
  draft = drafts_->find(model_, "a");
  ASSERT_TRUE(draft);
  EXPECT_EQ(draft->parent()->str(), "other/base");
  ASSERT_OK(draft->set_parent({.none = true}));
  EXPECT_FALSE(draft->parent());
  folder_.fail_next_write(Code::kIo);
  EXPECT_STATUS(draft->set_parent({}), Code::kIo);
  EXPECT_FALSE(draft->parent());
  ASSERT_OK(commit(draft));
  EXPECT_TRUE(publisher_.calls().back().parent.none);
}

TEST_F(DraftsTest, GrowthIsChargedToTheQuota) {
  auto draft = mkdir("a");
  EXPECT_OK(draft->charge(900));
  EXPECT_STATUS(draft->charge(200), Code::kNoSpace);
}

// Restarts.

TEST_F(DraftsTest, AfterARestartNoDraftIsPublishedByItself) {
  cp("done");
  mkdir("empty");
  cp("temporary.tmp");
  restart();
  pass(seconds(500));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  for (auto name : {"done", "empty", "temporary.tmp"}) {
    auto draft = drafts_->find(model_, name);
    ASSERT_TRUE(draft) << name;
    EXPECT_EQ(draft->status().text(), "interrupted: the daemon restarted before it was published");
  }
  EXPECT_OK(commit(drafts_->find(model_, "done")));
  ASSERT_OK(drafts_->rename(drafts_->find(model_, "temporary.tmp"), "renamed"));
  drafts_->wait_idle();
  EXPECT_THAT(publisher_.published(), ElementsAre("done", "renamed"));
}

TEST_F(DraftsTest, ReasonsOutliveARestart) {
  auto died = mkdir("died");
  write(died, "x.bin", kCp, true);
  publisher_.fail_before(Code::kPermission);
  cp("failed", kOther);
  pass(seconds(2));
  restart();
  EXPECT_THAT(drafts_->find(model_, "died")->status().text(), StartsWith("interrupted: 'x.bin': its writer died"));
  EXPECT_EQ(drafts_->find(model_, "failed")->status().text(), "failed: before");
  pass(seconds(500));
  EXPECT_EQ(publisher_.calls().size(), 1u);
}

TEST_F(DraftsTest, ACommitUnderWayIsResolvedAfterARestart) {
  for (bool done : {false, true}) {
    SCOPED_TRACE(done);
    publisher_.fail_after(Code::kUnavailable, done);
    cp(done ? "done" : "lost");
    clock_.advance(seconds(1));
    drafts_->run_due();
    drafts_->wait_idle();
    auto first = publisher_.calls().back();
    publisher_.fail_after(std::nullopt, false);
    restart();
    drafts_->wait_idle();
    auto last = publisher_.calls().back();
    EXPECT_TRUE(last.resumed);
    EXPECT_EQ(last.commit_id, first.commit_id);
    EXPECT_THAT(drafts_->list(), IsEmpty());
    EXPECT_THAT(folder_.drafts(), IsEmpty());
  }
  EXPECT_THAT(publisher_.published(), ElementsAre("done", "lost"));
}

TEST_F(DraftsTest, WhatWasAskedForGoesOnAfterTheDaemonsEndButNotAfterThePowersEnd) {
  for (bool same_boot : {true, false}) {
    publisher_.hold(Hold::kBefore);
    auto draft = mkdir(same_boot ? "a" : "b");
    write(draft, "x.bin");
    auto answer = ask(draft);
    publisher_.wait_until_held();
    auto record = folder_.record(draft->id());
    EXPECT_EQ(record.state, "publishing");
    drafts_.reset();
    ASSERT_TRUE(answer->has_value());
    EXPECT_STATUS(**answer, Code::kInterrupted);
    EXPECT_EQ(folder_.record(record.id).state, "publishing");
    publisher_.hold(Hold::kNo);
    if (!same_boot) {
      record.extra = R"({"boot":"another","trigger":"asked"})";
      folder_.put_record(record);
    }
    start();
    pass(seconds(2));
  }
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
  EXPECT_THAT(drafts_->find(model_, "b")->status().text(), StartsWith("interrupted"));
}

TEST_F(DraftsTest, ACommittedDraftThatACrashLeftIsNotSeenAgain) {
  folder_.put_record({.id = std::string(32, '1'), .model = "m", .name = "x", .state = "committed"});
  restart();
  EXPECT_THAT(drafts_->list(), IsEmpty());
  EXPECT_THAT(folder_.drafts(), IsEmpty());
}

TEST_F(DraftsTest, TheRecordSaysCommittedBeforeTheFilesGo) {
  std::string id, state;
  on_take_over_ = [&](const std::string&) { state = folder_.record(id).state; };
  id = cp("a")->id();
  pass(seconds(2));
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
  EXPECT_EQ(state, "committed");
}

TEST_F(DraftsTest, HostileRecordsDoNoHarm) {
  folder_.put_record({.id = std::string(32, '1'), .model = "a/b", .name = "x"});
  folder_.put_record({.id = std::string(32, '2'), .model = "m", .name = "latest", .state = "committing"});
  folder_.put_record({.id = std::string(32, '3'), .model = "m", .name = "x", .parent = "///", .extra = "[1"});
  folder_.put_record({.id = std::string(32, '4'), .model = "m", .name = "x", .state = "new words"});
  restart();
  pass(seconds(100));
  EXPECT_EQ(drafts_->list().size(), 3u);
  EXPECT_TRUE(drafts_->find(model_, ".recovered-22222222"));
  EXPECT_TRUE(drafts_->find(model_, "x"));
  EXPECT_TRUE(drafts_->find(model_, ".recovered-44444444"));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
}

// Shutting down.

TEST_F(DraftsTest, UmountPublishesWhatIsDoneAndKeepsTheRest) {
  cp("done");
  auto live = mkdir("live", kOther);
  write(live, "x.bin", kOther);
  auto half = mkdir("half", 30);
  write(half, "x-1-of-2.bin", 30);
  watcher_->end(30);
  drafts_->shut_down(clock_.now() + seconds(60));
  EXPECT_THAT(publisher_.published(), ElementsAre("done"));
  EXPECT_EQ(drafts_->list().size(), 2u);
}

TEST_F(DraftsTest, ShuttingDownWaitsNoLongerThanItsDeadline) {
  publisher_.hold(Hold::kBefore);
  auto draft = mkdir("a");
  auto answer = ask(draft);
  publisher_.wait_until_held();
  drafts_->shut_down(clock_.now());
  ASSERT_TRUE(answer->has_value());
  EXPECT_STATUS(**answer, Code::kInterrupted);
  EXPECT_STATUS(commit(draft), Code::kInterrupted);
  EXPECT_THAT(publisher_.published(), IsEmpty());
}

TEST_F(DraftsTest, AReadOnlyMountListsDraftsAndChangesNothing) {
  cp("a");
  drafts_.reset();
  auto with = options();
  with.read_only = true;
  start(std::move(with));
  auto draft = drafts_->find(model_, "a");
  ASSERT_TRUE(draft);
  EXPECT_STATUS(commit(draft), Code::kReadOnly);
  EXPECT_STATUS(drafts_->rename(draft, "b"), Code::kReadOnly);
  EXPECT_STATUS(drafts_->create(model_, "c", kCp, 0755), Code::kReadOnly);
}

TEST_F(DraftsTest, WithoutADaemonOnlyWhatIsAskedForIsPublished) {
  drafts_.reset();
  auto with = options();
  with.automatic = false;
  start(std::move(with));
  auto draft = cp("a");
  pass(seconds(500));
  EXPECT_THAT(publisher_.calls(), IsEmpty());
  EXPECT_OK(commit(draft));
  EXPECT_THAT(publisher_.published(), ElementsAre("a"));
}

// Real processes and time.

TEST_F(DraftsTest, TheTimerAndTheSystemsWatcherPublishInRealTime) {
  drafts_.reset();
  auto with = options();
  with.clock = nullptr;
  with.timer = true;
  with.settle = milliseconds(1);
  with.watcher = {};
  CondVar told;
  bool gone = false;
  with.changed = [&](auto&) {
    MutexLock lock(mutex_);
    gone = true;
    told.notify_all();
  };
  start(std::move(with));
  pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  auto draft = mkdir("a", child);
  write(draft, "x.bin", child);
  ::kill(child, SIGTERM);
  int status;
  ::waitpid(child, &status, 0);
  {
    MutexLock lock(mutex_);
    while (!gone) told.wait(mutex_);
  }
  // The child was killed: interrupted (or, where the kernel does not say how it ended, published).
  EXPECT_THAT(draft->status().text(), ::testing::AnyOf(HasSubstr("was killed by signal 15"), "committed"));
  drafts_.reset();
}

TEST_F(DraftsTest, ManyThreadsOnManyDrafts) {
  drafts_.reset();
  auto with = options();
  with.clock = nullptr;
  with.timer = true;
  with.settle = with.settle_live = milliseconds(1);
  start(std::move(with));
  std::vector<std::thread> threads;
  std::atomic<int> made = 0;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; i++) {
        auto name = "v" + std::to_string(t) + "-" + std::to_string(i);
        pid_t pid = 100 + t * 20 + i;
        auto draft = drafts_->create(model_, name + (i % 3 ? "" : ".tmp"), pid, 0755);
        if (!draft) continue;
        made++;
        auto& d = **draft;
        WriterHandle handle = 1;
        for (int f = 0; f < 5; f++) {
          if (!d.begin_change(pid)) break;
          posix::write_file_durably(d.root() + "/" + std::to_string(f) + ".bin", as_bytes("x")).ignore("gone");
          if (d.writer_opened(handle, 1, pid)) {
            d.end_change();
            d.changed(pid);
            d.flushed(handle, pid, false);
            d.released(handle++);
          } else {
            d.end_change();
          }
          d.status().text();
        }
        watcher_->end(pid);
        if (i % 3 == 0) drafts_->rename(*draft, name).ignore("");
        if (i % 5 == 0) drafts_->commit(*draft, [](auto) {});
        drafts_->list(model_);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  publisher_.wait_until_published(static_cast<std::size_t>(made));
  EXPECT_EQ(publisher_.published().size(), 80u);
  drafts_.reset();
}

}  // namespace
}  // namespace weightfs
