// Which codec encode_block takes.
#include <gtest/gtest.h>

#include "store/codec/choose.h"
#include "tests/unit/codec/blocks.h"

namespace weightfs::codec {
namespace {

class ChoiceTest : public ::testing::Test {
 protected:
  std::size_t best_of_all(ElementType type, ByteSpan base, ByteSpan target, CodecId& which) {
    std::size_t best = target.size();
    which = CodecId::kRaw;
    for (auto codec : kAllCodecs) {
      if (base.empty() && needs_base(codec)) continue;
      if (codec == CodecId::kZstdPatch && type != ElementType::kBytes) continue;  // for what is no tensor
      auto size = encode_as(scratch_.impl(), codec, type, base, target, frame_, {});
      if (!size || *size >= best) continue;
      best = *size;
      which = codec;
    }
    return best;
  }
  void expect_near_best(ElementType type, ByteSpan base, ByteSpan target) {
    CodecId which{};
    auto best = best_of_all(type, base, target, which);
    auto encoded = encode_block(scratch_, type, base, target, frame_);
    EXPECT_LE(static_cast<double>(encoded.frame_length), 1.02 * static_cast<double>(best) + 8)
        << "took " << static_cast<int>(encoded.codec) << ", best " << static_cast<int>(which);
  }
  Scratch scratch_;
  Bytes frame_ = Bytes(kMaxFrame);
};

TEST_F(ChoiceTest, IsWithinTwoPercentOfTheBest) {
  for (auto type : kAllTypes) {
    for (auto update : kUpdates) {
      SCOPED_TRACE(describe(type, 300000, update, 11));
      auto pair = make_pair(type, 300000, update, 11);
      expect_near_best(type, pair.base, pair.target);
      expect_near_best(type, {}, pair.target);
    }
  }
}

TEST_F(ChoiceTest, IsNearTheBestAtEveryDensityOfChange) {
  for (double density : {0.02, 0.1, 0.25, 0.5, 0.75, 1.0}) {
    for (bool far : {false, true}) {
      for (bool in_rows : {false, true}) {
        SCOPED_TRACE(std::to_string(density) + (far ? " far" : " by one") + (in_rows ? " in rows" : ""));
        auto pair = make_pair(ElementType::kBf16, 400000, Update::kNone, 12);
        Rng rng(13);
        bool row_changes = false;
        for (std::size_t i = 0; i < 200000; ++i) {
          if (i % 1000 == 0) row_changes = uniform(rng) < density;
          if (in_rows ? !row_changes : uniform(rng) >= density) continue;
          auto raw = load_element<std::uint16_t>(pair.base.data(), i);
          auto by = far ? rng() % 400 - 200 : rng() % 2 * 2 - 1;
          store_element(pair.target.data(), i, static_cast<std::uint16_t>(raw + by));
        }
        expect_near_best(ElementType::kBf16, pair.base, pair.target);
      }
    }
  }
}

TEST_F(ChoiceTest, RandomBytesAreRawAndNeverLonger) {
  for (std::size_t length : {1, 2, 100, 65536, 1 << 20}) {
    auto pair = make_pair(ElementType::kBytes, length, Update::kRandomBits, length);
    auto encoded = encode_block(scratch_, ElementType::kBytes, pair.base, pair.target, frame_);
    EXPECT_LE(encoded.frame_length, length);
  }
}

TEST_F(ChoiceTest, TheSameInputGivesTheSameFrameWhateverWasEncodedBefore) {
  auto pair = make_pair(ElementType::kBf16, 100000, Update::kTrained, 21);
  auto first = encode_block(scratch_, ElementType::kBf16, pair.base, pair.target, frame_);
  Bytes bytes(frame_.begin(), frame_.begin() + static_cast<std::ptrdiff_t>(first.frame_length));
  for (auto update : kUpdates) {
    auto other = make_pair(ElementType::kF32, 50000, update, 22);
    encode_block(scratch_, ElementType::kF32, other.base, other.target, frame_);
  }
  auto again = encode_block(scratch_, ElementType::kBf16, pair.base, pair.target, frame_);
  ASSERT_EQ(again.frame_length, bytes.size());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), frame_.begin()));
}

}  // namespace
}  // namespace weightfs::codec
