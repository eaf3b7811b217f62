// What every bucket must do, run on each of them:
//   INSTANTIATE_TEST_SUITE_P(Memory, BucketContract, testing::Values(MakeBuckets{…}));
// A bucket comes with a second view of the same objects, as another host has it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "store/base/posix.h"
#include "store/bucket/bucket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

struct BucketPair {
  std::shared_ptr<void> keep;  // what must outlive the buckets
  std::unique_ptr<Bucket> mine, other;
};
// An empty bucket.
struct MakeBuckets {
  const char* name;
  std::function<BucketPair()> make;
  friend void PrintTo(const MakeBuckets& made, std::ostream* out) { *out << made.name; }
};

inline Bytes pattern(std::size_t size, unsigned seed = 1) {
  Bytes bytes(size);
  std::mt19937_64 random(seed);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class BucketContract : public testing::TestWithParam<MakeBuckets> {
 protected:
  BucketContract() : pair_(GetParam().make()) {}
  Bucket& bucket() { return *pair_.mine; }
  Bucket& other() { return *pair_.other; }
  static ObjectKey key(const std::string& text) { return ObjectKey::of(text); }
  void store(const std::string& where, ByteSpan bytes) {
    ASSERT_OK(bucket().put(key(where), bytes, IfExists::kOverwrite));
  }
  std::vector<std::string> listed(const std::string& prefix) {
    auto found = other().list(prefix);
    EXPECT_OK(found);
    std::vector<std::string> keys;
    if (found.is_ok()) {
      for (const auto& object : *found) keys.push_back(object.key.str());
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  }
  std::vector<std::string> prefixes(const std::string& prefix) {
    auto found = other().list_prefixes(prefix);
    EXPECT_OK(found);
    auto names = std::move(found).value_or({});
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  BucketPair pair_;
};

TEST_P(BucketContract, WhatIsPutIsReadByAnotherHost) {
  for (std::size_t size : {0, 1, 4096, 1'000'003}) {
    auto bytes = pattern(size);
    store("m/packs/p", bytes);
    auto back = other().get_all(key("m/packs/p"), size);
    ASSERT_OK(back);
    EXPECT_EQ(*back, bytes);
    auto info = other().head(key("m/packs/p"));
    ASSERT_OK(info);
    EXPECT_EQ(info->size, size);
  }
}

TEST_P(BucketContract, EveryByteOfAKeyIsKept) {
  for (const char* name : {"a", "A", "%2B", "%25", "a%20b", "-._", "%E2%82%AC", ".hidden", "x.tmp", "%h0f"}) {
    auto where = std::string("m/") + name;
    store(where, as_bytes(where));
    auto back = other().get_all(key(where), 100);
    ASSERT_OK(back);
    EXPECT_EQ(as_text(*back), where);
  }
  EXPECT_EQ(listed("m/"), (std::vector<std::string>{"m/%25", "m/%2B", "m/%E2%82%AC", "m/%h0f", "m/-._", "m/.hidden",
                                                    "m/A", "m/a", "m/a%20b", "m/x.tmp"}));
}

TEST_P(BucketContract, ARangeIsReadExactly) {
  auto bytes = pattern(100'000);
  store("o", bytes);
  for (auto range : {ByteRange{0, 1}, ByteRange{0, 100'000}, ByteRange{99'999, 1}, ByteRange{12'345, 54'321}}) {
    Bytes out(range.length + 2, std::byte{0x5a});
    ASSERT_OK(other().get(key("o"), range, MutableByteSpan(out).subspan(1, range.length)));
    EXPECT_TRUE(std::equal(out.begin() + 1, out.end() - 1, bytes.begin() + static_cast<std::ptrdiff_t>(range.offset)));
    EXPECT_EQ(out.front(), std::byte{0x5a});  // nothing beside what was asked for
    EXPECT_EQ(out.back(), std::byte{0x5a});
  }
}

TEST_P(BucketContract, ARangeThatEndsBehindTheObjectIsCorrupt) {
  store("o", pattern(10));
  store("empty", {});
  Bytes out(8);
  EXPECT_STATUS(bucket().get(key("o"), {5, 8}, out), Code::kCorrupt);
  EXPECT_STATUS(bucket().get(key("o"), {10, 8}, out), Code::kCorrupt);
  EXPECT_STATUS(bucket().get(key("o"), {11, 8}, out), Code::kCorrupt);
  EXPECT_STATUS(bucket().get(key("o"), {~std::uint64_t{0} - 7, 8}, out), Code::kCorrupt);
  EXPECT_STATUS(bucket().get(key("empty"), {0, 8}, out), Code::kCorrupt);
}

TEST_P(BucketContract, AMissingObjectIsNotFound) {
  Bytes out(1);
  store("m/there", as_bytes("x"));
  for (const char* name : {"m/missing", "n/missing", "m/there/below", "m"}) {
    EXPECT_STATUS(bucket().get(key(name), {0, 1}, out), Code::kNotFound) << name;
    EXPECT_STATUS(bucket().get_all(key(name), 1), Code::kNotFound) << name;
    EXPECT_STATUS(bucket().head(key(name)), Code::kNotFound) << name;
    EXPECT_OK(bucket().remove(key(name))) << name;
  }
}

TEST_P(BucketContract, AnObjectOverTheLimitIsRefused) {
  store("o", pattern(1000));
  EXPECT_OK(bucket().get_all(key("o"), 1000));
  EXPECT_STATUS(bucket().get_all(key("o"), 999), Code::kInvalid);
  EXPECT_STATUS(bucket().get_all(key("o"), 0), Code::kInvalid);
}

TEST_P(BucketContract, AConditionalPutNeverReplaces) {
  ASSERT_OK(bucket().put(key("m/log/1"), as_bytes("first"), IfExists::kFail));
  EXPECT_STATUS(other().put(key("m/log/1"), as_bytes("second"), IfExists::kFail), Code::kExists);
  EXPECT_STATUS(bucket().put(key("m/log/1"), as_bytes("first"), IfExists::kFail), Code::kExists);
  EXPECT_EQ(as_text(*other().get_all(key("m/log/1"), 100)), "first");
  ASSERT_OK(other().put(key("m/log/1"), as_bytes("third"), IfExists::kOverwrite));
  EXPECT_EQ(as_text(*bucket().get_all(key("m/log/1"), 100)), "third");
  ASSERT_OK(bucket().remove(key("m/log/1")));
  EXPECT_OK(other().put(key("m/log/1"), as_bytes("again"), IfExists::kFail));
}

TEST_P(BucketContract, OfManyWritersOfAKeyExactlyOneWins) {
  for (int round = 0; round < 10; round++) {
    auto name = key("m/log/" + std::to_string(round));
    constexpr int kWriters = 8;
    std::atomic<int> won = 0, lost = 0, winner = -1;
    std::vector<std::thread> writers;
    for (int i = 0; i < kWriters; i++) {
      writers.emplace_back([&, i] {
        auto text = "writer " + std::to_string(i);
        auto status = (i % 2 == 0 ? bucket() : other()).put(name, as_bytes(text), IfExists::kFail);
        if (status.is_ok()) {
          won++;
          winner = i;
        } else if (status.code() == Code::kExists) {
          lost++;
        } else {
          ADD_FAILURE() << status.to_string();
        }
      });
    }
    for (auto& writer : writers) writer.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(lost, kWriters - 1);
    EXPECT_EQ(as_text(*bucket().get_all(name, 100)), "writer " + std::to_string(winner));
  }
}

TEST_P(BucketContract, AReaderSeesTheOldOrTheNewBytesWhole) {
  auto a = pattern(300'000, 1), b = pattern(200'000, 2);
  store("m/log/hint", a);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 10; i++) {
      EXPECT_OK(bucket().put(key("m/log/hint"), i % 2 == 0 ? b : a, IfExists::kOverwrite));
    }
    done = true;
  });
  while (!done) {
    auto bytes = other().get_all(key("m/log/hint"), 1'000'000);
    ASSERT_OK(bytes);
    EXPECT_TRUE(*bytes == a || *bytes == b);
  }
  writer.join();
}

TEST_P(BucketContract, AFileIsStoredWholeAndItsProgressAddsUp) {
  TempDir dir;
  auto bytes = pattern(3'000'000);
  auto path = dir / "file";
  ASSERT_OK(posix::write_file_durably(path, bytes));
  auto fd = posix::open(path, O_RDONLY);
  ASSERT_OK(fd);
  std::atomic<std::uint64_t> told = 0;
  ASSERT_OK(bucket().put_file(key("m/packs/p"), fd->get(), 2'999'999, {}, [&](std::uint64_t n) { told += n; }));
  EXPECT_EQ(told, 2'999'999u);
  EXPECT_EQ(::lseek(fd->get(), 0, SEEK_CUR), 0);
  bytes.pop_back();
  EXPECT_EQ(*other().get_all(key("m/packs/p"), 3'000'000), bytes);
  ASSERT_OK(bucket().put_file(key("m/packs/p"), fd->get(), 0));
  EXPECT_EQ(other().head(key("m/packs/p"))->size, 0u);
  // A file that is shorter than promised is no object.
  EXPECT_FALSE(bucket().put_file(key("m/packs/q"), fd->get(), 4'000'000).is_ok());
  EXPECT_STATUS(other().head(key("m/packs/q")), Code::kNotFound);
}

TEST_P(BucketContract, ListsAndPrefixesShowWhatIsThere) {
  EXPECT_EQ(listed(""), std::vector<std::string>{});
  EXPECT_EQ(prefixes(""), std::vector<std::string>{});
  store("top", as_bytes("x"));
  store("m/log/1", as_bytes("xy"));
  store("m/log/2", {});
  store("m/packs/p", as_bytes("x"));
  store("m2/log/1", as_bytes("x"));
  store("%20/a", as_bytes("x"));
  EXPECT_EQ(listed(""), (std::vector<std::string>{"%20/a", "m/log/1", "m/log/2", "m/packs/p", "m2/log/1", "top"}));
  EXPECT_EQ(listed("m/"), (std::vector<std::string>{"m/log/1", "m/log/2", "m/packs/p"}));
  EXPECT_EQ(listed("m/log/"), (std::vector<std::string>{"m/log/1", "m/log/2"}));
  EXPECT_EQ(listed("none/"), std::vector<std::string>{});
  EXPECT_EQ(prefixes(""), (std::vector<std::string>{"%20", "m", "m2"}));
  EXPECT_EQ(prefixes("m/"), (std::vector<std::string>{"log", "packs"}));
  EXPECT_EQ(prefixes("m/log/"), std::vector<std::string>{});
  EXPECT_EQ(prefixes("none/"), std::vector<std::string>{});
  ASSERT_OK(bucket().remove(key("%20/a")));
  EXPECT_EQ(prefixes(""), (std::vector<std::string>{"m", "m2"}));
  auto objects = other().list("m/log/");
  ASSERT_OK(objects);
  for (const auto& object : *objects) {
    EXPECT_EQ(object.info.size, object.key.str() == "m/log/1" ? 2u : 0u);
    EXPECT_EQ(object.info.modified.time_since_epoch().count() > 0, true);
  }
}

TEST_P(BucketContract, TheServersTimeGoesWithTheTimesOfObjects) {
  auto before = bucket().server_time();
  ASSERT_OK(before);
  store("o", as_bytes("x"));
  auto info = other().head(key("o"));
  auto after = bucket().server_time();
  ASSERT_OK(info);
  ASSERT_OK(after);
  // HTTP dates have whole seconds, and a filesystem's clock ticks.
  EXPECT_LE(*before - std::chrono::seconds(2), info->modified);
  EXPECT_LE(info->modified, *after + std::chrono::seconds(2));
}

TEST_P(BucketContract, ACancelledCallIsInterruptedAndDoesNothing) {
  auto token = std::make_shared<CancelToken>();
  token->cancel();
  CallOptions options{.cancel = token};
  store("o", as_bytes("x"));
  Bytes out(1);
  EXPECT_STATUS(bucket().get(key("o"), {0, 1}, out, options), Code::kInterrupted);
  EXPECT_STATUS(bucket().put(key("p"), as_bytes("x"), IfExists::kFail, options), Code::kInterrupted);
  EXPECT_STATUS(bucket().remove(key("o"), options), Code::kInterrupted);
  EXPECT_EQ(listed(""), std::vector<std::string>{"o"});
}

TEST_P(BucketContract, CountersCountBodies) {
  auto bytes = pattern(5000);
  auto put_before = bucket().counters().put_bytes.load(), get_before = bucket().counters().get_bytes.load();
  auto requests_before = bucket().counters().requests.load();
  store("o", bytes);
  EXPECT_EQ(bucket().counters().put_bytes - put_before, 5000u);
  Bytes out(100);
  ASSERT_OK(bucket().get(key("o"), {7, 100}, out));
  EXPECT_EQ(bucket().counters().get_bytes - get_before, 100u);
  EXPECT_EQ(bucket().counters().requests - requests_before, 2u);
}

TEST_P(BucketContract, ManyThreadsReadAndWriteAtOnce) {
  auto bytes = pattern(400'000);
  store("shared", bytes);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 16; i++) {
    threads.emplace_back([&, i] {
      for (unsigned round = 0; round < 5; round++) {
        ByteRange range{(i * 7919 + round * 104'729) % 300'000, 100'000};
        Bytes out(range.length);
        ASSERT_OK(other().get(key("shared"), range, out));
        EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(range.offset)));
        auto mine = key("t" + std::to_string(i) + "/" + std::to_string(round));
        ASSERT_OK(bucket().put(mine, out, IfExists::kFail));
        EXPECT_EQ(*other().get_all(mine, out.size()), out);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(listed("").size(), 81u);
}

}  // namespace weightfs
