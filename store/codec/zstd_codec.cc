#include "store/codec/zstd_codec.h"

// For contexts with an allocator of their own.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace weightfs::codec {
namespace {

// Before each piece of memory stands how large it is.
constexpr std::size_t kHeader = alignof(std::max_align_t);
std::size_t& size_of(void* memory) {
  return *reinterpret_cast<std::size_t*>(static_cast<std::byte*>(memory) - kHeader);
}
void release(void* memory) {
  if (memory != nullptr) std::free(static_cast<std::byte*>(memory) - kHeader);
}

ZSTD_customMem allocator(RecycledMemory& memory) {
  return {[](void* from, std::size_t size) { return static_cast<RecycledMemory*>(from)->take(size); },
          [](void* to, void* piece) { static_cast<RecycledMemory*>(to)->give(piece); }, &memory};
}

}  // namespace

RecycledMemory::~RecycledMemory() {
  for (auto* memory : kept_) release(memory);
}

void* RecycledMemory::take(std::size_t size) noexcept {
  void** best = nullptr;  // the smallest that is large enough
  for (auto& memory : kept_) {
    if (memory == nullptr || size_of(memory) < size) continue;
    if (best == nullptr || size_of(memory) < size_of(*best)) best = &memory;
  }
  if (best != nullptr) return std::exchange(*best, nullptr);
  auto* piece = static_cast<std::byte*>(std::malloc(kHeader + size));
  if (piece == nullptr) return nullptr;
  size_of(piece + kHeader) = size;
  return piece + kHeader;
}

// In place of nothing, or of the smallest if that is smaller.
void RecycledMemory::give(void* memory) noexcept {
  if (memory == nullptr) return;
  auto* least = &kept_[0];
  for (auto& other : kept_) {
    if (*least == nullptr) break;
    if (other == nullptr || size_of(other) < size_of(*least)) least = &other;
  }
  if (*least != nullptr && size_of(*least) >= size_of(memory)) return release(memory);
  release(std::exchange(*least, memory));
}

void ZstdCodec::FreeCompressor::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void ZstdCodec::FreeDecompressor::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

std::optional<std::size_t> ZstdCodec::compress(ByteSpan plain, ByteSpan prefix, int level, MutableByteSpan out) {
  if (!compressor_) compressor_.reset(ZSTD_createCCtx_advanced(allocator(compressor_memory_)));
  if (!compressor_) throw std::bad_alloc();
  auto* context = compressor_.get();
  ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
  if (level == kEntropy) {
    // Long matches from a tiny table: runs are found, and the noise of exponents is left to the Huffman coder (level 3
    // finds enough false matches in it to cost 6 % of a full bf16 block).
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_strategy, ZSTD_fast);
    ZSTD_CCtx_setParameter(context, ZSTD_c_minMatch, 7);
    ZSTD_CCtx_setParameter(context, ZSTD_c_hashLog, 6);
  } else {
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  }
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);  // the caller knows both
  if (!prefix.empty()) {
    // The window has to reach from the block's end back to the prefix's start.
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 21);
    ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
    ZSTD_CCtx_refPrefix(context, prefix.data(), prefix.size());
  }
  auto size = ZSTD_compress2(context, out.data(), out.size(), plain.data(), plain.size());
  if (ZSTD_isError(size)) return std::nullopt;
  return size;
}

bool ZstdCodec::decompress(ByteSpan frame, ByteSpan prefix, MutableByteSpan out) {
  if (!decompressor_) decompressor_.reset(ZSTD_createDCtx_advanced(allocator(decompressor_memory_)));
  if (!decompressor_) throw std::bad_alloc();
  auto* context = decompressor_.get();
  ZSTD_DCtx_reset(context, ZSTD_reset_session_and_parameters);
  if (!prefix.empty()) ZSTD_DCtx_refPrefix(context, prefix.data(), prefix.size());
  auto size = ZSTD_decompressDCtx(context, out.data(), out.size(), frame.data(), frame.size());
  return !ZSTD_isError(size) && size == out.size();
}

}  // namespace weightfs::codec
