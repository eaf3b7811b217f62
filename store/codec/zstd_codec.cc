#include "store/codec/zstd_codec.h"

#include <zstd.h>

#include <new>

namespace weightfs::codec {

void ZstdCodec::FreeCompressor::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void ZstdCodec::FreeDecompressor::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

std::optional<std::size_t> ZstdCodec::compress(ByteSpan plain, ByteSpan prefix, int level, MutableByteSpan out) {
  if (!compressor_) compressor_.reset(ZSTD_createCCtx());
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
  if (!decompressor_) decompressor_.reset(ZSTD_createDCtx());
  if (!decompressor_) throw std::bad_alloc();
  auto* context = decompressor_.get();
  ZSTD_DCtx_reset(context, ZSTD_reset_session_and_parameters);
  if (!prefix.empty()) ZSTD_DCtx_refPrefix(context, prefix.data(), prefix.size());
  auto size = ZSTD_decompressDCtx(context, out.data(), out.size(), frame.data(), frame.size());
  return !ZSTD_isError(size) && size == out.size();
}

}  // namespace weightfs::codec
