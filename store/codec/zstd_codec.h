// zstd with contexts that are kept: no allocation in steady state (but a prefix takes a small one). Internal to the
// codec.
#pragma once

#include <memory>
#include <optional>

#include "store/base/bytes.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace weightfs::codec {

// Memory that one zstd context gives back is kept for what it takes next: it takes and gives on prefixes, and when
// blocks have been much smaller for a while.
class RecycledMemory {
 public:
  RecycledMemory() = default;
  RecycledMemory(const RecycledMemory&) = delete;
  RecycledMemory& operator=(const RecycledMemory&) = delete;
  ~RecycledMemory();
  void* take(std::size_t size) noexcept;  // null: there is none
  void give(void* memory) noexcept;

 private:
  static constexpr std::size_t kKept = 4;
  void* kept_[kKept] = {};
};

class ZstdCodec {
 public:
  // A level that hardly looks for matches: for bytes whose frequencies are all that can be used.
  static constexpr int kEntropy = 0;
  // Nothing when the result does not fit `out`. `prefix` is what matches may also refer to.
  std::optional<std::size_t> compress(ByteSpan plain, ByteSpan prefix, int level, MutableByteSpan out);
  // False unless the frame is sound and has exactly out.size() plain bytes.
  bool decompress(ByteSpan frame, ByteSpan prefix, MutableByteSpan out);

 private:
  struct FreeCompressor {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  struct FreeDecompressor {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  RecycledMemory compressor_memory_, decompressor_memory_;  // outlive the contexts
  std::unique_ptr<ZSTD_CCtx_s, FreeCompressor> compressor_;
  std::unique_ptr<ZSTD_DCtx_s, FreeDecompressor> decompressor_;
};

}  // namespace weightfs::codec
