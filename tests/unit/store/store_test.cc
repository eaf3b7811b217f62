// The whole library without a mount: publish here, read there.
#include "store/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "store/log/model_logs.h"
#include "store/publish/compactor.h"
#include "tests/support/checkpoint.h"
#include "tests/support/memory_bucket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/store_host.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using testing::CheckpointShape;
using testing::read_tree;
using testing::write_checkpoint;

using Host = testing::StoreHost;

class StoreTest : public ::testing::Test {
 protected:
  std::string checkpoint(int step, CheckpointShape shape = {}) {
    auto path = dir_ / ("step-" + std::to_string(step));
    write_checkpoint(path, shape, step);
    return path;
  }
  TempDir dir_;
  MemoryBucket shared_;
};

TEST_F(StoreTest, AChainIsReadBackByteForByteOnAnotherHost) {
  Host trainer(shared_);
  for (int step = 0; step < 4; step++) {
    auto result = trainer.publish(checkpoint(step), "run/step-" + std::to_string(step));
    if (step > 0) {
      EXPECT_EQ(result.parent->str(), "run/step-" + std::to_string(step - 1));
      EXPECT_GT(result.changed_elements, 0u);
      EXPECT_LT(result.sent_bytes, result.plain_bytes / 20);
    }
  }
  for (int step = 3; step >= 0; step--) {  // the last one cold: along the whole chain
    Host reader(shared_);
    auto dest = dir_ / ("got-" + std::to_string(step));
    ASSERT_OK(reader.get("run/step-" + std::to_string(step), dest));
    EXPECT_TRUE(read_tree(dest) == read_tree(dir_ / ("step-" + std::to_string(step)))) << step;
  }
}

TEST_F(StoreTest, AFollowerFetchesOnlyTheDelta) {
  Host trainer(shared_), reader(shared_);
  trainer.publish(checkpoint(0), "run/a");
  ASSERT_OK(reader.get("run/a", dir_ / "got-a"));
  auto result = trainer.publish(checkpoint(1), "run/b");
  auto before = reader.got();
  ASSERT_OK(reader.get("run/b", dir_ / "got-b"));
  EXPECT_LT(reader.got() - before, result.sent_bytes + 8192);
  EXPECT_TRUE(read_tree(dir_ / "got-b") == read_tree(dir_ / "step-1"));
}

