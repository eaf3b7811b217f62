// Drafts over the real cache, in a process that is killed at each step of a publish. The "bucket" is a folder with a
// file per commit id, made with O_EXCL.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/drafts/drafts.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class DraftsCrashTest : public ::testing::Test {
 protected:
  TempDir dir_;
  Mutex mutex_;
  CondVar changed_;
  const ModelName model_ = ModelName::parse("m").value();

  struct Opened {
    std::unique_ptr<Cache> cache;
    std::unique_ptr<Drafts> drafts;
  };
  // `die`: called at each step of a publish with its number.
  Opened open(const std::function<void(int)>& die) {
    Opened out;
    auto cache = Cache::open({.dir = dir_ / "cache"});
    EXPECT_OK(cache);
    out.cache = std::move(*cache);
    DraftsOptions options;
    options.cache = out.cache.get();
    options.settle = options.settle_live = std::chrono::milliseconds(1);
    options.changed = [this](auto&) {
      MutexLock lock(mutex_);
      changed_.notify_all();
    };
    options.publish = [this, die](const DraftSource& source, const std::string& commit_id, const Progress&,
                                  const CallOptions&) -> Result<PublishResult> {
      PublishResult result{.version = {source.model, VersionName::parse(source.name).value()},
                           .node = {source.model, 1}};
      auto object = dir_ / ("bucket/" + commit_id);
      if (source.resumed && WFS_TRY(posix::exists(object))) return result;
      if (die) die(1);
      if (!source.before_commit()) return Status(Code::kInterrupted, "given up");
      if (die) die(2);
      auto put = WFS_TRY(posix::open(object, O_WRONLY | O_CREAT | O_EXCL));
      WFS_TRY(posix::write_exact(put.get(), as_bytes(source.name)));
      if (die) die(3);
      return result;
    };
    out.drafts = std::move(make_drafts(std::move(options)).value());
    return out;
  }
  // In another process, killed at step `step`.
  void run_and_kill(int step, bool asked, bool rename) {
    pid_t child = ::fork();
    if (child == 0) {
      auto opened = open([step](int at) {
        if (at == step) ::kill(::getpid(), SIGKILL);
      });
      auto draft = *opened.drafts->create(model_, rename ? "v.tmp" : "v", ::getpid(), 0755);
      auto file = draft->root() + "/model.bin";
      draft->begin_change(::getpid()).ignore("");
      posix::write_file_durably(file, as_bytes("weights")).ignore("");
      draft->end_change();
      if (asked) opened.drafts->commit(draft, [](auto) {});
      if (rename) opened.drafts->rename(draft, "v").ignore("");
      while (true) ::pause();
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  std::size_t published() { return posix::list_dir(dir_ / "bucket").value().size(); }
  void wait_until_gone(Drafts& drafts) {
    MutexLock lock(mutex_);
    while (drafts.find(model_, "v")) changed_.wait(mutex_);
  }
};

TEST_F(DraftsCrashTest, KilledAtAnyStepThereIsOneVersionOrADraftThatCanBePublished) {
  for (bool asked : {false, true}) {
    for (bool rename : {false, true}) {
      if (asked && rename) continue;
      for (int step = 1; step <= 3; step++) {
        SCOPED_TRACE(::testing::Message() << "asked " << asked << " rename " << rename << " step " << step);
        ASSERT_OK(posix::remove_tree(dir_ / "cache"));
        ASSERT_OK(posix::remove_tree(dir_ / "bucket"));
        ASSERT_OK(posix::mkdir(dir_ / "bucket"));
        run_and_kill(step, asked, rename);
        EXPECT_EQ(published(), step == 3 ? 1u : 0u);
        auto opened = open({});
        if (step == 1 && !asked && !rename) {
          // The settle rules began it: a restart ends that.
          auto draft = opened.drafts->find(model_, "v");
          ASSERT_TRUE(draft);
          EXPECT_THAT(draft->status().text(), StartsWith("interrupted"));
          EXPECT_TRUE(*posix::exists(draft->root() + "/model.bin"));
          opened.drafts->commit(draft, [](auto) {});
        }
        wait_until_gone(*opened.drafts);
        EXPECT_EQ(published(), 1u);
        opened.drafts.reset();
        EXPECT_TRUE(opened.cache->drafts().empty());
      }
    }
  }
}

TEST_F(DraftsCrashTest, ADraftOutlivesTheDaemonWithNameParentAndReason) {
  ASSERT_OK(posix::mkdir(dir_ / "bucket"));
  {
    auto opened = open({});
    auto draft = *opened.drafts->create(model_, "a.tmp", ::getpid(), 0755);
    ASSERT_OK(draft->set_parent({.named = VersionRef::parse("base/v0").value()}));
    ASSERT_OK(draft->begin_change(::getpid()));
    ASSERT_OK(posix::write_file_durably(draft->root() + "/model.bin", as_bytes("weights")));
    ASSERT_OK(draft->writer_opened(1, posix::lstat(draft->root() + "/model.bin")->st_ino, ::getpid()));
    draft->end_change();
    draft->flushed(1, ::getpid(), true);
    draft->released(1);
    ASSERT_OK(opened.drafts->rename(draft, "b.tmp"));
    opened.drafts.reset();  // joins the thread that writes the reason down
  }
  auto opened = open({});
  auto draft = opened.drafts->find(model_, "b.tmp");
  ASSERT_TRUE(draft);
  EXPECT_EQ(draft->parent()->str(), "base/v0");
  EXPECT_THAT(draft->status().text(), HasSubstr("interrupted: 'model.bin': its writer died"));
  EXPECT_EQ(as_text(*posix::read_file(draft->root() + "/model.bin", 100)), "weights");
  opened.drafts.reset();
}

}  // namespace
}  // namespace weightfs
