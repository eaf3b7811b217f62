// A scratch that has seen a kind of block makes no further allocation for it: counted, in malloc itself. A program of
// its own, for it replaces malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "store/codec/choose.h"
#include "store/codec/dispatch.h"
#include "tests/unit/codec/blocks.h"

namespace {
std::atomic<std::size_t> allocations{0};
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEIGHTFS_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEIGHTFS_SANITIZED
#endif

#if defined(WEIGHTFS_SANITIZED)
// Of sanitizer/allocator_interface.h, which g++ comes without.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
namespace {
void on_malloc(const volatile void*, std::size_t) { allocations.fetch_add(1, std::memory_order_relaxed); }
void on_free(const volatile void*) {}
const int hooked = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}  // namespace
#else
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}
#endif

namespace weightfs::codec {
namespace {

struct Case {
  ElementType type;
  CodecId codec;
  BlockPair pair;
  Bytes frame;
};

// Every codec with every type it can do, blocks of all sizes.
std::vector<Case> cases(Scratch& scratch) {
  std::vector<Case> out;
  Bytes frame(kMaxFrame);
  std::uint64_t seed = 0;
  for (auto codec : kAllCodecs) {
    for (auto type : kAllTypes) {
      for (auto update : kUpdates) {
        for (std::size_t length : {std::size_t{8}, std::size_t{4099}, std::size_t{150'001}}) {
          if (length > 5000 && update != Update::kTrained && update != Update::kSpecial) continue;
          if (length == 8 && update == Update::kSpecial) continue;
          auto pair = make_pair(type, length, update, ++seed);
          auto size = encode_as(scratch.impl(), codec, type, pair.base, pair.target, frame, {});
          if (size) out.push_back({type, codec, pair, {frame.begin(), frame.begin() + *size}});
        }
      }
    }
  }
  // A window's worth of it, and another length than its base has.
  auto large = make_pair(ElementType::kBf16, kMaxBlock, Update::kTrained, ++seed);
  for (auto codec : kAllCodecs) {
    auto size = encode_as(scratch.impl(), codec, ElementType::kBf16, large.base, large.target, frame, {});
    if (size) out.push_back({ElementType::kBf16, codec, large, {frame.begin(), frame.begin() + *size}});
  }
  large.base.resize(kMaxBlock / 2);
  auto size = encode_as(scratch.impl(), CodecId::kZstdPatch, ElementType::kBytes, large.base, large.target, frame, {});
  if (size) out.push_back({ElementType::kBytes, CodecId::kZstdPatch, large, {frame.begin(), frame.begin() + *size}});
  return out;
}

class AllocationTest : public ::testing::Test {
 protected:
  void TearDown() override { force_simd_level(SimdLevel::kAvx512); }

  void decode_all() {
    for (const auto& one : cases_) {
      auto out = MutableByteSpan(out_).first(one.pair.target.size());
      if (!decode_block(scratch_, one.codec, one.type, one.frame, one.pair.base, out).is_ok()) ++failures_;
      if (!std::equal(out.begin(), out.end(), one.pair.target.begin())) ++failures_;
      if (one.pair.base.size() != out.size()) continue;
      std::copy(one.pair.base.begin(), one.pair.base.end(), out.begin());
      if (!apply_frame(scratch_, one.codec, one.type, one.frame, out).is_ok()) ++failures_;
    }
  }
  void encode_all(std::size_t longest) {
    for (const auto& one : cases_) {
      if (one.pair.target.size() > longest) continue;
      encode_as(scratch_.impl(), one.codec, one.type, one.pair.base, one.pair.target, frame_, {});
      encode_block(scratch_, one.type, one.pair.base, one.pair.target, frame_);
      encode_block(scratch_, one.type, {}, one.pair.target, frame_);
    }
  }
  template <typename F>
  std::size_t counted(F&& work) {
    auto before = allocations.load();
    work();
    return allocations.load() - before;
  }

  Scratch scratch_;
  std::vector<Case> cases_ = cases(scratch_);
  Bytes out_ = Bytes(kMaxBlock), frame_ = Bytes(kMaxFrame);
  int failures_ = 0;
};

TEST(AllocationCounterTest, Counts) {
  auto before = allocations.load();
  auto one = std::make_unique<Bytes>(1000);
  EXPECT_EQ(one->size(), 1000U);
  EXPECT_EQ(allocations.load() - before, 2U);
}

TEST_F(AllocationTest, DecodingAllocatesNothingInSteadyStateInAnyModeAtAnyLevel) {
  for (auto level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx2Pdep, SimdLevel::kAvx512}) {
    SCOPED_TRACE(to_string(level));
    force_simd_level(level);
    decode_all();
    EXPECT_EQ(counted([&] { decode_all(); }), 0U);
  }
  EXPECT_EQ(failures_, 0);
}

TEST_F(AllocationTest, EncodingAllocatesNothingInSteadyStateInAnyMode) {
  encode_all(kMaxBlock);
  EXPECT_EQ(counted([&] { encode_all(kMaxBlock); }), 0U);
  // Nor does a long time with small blocks take memory away that a large one needs.
  auto count = counted([&] {
    for (int i = 0; i < 3; ++i) encode_all(8);
    encode_all(kMaxBlock);
  });
  EXPECT_EQ(count, 0U);
}

}  // namespace
}  // namespace weightfs::codec