TEST_F(StoreTest, OneTensorOfAColdVersionMovesLittle) {
  Host trainer(shared_);
  CheckpointShape big{.shards = 2, .tensors_per_shard = 4, .elements = 4'000'000};
  trainer.publish(checkpoint(0, big), "run/a");
  Host reader(shared_);
  auto version = *reader.store->find_version(*ModelName::parse("run"), "a");
  std::uint32_t file = 0;
  while (version->manifest().files[file].path.str() != "model-00002-of-00002.safetensors") file++;
  auto opened = *reader.store->open_file(version, file);
  auto before = reader.got();
  std::optional<Result<Bytes>> answer;
  Mutex mutex;
  CondVar changed;
  opened->read({9'000'000, 100'000}, false, [&](Result<Bytes> result) {
    MutexLock lock(mutex);
    answer = std::move(result);
    changed.notify_all();
  });
  MutexLock lock(mutex);
  while (!answer) changed.wait(mutex);
  ASSERT_TRUE(answer->is_ok()) << answer->status().to_string();
  auto whole = read_tree(dir_ / "step-0").at("model-00002-of-00002.safetensors").substr(5);
  EXPECT_TRUE(as_text(**answer) == std::string_view(whole).substr(9'000'000, 100'000));
  EXPECT_LT(reader.got() - before, 2u << 20);
}

TEST_F(StoreTest, ATakenNameIsRefusedAndAForkBuildsOnAnotherModel) {
  Host trainer(shared_);
  trainer.publish(checkpoint(0), "base/a");
  auto again = trainer.store->publish(checkpoint(1), *VersionRef::parse("base/a"), {});
  EXPECT_EQ(again.code(), Code::kExists);
  auto fork = trainer.publish(dir_ / "step-1", "fork/b", {.none = false, .named = *VersionRef::parse("base/a")});
  EXPECT_EQ(fork.parent->str(), "base/a");
  EXPECT_LT(fork.sent_bytes, fork.plain_bytes / 20);
  Host reader(shared_);
  ASSERT_OK(reader.get("fork/b", dir_ / "got"));
  EXPECT_TRUE(read_tree(dir_ / "got") == read_tree(dir_ / "step-1"));
}

TEST_F(StoreTest, ARunThatWentBackBuildsOnTheCheckpointItWentBackTo) {
  Host trainer(shared_);
  CheckpointShape dense{.changed = 0.3}, other{.seed = 2};
  trainer.publish(checkpoint(0, dense), "run/0");
  write_checkpoint(dir_ / "elsewhere", other, 0);
  trainer.publish(dir_ / "elsewhere", "run/1");
  ASSERT_OK(trainer.get("run/0", dir_ / "warm-0"));
  ASSERT_OK(trainer.get("run/1", dir_ / "warm-1"));
  auto result = trainer.publish(checkpoint(1, dense), "run/2");
  EXPECT_EQ(result.parent->str(), "run/0");
  Host reader(shared_);
  ASSERT_OK(reader.get("run/2", dir_ / "got"));
  EXPECT_TRUE(read_tree(dir_ / "got") == read_tree(dir_ / "step-1"));
}

TEST_F(StoreTest, ReshardedTensorsAreStillDeltas) {
  Host trainer(shared_);
  CheckpointShape two{.shards = 2, .tensors_per_shard = 3, .elements = 900'000};
  trainer.publish(checkpoint(0, two), "run/a");
  // The same tensors in one shard: names keep their numbers.
  std::filesystem::create_directories(dir_ / "one");
  auto tree = read_tree(dir_ / "step-0");
  std::string headers, data;
  for (int shard = 1; shard <= 2; shard++) {
    auto file = tree.at("model-0000" + std::to_string(shard) + "-of-00002.safetensors").substr(5);
    auto length = load_le<std::uint64_t>(as_bytes(file).data());
    auto json = file.substr(8, length);
    json = json.substr(1, json.rfind('}') - 1);
    for (int t = 0; t < 3; t++) {  // shift the offsets
      auto bytes = std::uint64_t{1'800'000};
      auto from = "[" + std::to_string(t * bytes) + "," + std::to_string((t + 1) * bytes) + "]";
      auto shift = data.size();
      auto to = "[ " + std::to_string(shift + t * bytes) + "," + std::to_string(shift + (t + 1) * bytes) + "]";
      json.replace(json.find(from), from.size(), to);
    }
    headers += (headers.empty() ? "" : ",") + json;
    data += file.substr(8 + length);
  }
  auto header = "{" + headers + "}";
  std::uint64_t length = header.size();
  std::ofstream(dir_ / "one/model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), 8) << header << data;
  auto result = trainer.publish(dir_ / "one", "run/b");
  EXPECT_EQ(result.changed_elements, 0u);
  EXPECT_LT(result.sent_bytes, 8192u);
  Host reader(shared_);
  ASSERT_OK(reader.get("run/b", dir_ / "got"));
  EXPECT_TRUE(read_tree(dir_ / "got") == read_tree(dir_ / "one"));
}

TEST_F(StoreTest, AFlippedByteAnywhereIsAnErrorNeverAWrongByte) {
  CheckpointShape tiny{.shards = 1, .tensors_per_shard = 2, .elements = 3'000};
  {
    Host trainer(shared_);
    trainer.publish(checkpoint(0, tiny), "run/a");
    trainer.publish(checkpoint(1, tiny), "run/b");
  }
  auto want = read_tree(dir_ / "step-1");
  int n = 0;
  for (const auto& key : shared_.objects().keys()) {
    if (key.find("/hint") != std::string::npos) continue;
    auto size = shared_.objects().contents(key).size();
    for (std::size_t at : {std::size_t{0}, size / 3, size - 1}) {
      shared_.objects().flip_byte(key, at);
      Host reader(shared_);
      auto dest = dir_ / ("flip-" + std::to_string(n++));
      auto status = reader.get("run/b", dest);
      if (status.is_ok()) {
        EXPECT_TRUE(read_tree(dest) == want) << key << " byte " << at;
      }
      shared_.objects().flip_byte(key, at);
    }
  }
  Host reader(shared_);
  ASSERT_OK(reader.get("run/b", dir_ / "good"));
  EXPECT_TRUE(read_tree(dir_ / "good") == want);
}

TEST_F(StoreTest, WhatIsCachedIsReadWithoutTheBucketAfterARestart) {
  {
    Host trainer(shared_);
    trainer.publish(checkpoint(0), "run/a");
    trainer.publish(checkpoint(1), "run/b");
  }
  TempDir cache;
  auto open = [&](bool cut) {
    StoreOptions options;
    options.bucket_url = "memory://test";
    options.cache_dir = cache / "c";
    auto own = shared_.another();
    if (cut) own->set_down(true);
    options.use_bucket = std::move(own);
    return std::move(Store::open(std::move(options))).value();
  };
  {
    auto store = open(false);
    auto version = store->find_version(*ModelName::parse("run"), "b");
    ASSERT_OK(version);
    ASSERT_OK(store->warm(*version, {}));
  }
  auto store = open(true);
  EXPECT_EQ(store->models().size(), 1u);
  auto version = store->find_version(*ModelName::parse("run"), "latest");
  ASSERT_OK(version);
  ASSERT_OK(store->get(*version, dir_ / "offline"));
  EXPECT_TRUE(read_tree(dir_ / "offline") == read_tree(dir_ / "step-1"));
}

// Emptied and filled again by another host, with the same model names: numbers come again.
TEST_F(StoreTest, ABucketThatWasMadeAnewNeverShowsOldBytesUnderNewNames) {
  const auto model = *ModelName::parse("run");
  TempDir cache;
  auto open = [&] {
    StoreOptions options;
    options.bucket_url = "memory://test";
    options.cache_dir = cache / "c";
    auto own = shared_.another();
    own->set_hide_list_rights(true);  // so that the entry known last is looked at again
    options.use_bucket = std::move(own);
    return std::move(Store::open(std::move(options))).value();
  };
  CheckpointShape other{.seed = 2};
  write_checkpoint(dir_ / "other-0", other, 0);
  write_checkpoint(dir_ / "other-1", other, 1);
  Host(shared_).publish(checkpoint(0), "run/a");
  Host(shared_).publish(checkpoint(1), "run/b");
  auto store = open();
  auto old = store->find_version(model, "b");
  ASSERT_OK(old);
  ASSERT_OK(store->get(*old, dir_ / "got-b"));
  for (const auto& key : shared_.objects().keys()) ASSERT_OK(shared_.objects().remove(ObjectKey::of(key)));
  Host(shared_).publish(dir_ / "other-0", "run/x");
  Host(shared_).publish(dir_ / "other-1", "run/y");
  EXPECT_STATUS(store->find_version(model, "y"), Code::kCorrupt);
  ASSERT_OK(store->get(*old, dir_ / "got-b"));  // what was shown stays what it was
  EXPECT_TRUE(read_tree(dir_ / "got-b") == read_tree(dir_ / "step-1"));
  store.reset();
  store = open();
  auto fresh = store->find_version(model, "y");
  ASSERT_OK(fresh);
  ASSERT_OK(store->get(*fresh, dir_ / "got-y"));
  EXPECT_TRUE(read_tree(dir_ / "got-y") == read_tree(dir_ / "other-1"));
  EXPECT_STATUS(store->find_version(model, "b"), Code::kNotFound);
}

std::vector<std::filesystem::path> flat_files(const Host& host) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(host.dir / "cache/files")) {
    if (!entry.is_regular_file()) continue;
    std::filesystem::permissions(entry, std::filesystem::perms::owner_all);
    found.push_back(entry.path());
  }
  return found;
}

TEST_F(StoreTest, ABaseThatRotsInTheCacheCostsAFetchAndNoVersion) {
  Host trainer(shared_), reader(shared_);
  trainer.publish(checkpoint(0), "run/a");
  ASSERT_OK(reader.get("run/a", dir_ / "got-a"));
  for (const auto& path : flat_files(reader)) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 2));
    file << "rotten";
  }
  trainer.publish(checkpoint(1), "run/b");
  ASSERT_OK(reader.get("run/b", dir_ / "got-b"));
  EXPECT_TRUE(read_tree(dir_ / "got-b") == read_tree(dir_ / "step-1"));
}

