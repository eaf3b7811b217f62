// What the sparse codec promises beyond the contract: small frames, and a wrong base is found out.
#include "store/codec/sparse.h"

#include <gtest/gtest.h>

#include "store/codec/choose.h"
#include "store/codec/dispatch.h"
#include "tests/unit/codec/blocks.h"

namespace weightfs::codec {
namespace {

class SparseTest : public ::testing::Test {
 protected:
  std::size_t encode(ElementType type, const BlockPair& pair) {
    return encode_as(scratch_.impl(), CodecId::kSparse, type, pair.base, pair.target, frame_, {}).value();
  }
  Status decode(ElementType type, ByteSpan frame, const Bytes& base) {
    out_.resize(base.size());
    return decode_block(scratch_, CodecId::kSparse, type, frame, base, out_);
  }

  Scratch scratch_;
  Bytes frame_ = Bytes(kMaxFrame);
  Bytes out_;
};

// The example in store/codec/CODEC.md.
TEST_F(SparseTest, TheDocumentedExampleIsThisFrame) {
  BlockPair pair;
  ByteWriter base(pair.base);
  for (int i = 0; i < 24; ++i) base.le<std::uint16_t>(i < 16 ? 0x3F80 : 0x3A83);
  base.u8(7);
  pair.target = pair.base;
  store_element<std::uint16_t>(pair.target.data(), 3, 0x3F81);
  store_element<std::uint16_t>(pair.target.data(), 20, 0x3A82);
  store_element<std::uint16_t>(pair.target.data(), 22, 0x3A88);
  pair.target.back() = std::byte{9};
  auto frame = ByteSpan(frame_).first(encode(ElementType::kBf16, pair));
  EXPECT_EQ(to_hex(frame), "016201000100e18e044309");
  ASSERT_TRUE(decode(ElementType::kBf16, frame, pair.base));
  EXPECT_EQ(out_, pair.target);
}

TEST_F(SparseTest, OneChangeCostsAFewBytes) {
  auto pair = make_pair(ElementType::kBf16, kMaxBlock, Update::kNone, 1);
  pair.target[100000] ^= std::byte{1};
  EXPECT_LE(encode(ElementType::kBf16, pair), 16U);
}

TEST_F(SparseTest, ABaseWithOtherClassesIsCorrupt) {
  auto pair = make_pair(ElementType::kBf16, 200000, Update::kTrained, 2);
  auto size = encode(ElementType::kBf16, pair);
  auto frame = ByteSpan(frame_).first(size);
  EXPECT_TRUE(decode(ElementType::kBf16, frame, pair.base));
  auto other = make_pair(ElementType::kBf16, 200000, Update::kNone, 3);
  EXPECT_EQ(decode(ElementType::kBf16, frame, other.base).code(), Code::kCorrupt);
  pair.base.resize(199998);
  EXPECT_EQ(decode(ElementType::kBf16, frame, pair.base).code(), Code::kCorrupt);
}

TEST_F(SparseTest, AnyCutFrameIsCorrupt) {
  for (auto type : kAllTypes) {
    auto pair = make_pair(type, 3001, Update::kTrained, 4);
    auto size = encode(type, pair);
    for (std::size_t cut = 0; cut < size; ++cut) {
      ASSERT_EQ(decode(type, ByteSpan(frame_).first(cut), pair.base).code(), Code::kCorrupt) << cut;
    }
  }
}

// Every level of instructions gives the same frame, and the same bytes or an error for any frame.
class LevelsTest : public SparseTest {
 protected:
  ~LevelsTest() override { force_simd_level(SimdLevel::kAvx512); }

