// What the sparse codec promises beyond the contract: small frames, and a wrong base is found out.
#include "store/codec/sparse.h"

#include <gtest/gtest.h>

#include "store/codec/choose.h"
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

}  // namespace
}  // namespace weightfs::codec