TEST_F(StoreTest, AFileThatIsCutShortInTheCacheIsReadFromTheBucket) {
  Host trainer(shared_), reader(shared_);
  trainer.publish(checkpoint(0), "run/a");
  auto version = *reader.store->find_version(*ModelName::parse("run"), "a");
  ASSERT_OK(reader.store->warm(version, {}));
  std::vector<OpenFilePtr> open;  // what is opened anew is looked at anew
  for (std::uint32_t i = 0; i < version->manifest().files.size(); i++) {
    if (auto file = reader.store->open_file(version, i); file.is_ok()) open.push_back(*file);
  }
  for (const auto& path : flat_files(reader)) std::filesystem::resize_file(path, 100);
  ASSERT_OK(reader.store->get(version, dir_ / "got-a"));
  EXPECT_TRUE(read_tree(dir_ / "got-a") == read_tree(dir_ / "step-0"));
}

TEST_F(StoreTest, TheLastBaseIsNotKeptFromEviction) {
  CheckpointShape one{.shards = 1, .tensors_per_shard = 2, .elements = 1'000'000};
  Host trainer(shared_), reader(shared_);
  for (int step = 0; step < 2; step++) trainer.publish(checkpoint(step, one), "run/" + std::to_string(step));
  for (int step = 0; step < 2; step++) {
    ASSERT_OK(reader.get("run/" + std::to_string(step), dir_ / ("got-" + std::to_string(step))));
  }
  auto before = reader.store->cache().usage().flat_bytes;
  reader.store->cache().drop_version("run", 1);
  EXPECT_LT(reader.store->cache().usage().flat_bytes, before * 3 / 4);  // nobody has it open any more
}

