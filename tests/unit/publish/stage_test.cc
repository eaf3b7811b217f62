// What is uploaded behind the writers of a draft, through a whole store on objects in memory.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "store/draft.h"
#include "store/log/operations.h"
#include "store/publish/stall_watch.h"
#include "tests/support/checkpoint.h"
#include "tests/support/status_matchers.h"
#include "tests/support/store_host.h"

namespace weightfs {
namespace {

using testing::CheckpointShape;
using testing::read_tree;
using testing::write_checkpoint;

// One answer that comes later.
class Answer {
 public:
  void give(Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    changed_.notify_all();
  }
  bool given() {
    MutexLock lock(mutex_);
    return status_.has_value();
  }
  Status wait() {
    MutexLock lock(mutex_);
    while (!status_) changed_.wait(mutex_);
    return *status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<Status> status_ GUARDED_BY(mutex_);
};

class StageTest : public ::testing::Test {
 protected:
  StageTest() : shape_{.shards = 2, .tensors_per_shard = 3, .elements = 700'000} {}

  std::string checkpoint(int step) {
    auto path = dir_ / ("step-" + std::to_string(step));
    write_checkpoint(path, shape_, step);
    return path;
  }
  DraftPtr draft(const std::string& name) {
    return *host().store->drafts().create(*ModelName::parse("run"), name, 0, 0755);
  }
  testing::StoreHost& host() {
    if (!host_) host_.emplace(shared_);
    return *host_;
  }

  // As a program writes a file: in pieces, in order; without the close.
  struct Open {
    WriterHandle handle;
    DraftInode inode;
  };
  Open write(const DraftPtr& draft, const std::string& from, const std::string& to) {
    auto path = draft->root() + "/" + to;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::app).flush();
    auto open = open_file(draft, path);
    std::ifstream in(from, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    std::ofstream out(path, std::ios::binary);
    for (std::size_t at = 0; at < bytes.size(); at += 1 << 20) {
      auto length = std::min<std::size_t>(1 << 20, bytes.size() - at);
      out.write(bytes.data() + at, static_cast<std::streamsize>(length));
      out.flush();
      draft->wrote(0, open.inode, {at, length});
    }
    return open;
  }
  Open open_file(const DraftPtr& draft, const std::string& path) {
    struct stat st{};
    EXPECT_EQ(::stat(path.c_str(), &st), 0);
    Open open{++handles_, st.st_ino};
    EXPECT_OK(draft->begin_change(0));
    EXPECT_OK(draft->writer_opened(open.handle, open.inode, 0));
    draft->read_behind(open.inode, *posix::open(path, O_RDONLY));
    draft->end_change();
    return open;
  }
  Status close(const DraftPtr& draft, const Open& open) {
    Answer answer;
    draft->flushed(open.handle, 0, false);
    draft->close_file(open.inode, [&](Status status) { answer.give(std::move(status)); });
    auto status = answer.wait();
    draft->released(open.handle);
    return status;
  }
  void copy(const DraftPtr& draft, const std::string& source) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source)) {
      auto name = entry.path().lexically_relative(source).string();
      if (entry.is_symlink()) {
        std::filesystem::create_directories((std::filesystem::path(draft->root()) / name).parent_path());
        std::filesystem::copy_symlink(entry.path(), draft->root() + "/" + name);
      } else if (entry.is_regular_file()) {
        EXPECT_OK(close(draft, write(draft, entry.path(), name))) << name;
      } else {
        std::filesystem::create_directories(draft->root() + "/" + name);
      }
    }
  }
  Result<PublishResult> commit(const DraftPtr& draft) {
    Answer done;
    std::optional<Result<PublishResult>> out;
    host().store->drafts().commit(draft, [&](Result<PublishResult> result) {
      out = std::move(result);
      done.give({});
    });
    EXPECT_OK(done.wait());
    return std::move(*out);
  }
  void expect_published(const std::string& version, const std::string& as) {
    testing::StoreHost reader(shared_);
    auto dest = dir_ / ("got-" + version);
    ASSERT_OK(reader.get("run/" + version, dest));
    EXPECT_TRUE(read_tree(dest) == read_tree(as)) << version;
  }
  std::size_t packs_put() { return host().bucket->count({BucketOp::kPutFile, "/packs/"}); }

