// The contract of codec.h.
#include "store/codec/codec.h"

#include <gtest/gtest.h>

#include "store/codec/choose.h"
#include "tests/unit/codec/blocks.h"

namespace weightfs::codec {
namespace {

constexpr std::array<std::size_t, 16> kLengths = {1,  2,   3,   7,   8,    9,    63,    64,
                                                  65, 127, 128, 130, 1000, 4099, 16384, 70001};

class CodecTest : public ::testing::Test {
 protected:
  // Decodes into a fresh buffer and in place; both must give `target`.
  void expect_decodes(CodecId codec, ElementType type, ByteSpan encoded, ByteSpan base, ByteSpan target) {
    Bytes out(target.size(), std::byte{0xA5});
    auto status = decode_block(scratch_, codec, type, encoded, base, out);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(std::equal(out.begin(), out.end(), target.begin()));
    if (base.size() != target.size()) return;
    Bytes block(base.begin(), base.end());
    status = apply_frame(scratch_, codec, type, encoded, block);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    ASSERT_TRUE(std::equal(block.begin(), block.end(), target.begin()));
  }

  Scratch scratch_;
  Bytes frame_ = Bytes(kMaxFrame);
};

TEST_F(CodecTest, DecodesWhatItEncodedForEveryTypeUpdateAndLength) {
  std::uint64_t seed = 0;
  for (auto type : kAllTypes) {
    for (auto update : kUpdates) {
      for (auto length : kLengths) {
        SCOPED_TRACE(describe(type, length, update, ++seed));
        auto pair = make_pair(type, length, update, seed);
        auto encoded = encode_block(scratch_, type, pair.base, pair.target, frame_);
        ASSERT_LE(encoded.frame_length, length);
        expect_decodes(encoded.codec, type, ByteSpan(frame_).first(encoded.frame_length), pair.base, pair.target);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CodecTest, EveryCodecDecodesWhatItEncoded) {
  std::uint64_t seed = 1000;
  for (auto codec : kAllCodecs) {
    for (auto type : kAllTypes) {
      for (auto update : kUpdates) {
        for (auto length : kLengths) {
          SCOPED_TRACE(describe(type, length, update, ++seed) + " codec " + std::to_string(static_cast<int>(codec)));
          auto pair = make_pair(type, length, update, seed);
          auto size = encode_as(scratch_.impl(), codec, type, pair.base, pair.target, frame_, {});
          if (!size) continue;
          expect_decodes(codec, type, ByteSpan(frame_).first(*size), pair.base, pair.target);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CodecTest, FullSizedBlocksOfEveryTypeRoundTrip) {
  for (auto type : kAllTypes) {
    for (auto update : {Update::kTrainedLittle, Update::kAll, Update::kRandomBits}) {
      SCOPED_TRACE(describe(type, kMaxBlock, update, 7));
      auto pair = make_pair(type, kMaxBlock, update, 7);
      auto encoded = encode_block(scratch_, type, pair.base, pair.target, frame_);
      ASSERT_LE(encoded.frame_length, kMaxBlock);
      expect_decodes(encoded.codec, type, ByteSpan(frame_).first(encoded.frame_length), pair.base, pair.target);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CodecTest, UnchangedAndZeroBlocksHaveNoFrame) {
  auto pair = make_pair(ElementType::kBf16, 5000, Update::kNone, 1);
  auto encoded = encode_block(scratch_, ElementType::kBf16, pair.base, pair.target, frame_);
  EXPECT_EQ(encoded.codec, CodecId::kSame);
  EXPECT_EQ(encoded.frame_length, 0U);
  EXPECT_EQ(encoded.changed_elements, 0U);
  Bytes zeros(5000);
  encoded = encode_block(scratch_, ElementType::kBf16, pair.base, zeros, frame_);
  EXPECT_EQ(encoded.codec, CodecId::kZero);
  EXPECT_EQ(encoded.frame_length, 0U);
}

TEST_F(CodecTest, ChangedElementsAreCountedByBits) {
  for (auto type : kAllTypes) {
    auto w = width(type);
    Bytes base(100 * w), target = base;
    for (std::size_t i : {0, 17, 99}) target[i * w + w - 1] = std::byte{0x80};  // +0 to -0
    auto encoded = encode_block(scratch_, type, base, target, frame_);
    EXPECT_EQ(encoded.changed_elements, 3U);
    EXPECT_EQ(encode_block(scratch_, type, {}, target, frame_).changed_elements, 0U);
  }
}

TEST_F(CodecTest, TextTakesAnotherLengthOfItselfAsBase) {
  std::string old_text, new_text;
  Rng rng(3);
  for (int line = 0; line < 2000; ++line) {
    auto text = "key" + std::to_string(rng()) + ": value " + std::to_string(rng() % 100) + "\n";
    old_text += text;
    if (line % 100 != 7) new_text += text;
    if (line % 100 == 9) new_text += "an inserted line\n";
  }
  auto encoded = encode_block(scratch_, ElementType::kBytes, as_bytes(old_text), as_bytes(new_text), frame_);
  EXPECT_EQ(encoded.codec, CodecId::kZstdPatch);
  EXPECT_LT(encoded.frame_length, 600U);
  auto frame = ByteSpan(frame_).first(encoded.frame_length);
  expect_decodes(encoded.codec, ElementType::kBytes, frame, as_bytes(old_text), as_bytes(new_text));
  Bytes block(new_text.size());
  EXPECT_FALSE(apply_frame(scratch_, encoded.codec, ElementType::kBytes, frame, block).is_ok());
}

TEST_F(CodecTest, DeltasReplayInPlace) {
  for (auto type : {ElementType::kBf16, ElementType::kF16, ElementType::kF32}) {
    auto first = make_pair(type, 100000, Update::kTrained, 5);
    Bytes block = first.base, version = first.base;
    for (std::uint64_t step = 0; step < 5; ++step) {
      Bytes next = version;
      Rng rng(step);
      visit_element(type, [&](auto element) {
        using E = decltype(element);
        for (std::size_t i = 0; i < next.size() / E::kWidth; ++i) {
          store_element(next.data(), i,
                        updated<E>(rng, Update::kTrained, load_element<typename E::Raw>(version.data(), i)));
        }
      });
      auto encoded = encode_block(scratch_, type, version, next, frame_);
      ASSERT_TRUE(apply_frame(scratch_, encoded.codec, type, ByteSpan(frame_).first(encoded.frame_length), block));
      ASSERT_EQ(block, next);
      version = next;
    }
  }
}

TEST_F(CodecTest, LaterCodecsAndTypesAreUnsupportedAndWrongLengthsCorrupt) {
  Bytes block(64), out(64);
  auto decode = [&](int codec, int type, std::size_t frame, std::size_t base) {
    return decode_block(scratch_, static_cast<CodecId>(codec), static_cast<ElementType>(type),
                        ByteSpan(block).first(frame), ByteSpan(block).first(base), out)
        .code();
  };
  EXPECT_EQ(decode(9, 0, 0, 64), Code::kUnsupported);
  EXPECT_EQ(decode(255, 0, 0, 64), Code::kUnsupported);
  EXPECT_EQ(decode(1, 10, 64, 64), Code::kUnsupported);
  EXPECT_EQ(decode(0, 1, 0, 63), Code::kCorrupt);
  EXPECT_EQ(decode(0, 1, 1, 64), Code::kCorrupt);
  EXPECT_EQ(decode(1, 1, 63, 0), Code::kCorrupt);
  EXPECT_EQ(decode(8, 1, 1, 0), Code::kCorrupt);
  for (int codec = 2; codec < 8; ++codec) {
    EXPECT_EQ(decode(codec, 1, 0, 64), Code::kCorrupt) << codec;
    EXPECT_EQ(decode(codec, 1, 64, 64), Code::kCorrupt) << codec;
  }
  EXPECT_EQ(decode(4, 1, 8, 10), Code::kCorrupt);
  EXPECT_EQ(decode(5, 1, 8, 10), Code::kCorrupt);
}

}  // namespace
}  // namespace weightfs::codec
