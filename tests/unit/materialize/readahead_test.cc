#include "store/materialize/readahead.h"

#include <gtest/gtest.h>

#include "store/materialize/shards.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// What a reader of `file` in pieces of 1 MiB makes it fetch: asked for beyond what was read, at the end.
struct Reader {
  ReadAhead& file;
  std::uint64_t reach = 0, asked = 0;
  void read(std::uint64_t offset, std::uint64_t length = kMiB) {
    reach = std::max(reach, offset + length);
    auto ahead = file.read({offset, length});
    if (!ahead) return;
    EXPECT_GT(ahead->end(), offset);
    reach = std::max(reach, ahead->end());
    asked += ahead->length;
  }
};

TEST(ReadAhead, ALonelyReadFetchesNothingMore) {
  ReadAhead file(1000 * kMiB);
  for (std::uint64_t at : {500, 20, 900, 100, 700}) EXPECT_EQ(file.read({at * kMiB, kMiB}), std::nullopt) << at;
}

TEST(ReadAhead, TheSameReadTwiceIsNoStream) {
  ReadAhead file(1000 * kMiB);
  for (int i = 0; i < 5; i++) EXPECT_EQ(file.read({10 * kMiB, kMiB}), std::nullopt);
}

TEST(ReadAhead, WhatIsFetchedBeyondAStreamIsAtMostWhatItRead) {
  for (bool tensors : {false, true}) {
    ReadAhead file(4000 * kMiB);
    if (tensors) file.set_tensors({0, kMiB, 4000 * kMiB});
    Reader reader{file};
    for (std::uint64_t at = 0; at < 40; at++) {
      reader.read(at * kMiB);
      auto read = (at + 1) * kMiB;
      EXPECT_LE(reader.reach - read, std::max(kMiB, read));
    }
    EXPECT_GE(reader.reach - 40 * kMiB, 10 * kMiB) << "the window has grown";
  }
}

TEST(ReadAhead, TheWindowEndsAtItsBoundAndAtTheFile) {
  ReadAhead file(300 * kMiB, {.most = 16 * kMiB, .tensor = 16 * kMiB});
  file.set_tensors({0, 8, 300 * kMiB});
  Reader reader{file};
  for (std::uint64_t at = 0; at < 300; at++) {
    reader.read(at * kMiB);
    EXPECT_LE(reader.reach, std::min(300 * kMiB, (at + 17) * kMiB));
  }
  EXPECT_LE(reader.asked, 300 * kMiB) << "nothing is asked for twice";
}

TEST(ReadAhead, ManyStreamsOfOneFileAreEachRecognized) {
  ReadAhead file(3200 * kMiB);
  std::vector<Reader> readers(32, Reader{file});
  for (std::uint64_t step = 0; step < 16; step++) {
    for (std::uint64_t i = 0; i < readers.size(); i++) readers[i].read((i * 100 + step) * kMiB);
  }
  for (const auto& reader : readers) EXPECT_GT(reader.asked, 0U);
}

TEST(ReadAhead, ATensorsBeginningFetchesTheTensorAndNothingBehindIt) {
  ReadAhead file(1000 * kMiB);
  file.set_tensors({0, 100 * kMiB + 512, 108 * kMiB + 512, 1000 * kMiB});
  // read(), which the kernel aligns to pages, and a fault in the middle of what the kernel reads around it.
  EXPECT_EQ(file.read({100 * kMiB, kMiB}), (ByteRange{101 * kMiB, 8 * kMiB}));
  ReadAhead mapped(1000 * kMiB);
  mapped.set_tensors({0, 100 * kMiB + 512, 108 * kMiB + 512, 1000 * kMiB});
  EXPECT_EQ(mapped.read({100 * kMiB - kMiB / 2, kMiB}), (ByteRange{100 * kMiB + kMiB / 2, 8 * kMiB}));
  // The rest of the tensor: nothing more, for nothing says that its reader goes on.
  for (std::uint64_t at = 101; at < 110; at++) EXPECT_EQ(file.read({at * kMiB, kMiB}), std::nullopt) << at;
}