  struct Verdict {
    Code code;
    Bytes bytes;  // if OK
  };
  Verdict decode_at(SimdLevel level, ElementType type, ByteSpan frame, const Bytes& base, bool in_place) {
    force_simd_level(level);
    out_ = base;
    auto status = in_place ? apply_frame(scratch_, CodecId::kSparse, type, frame, out_)
                           : decode_block(scratch_, CodecId::kSparse, type, frame, base, out_);
    return {status.code(), status.is_ok() ? out_ : Bytes()};
  }
  void expect_agreement(ElementType type, ByteSpan frame, const Bytes& base) {
    auto reference = decode_at(SimdLevel::kScalar, type, frame, base, false);
    for (int level = 1; level < kSimdLevels; ++level) {
      for (bool in_place : {false, true}) {
        auto verdict = decode_at(static_cast<SimdLevel>(level), type, frame, base, in_place);
        ASSERT_EQ(verdict.code, reference.code) << to_string(static_cast<SimdLevel>(level));
        ASSERT_TRUE(verdict.bytes == reference.bytes) << to_string(static_cast<SimdLevel>(level));
      }
    }
  }
};

TEST_F(LevelsTest, EncodeToTheSameFrame) {
  std::uint64_t seed = 50;
  for (auto type : kAllTypes) {
    for (auto update : kUpdates) {
      for (std::size_t length : {3, 64, 130, 5000, 40001}) {
        SCOPED_TRACE(describe(type, length, update, ++seed));
        auto pair = make_pair(type, length, update, seed);
        Bytes reference;
        for (int level = 0; level < kSimdLevels; ++level) {
          force_simd_level(static_cast<SimdLevel>(level));
          auto size = encode_as(scratch_.impl(), CodecId::kSparse, type, pair.base, pair.target, frame_, {});
          Bytes frame(frame_.begin(), frame_.begin() + static_cast<std::ptrdiff_t>(size.value_or(0)));
          if (level == 0) reference = frame;
          ASSERT_TRUE(frame == reference) << level;
        }
      }
    }
  }
}

TEST_F(LevelsTest, DecodeToTheSameBytes) {
  std::uint64_t seed = 100;
  for (auto type : kAllTypes) {
    for (auto update : kUpdates) {
      for (std::size_t length : {8, 63, 64, 129, 1000, 4099, 70001}) {
        SCOPED_TRACE(describe(type, length, update, ++seed));
        auto pair = make_pair(type, length, update, seed);
        auto size = encode_as(scratch_.impl(), CodecId::kSparse, type, pair.base, pair.target, frame_, {});
        if (!size) continue;
        expect_agreement(type, ByteSpan(frame_).first(*size), pair.base);
        EXPECT_EQ(out_, pair.target);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LevelsTest, AgreeOnDamagedFrames) {
  int sound = 0, damaged = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed);
    auto type = kAllTypes[rng() % kAllTypes.size()];
    auto update = kUpdates[rng() % kUpdates.size()];
    std::size_t length = 16 + rng() % (seed % 16 == 0 ? 20000 : 1500);
    SCOPED_TRACE(describe(type, length, update, seed));
    auto pair = make_pair(type, length, update, seed);
    auto size = encode_as(scratch_.impl(), CodecId::kSparse, type, pair.base, pair.target, frame_, {});
    if (!size) continue;
    Bytes frame(frame_.begin(), frame_.begin() + static_cast<std::ptrdiff_t>(*size));
    for (auto flips = 1 + rng() % 3; flips > 0; --flips) {
      auto at = rng() % 2 ? rng() % frame.size() : rng() % std::min<std::size_t>(24, frame.size());
      frame[at] ^= static_cast<std::byte>(1U << rng() % 8);
    }
    expect_agreement(type, frame, pair.base);
    if (HasFatalFailure()) return;
    (decode_at(SimdLevel::kScalar, type, frame, pair.base, false).code == Code::kOk ? sound : damaged) += 1;
  }
  // Both kinds have been seen: damage in signs or values goes unnoticed here, the caller's digest finds it.
  EXPECT_GT(sound, 100);
  EXPECT_GT(damaged, 100);
}

TEST_F(LevelsTest, AgreeOnABaseThatIsNotTheFrames) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    auto type = kAllTypes[seed % kAllTypes.size()];
    auto pair = make_pair(type, 3000, Update::kTrained, seed);
    auto size = encode(type, pair);
    Rng rng(seed);
    for (int i = 0; i < 3; ++i) pair.base[rng() % pair.base.size()] ^= static_cast<std::byte>(rng());
    expect_agreement(type, ByteSpan(frame_).first(size), pair.base);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace weightfs::codec