  TempDir dir_;
  CheckpointShape shape_;
  MemoryBucket shared_;
  std::optional<testing::StoreHost> host_;
  WriterHandle handles_ = 0;
};

constexpr char kShard[] = "model-00001-of-00002.safetensors";

TEST_F(StageTest, CloseSendsTheFileAndTheCommitSendsTheRest) {
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1);
  auto plain = host().publish(source, "other/v1", {.none = false, .named = *VersionRef::parse("run/v0")});
  auto before = packs_put();
  auto one = draft("v1");
  copy(one, source);
  EXPECT_EQ(packs_put() - before, 2u);  // one a shard; what is small waits for the commit
  auto sent = host().bucket->counters().put_bytes.load();
  auto result = commit(one);
  ASSERT_OK(result.status());
  EXPECT_EQ(packs_put() - before, 3u);
  EXPECT_LT(host().bucket->counters().put_bytes - sent, plain.sent_bytes / 4);
  EXPECT_EQ(result->parent->str(), "run/v0");
  EXPECT_LT(static_cast<double>(result->sent_bytes), 1.01 * static_cast<double>(plain.sent_bytes));
  EXPECT_EQ(result->changed_elements, plain.changed_elements);
  EXPECT_EQ(result->total_elements, plain.total_elements);
  expect_published("v1", source);
}