TEST(ReadAhead, ASmallTensorsReaderDoesNotGetItsLargeNeighbour) {
  ReadAhead file(1000 * kMiB);
  file.set_tensors({0, 100 * kMiB + 512, 100 * kMiB + 512 + 8192, 500 * kMiB, 1000 * kMiB});
  EXPECT_EQ(file.read({100 * kMiB, 12288}), std::nullopt);
  ReadAhead mapped(1000 * kMiB);
  mapped.set_tensors({0, 100 * kMiB + 512, 100 * kMiB + 512 + 8192, 500 * kMiB, 1000 * kMiB});
  EXPECT_EQ(mapped.read({100 * kMiB - kMiB / 2, kMiB}), std::nullopt);
}

TEST(ReadAhead, AStreamThatReadPastItsTensorIsFollowed) {
  ReadAhead file(1000 * kMiB);
  TensorStarts starts{0};
  for (std::uint64_t at = 100; at <= 1000; at += 8) starts.push_back(at * kMiB);
  starts.back() = 1000 * kMiB;
  file.set_tensors(starts);
  Reader reader{file};
  for (std::uint64_t at = 100; at < 112; at++) reader.read(at * kMiB);
  EXPECT_GT(reader.reach, 118 * kMiB);
}

TEST(ReadAhead, APieceInTheMiddleOfATensorFetchesNothingMore) {
  ReadAhead file(1000 * kMiB);
  file.set_tensors({0, 100 * kMiB, 900 * kMiB, 1000 * kMiB});
  EXPECT_EQ(file.read({400 * kMiB, kMiB}), std::nullopt);
}

TEST(ReadAhead, WhatWasRefusedIsAskedForAgain) {
  ReadAhead file(1000 * kMiB);
  std::optional<ByteRange> ahead;
  std::uint64_t at = 0;
  for (; !ahead; at++) ahead = file.read({at * kMiB, kMiB});
  file.refused(*ahead, ahead->offset);
  auto again = file.read({at * kMiB, kMiB});
  ASSERT_TRUE(again);
  EXPECT_LE(again->offset, std::max(ahead->offset, (at + 1) * kMiB));
}

TEST(ReadAhead, AReaderComesToTheNextFileWithWhatItReadBefore) {
  ReadAhead first(200 * kMiB);
  first.set_tensors({0, 8, 200 * kMiB});
  std::optional<ReadAhead::Leaving> leaving;
  for (std::uint64_t at = 0; at < 200; at++) {
    first.read({at * kMiB, kMiB});
    if (auto now = first.leaving()) {
      EXPECT_FALSE(leaving) << "once";
      EXPECT_GE(at, 100U) << "not before the end is near";
      leaving = now;
    }
  }
  ASSERT_TRUE(leaving);
  EXPECT_EQ(leaving->window, 64 * kMiB);
  ReadAhead second(200 * kMiB);
  second.expect(leaving->trust, leaving->window);
  EXPECT_EQ(second.read({0, kMiB}), std::nullopt) << "it is on its way already";
  Reader reader{second};
  for (std::uint64_t at = 1; at < 60; at++) reader.read(at * kMiB);
  EXPECT_GE(reader.reach, 92 * kMiB) << "the whole window from the start, or half of it when it was last asked for";
}

TEST(ReadAhead, WhoBeganInTheMiddleDoesNotLeaveForTheNextFile) {
  ReadAhead file(200 * kMiB);
  for (std::uint64_t at = 100; at < 200; at++) file.read({at * kMiB, kMiB});
  EXPECT_EQ(file.leaving(), std::nullopt);
}

TEST(NextNumbered, CountsTheShardsNumber) {
  EXPECT_EQ(next_numbered("model-00001-of-00004.safetensors"), "model-00002-of-00004.safetensors");
  EXPECT_EQ(next_numbered("model-00009-of-00010.bin"), "model-00010-of-00010.bin");
  EXPECT_EQ(next_numbered("model-9-of-10"), "model-10-of-10");
  EXPECT_EQ(next_numbered("model.safetensors"), std::nullopt);
  EXPECT_EQ(next_numbered("a-of-b"), std::nullopt);
  EXPECT_EQ(next_numbered("99999999999-of-1"), std::nullopt);
}

}  // namespace
}  // namespace weightfs