TEST_F(StoreTest, GetWritesFilesOfTheLongestNames) {
  std::filesystem::create_directories(dir_ / "long");
  for (char c : {'a', 'b'}) std::ofstream(dir_ / ("long/" + std::string(255, c))) << c;
  Host trainer(shared_);
  trainer.publish(dir_ / "long", "run/a");
  ASSERT_OK(trainer.get("run/a", dir_ / "got"));
  EXPECT_TRUE(read_tree(dir_ / "got") == read_tree(dir_ / "long"));
}

TEST_F(StoreTest, CompactionShortensPathsAndKeepsEveryByte) {
  CheckpointShape small{.shards = 1, .tensors_per_shard = 2, .elements = 60'000};
  Host trainer(shared_);
  for (int step = 0; step <= 17; step++) trainer.publish(checkpoint(step, small), "run/" + std::to_string(step));
  auto model = *ModelName::parse("run");
  auto longest = [&] {
    std::size_t deepest = 0;
    auto known = trainer.store->logs().known();
    for (const auto* version : known(model)->live_versions()) {
      deepest = std::max(deepest, cheapest_path({model, version->number}, {}, known)->steps.size());
    }
    return deepest;
  };
  EXPECT_EQ(longest(), 18u);
  Compactor compactor(trainer.store->bucket(), trainer.store->cache(), trainer.store->logs(), trainer.store->versions(),
                      2, 64 << 20);
  auto result = compactor.run(model, {}, {}, {});
  ASSERT_OK(result);
  EXPECT_GE(result->skip_edges, 2u);
  EXPECT_LE(longest(), 9u);
  EXPECT_EQ(compactor.run(model, {}, {}, {})->sent_bytes, 0u);
  compactor.stop();
  Host reader(shared_);
  for (int step : {0, 7, 8, 15, 16, 17}) {
    auto dest = dir_ / ("got-" + std::to_string(step));
    ASSERT_OK(reader.get("run/" + std::to_string(step), dest));
    EXPECT_TRUE(read_tree(dest) == read_tree(dir_ / ("step-" + std::to_string(step)))) << step;
  }
}

}  // namespace
}  // namespace weightfs