TEST_F(StageTest, WhatIsWrittenAfterTheUploadIsWhatIsPublished) {
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1), later = checkpoint(2);
  auto one = draft("v1");
  copy(one, source);
  // Some blocks are of step 2 now, one of them without a close that anybody could notice.
  for (auto offset : {1'000'000, 2'500'000}) {
    auto open = open_file(one, one->root() + "/" + kShard);
    for (const auto& path : {one->root() + "/" + kShard, source + "/" + kShard}) {
      std::ifstream in(later + "/" + kShard, std::ios::binary);
      std::string bytes(100'000, '\0');
      in.seekg(offset).read(bytes.data(), 100'000);
      std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
      out.seekp(offset).write(bytes.data(), 100'000);
    }
    if (offset == 1'000'000) {
      one->wrote(0, open.inode, {1'000'000, 100'000});
      EXPECT_OK(close(one, open));
    } else {
      one->released(open.handle);
    }
  }
  ASSERT_OK(commit(one).status());
  expect_published("v1", source);
}

TEST_F(StageTest, CloseSaysWhatFailedEachTimeUntilItIsRepaired) {
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1);
  auto one = draft("v1");
  host().bucket->set_read_only(true);
  auto open = write(one, source + "/" + kShard, kShard);
  EXPECT_STATUS(close(one, open), Code::kPermission);
  open = open_file(one, one->root() + "/" + kShard);
  EXPECT_STATUS(close(one, open), Code::kPermission);
  EXPECT_STATUS(commit(one), Code::kPermission);
  EXPECT_STATUS(commit(one), Code::kPermission);
  host().bucket->set_read_only(false);
  open = open_file(one, one->root() + "/" + kShard);
  EXPECT_OK(close(one, open));
  auto before = packs_put();
  ASSERT_OK(commit(one).status());
  EXPECT_EQ(packs_put() - before, 1u);
  auto dest = dir_ / "got";
  ASSERT_OK(host().get("run/v1", dest));
  EXPECT_TRUE(read_tree(dest).at(kShard) == read_tree(source).at(kShard));
}

TEST_F(StageTest, ASmallFilesCloseSaysThatTheBucketTakesNothing) {
  auto one = draft("v1");
  auto source = checkpoint(0);
  host().bucket->set_down(true);
  auto open = write(one, source + "/config.json", "config.json");
  EXPECT_STATUS(close(one, open), Code::kUnavailable);
  host().bucket->set_down(false);
  open = open_file(one, one->root() + "/config.json");
  EXPECT_OK(close(one, open));
}

TEST_F(StageTest, ACommitThatFailedSendsOnlyTheEndAgain) {
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1);
  auto one = draft("v1");
  copy(one, source);
  host().bucket->add_fault({.match = {BucketOp::kPut, "/manifests/"}, .status = {Code::kNoSpace, "quota"}});
  EXPECT_STATUS(commit(one), Code::kNoSpace);
  auto before = packs_put();
  ASSERT_OK(commit(one).status());
  EXPECT_EQ(packs_put() - before, 1u);
  expect_published("v1", source);
}

// Frames of an earlier try must not be taken for frames on the base of the next.
TEST_F(StageTest, ACommitTriedAgainOnAnotherParentIsRightAll) {
  host().publish(checkpoint(0), "run/v0");
  for (bool staged : {false, true}) {
    auto name = staged ? std::string("staged") : std::string("fresh");
    auto source = checkpoint(staged ? 3 : 1);
    auto one = draft(name);
    if (staged) {
      copy(one, source);
    } else {
      std::filesystem::copy(source, one->root(),
                            std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks |
                                std::filesystem::copy_options::overwrite_existing);
    }
    host().bucket->add_fault({.match = {BucketOp::kPut, "/manifests/"}, .status = {Code::kNoSpace, "quota"}});
    EXPECT_STATUS(commit(one), Code::kNoSpace);
    // Step 7 has another header and other tensors than the one before.
    auto other = shape_;
    other.tensors_per_shard = 4;
    other.seed = 7;
    write_checkpoint(dir_ / ("other" + name), other, 7);
    testing::StoreHost elsewhere(shared_);
    elsewhere.publish(dir_ / ("other" + name), "run/between-" + name);
    ASSERT_OK(commit(one).status());
    expect_published(name, source);
  }
}

TEST_F(StageTest, AParentRemovedUnderTheUploadIsNoHarm) {
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1);
  auto one = draft("v1");
  copy(one, source);
  testing::StoreHost elsewhere(shared_);
  elsewhere.store->refresh_model(*ModelName::parse("run")).status().ignore("it is there");
  ASSERT_OK(remove_version(elsewhere.store->logs(), *ModelName::parse("run"), random_id(), *VersionName::parse("v0"))
                .status());
  ASSERT_OK(commit(one).status());
  expect_published("v1", source);
}

TEST_F(StageTest, AFileRemovedBeforeItsCloseSendsNothing) {
  auto one = draft("v1");
  auto source = checkpoint(0);
  auto open = write(one, source + "/" + kShard, kShard);
  std::filesystem::remove(one->root() + "/" + kShard);
  EXPECT_OK(close(one, open));
  EXPECT_EQ(packs_put(), 0u);
}

TEST_F(StageTest, ARemovedDraftAnswersWhoWaits) {
  auto one = draft("v1");
  auto source = checkpoint(0);
  auto held = host().bucket->hold_next({BucketOp::kPutFile, "/packs/"});
  auto open = write(one, source + "/" + kShard, kShard);
  Answer answer;
  auto ticket = one->close_file(open.inode, [&](Status status) { answer.give(std::move(status)); });
  held->wait_until_held();
  EXPECT_FALSE(answer.given());
  ticket.cancel();
  EXPECT_STATUS(answer.wait(), Code::kInterrupted);
  std::filesystem::remove(one->root() + "/" + kShard);
  one->released(open.handle);
  EXPECT_OK(host().store->drafts().remove(one));
  held->release();
}

// What a close waits for may take as long as the network likes; a commit asked for meanwhile does its own asking.
TEST_F(StageTest, ACommitDoesNotWaitForACallOfTheUploadBehindTheWriter) {
  testing::StoreHost(shared_).publish(checkpoint(0), "run/v0");  // so that this host has nothing of it
  auto source = checkpoint(1);
  auto one = draft("v1");
  auto held = host().bucket->hold_next({std::nullopt, "/manifests/"});
  auto open = write(one, source + "/" + kShard, kShard);
  Answer closed, committed;
  auto ticket = one->close_file(open.inode, [&](Status status) { closed.give(std::move(status)); });
  held->wait_until_held();
  one->released(open.handle);
  host().store->drafts().commit(one, [&](Result<PublishResult> result) { committed.give(result.status()); });
  for (int i = 0; i < 1000 && !committed.given(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(committed.given());
  held->release();
  EXPECT_OK(committed.wait());
  closed.wait().ignore("the draft is a version: its bytes are there");
  auto dest = dir_ / "got";
  ASSERT_OK(host().get("run/v1", dest));
  EXPECT_TRUE(read_tree(dest).at(kShard) == read_tree(source).at(kShard));
}

TEST_F(StageTest, TensorsAreSentBehindTheWriterUnderATemporaryName) {
  shape_ = {.shards = 1, .tensors_per_shard = 2, .elements = 12'000'000};
  host().publish(checkpoint(0), "run/v0");
  auto source = checkpoint(1);
  const std::string name = "model-00001-of-00001.safetensors";
  auto one = draft("v1");
  auto open = write(one, source + "/" + name, ".tmpAbC123");
  EXPECT_OK(close(one, open));
  auto sent = host().bucket->counters().put_bytes.load();
  std::filesystem::rename(one->root() + "/.tmpAbC123", one->root() + "/" + name);
  auto result = commit(one);
  ASSERT_OK(result.status());
  EXPECT_LT(host().bucket->counters().put_bytes - sent, result->sent_bytes / 10);
  EXPECT_LT(result->sent_bytes, result->plain_bytes / 20);
  auto dest = dir_ / "got";
  ASSERT_OK(host().get("run/v1", dest));
  EXPECT_TRUE(read_tree(dest).at(name) == read_tree(source).at(name));
}

TEST(StallWatchTest, EndsACallThatMovesNothingAndNoOther) {
  BucketCounters counters;
  auto outer = std::make_shared<CancelToken>();
  StallWatch watch(counters, outer, Duration(300));
  while (!watch.token()->cancelled()) std::this_thread::yield();
  EXPECT_STATUS(watch.explain({Code::kInterrupted, "cancelled"}), Code::kUnavailable);
  EXPECT_STATUS(watch.explain({Code::kPermission, "no"}), Code::kPermission);
  StallWatch cancelled(counters, outer, std::chrono::hours(1));
  outer->cancel();
  while (!cancelled.token()->cancelled()) std::this_thread::yield();
  EXPECT_STATUS(cancelled.explain({Code::kInterrupted, "cancelled"}), Code::kInterrupted);
}

TEST(StallWatchTest, ABodySentOverAndOverIsNoProgressNorAreRequestsOfOthers) {
  BucketCounters counters;
  BucketProgress progress(counters);
  EXPECT_FALSE(progress.moved(false));
  counters.requests = 100;
  EXPECT_FALSE(progress.moved(false));
  counters.put_bytes = 100;
  EXPECT_TRUE(progress.moved(false));
  bool moved = true;
  for (int i = 0; i < 5; i++) {
    counters.retries++;
    counters.put_bytes += 100;
    moved = progress.moved(false);
  }
  EXPECT_FALSE(moved);
  EXPECT_TRUE(progress.moved(true));
  counters.put_bytes += 100;
  EXPECT_TRUE(progress.moved(false));
}

}  // namespace
}  // namespace weightfs
