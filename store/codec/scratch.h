// What one thread's calls reuse. Internal to the codec.
#pragma once

#include <memory>

#include "store/codec/codec.h"
#include "store/codec/sparse.h"
#include "store/codec/zstd_codec.h"

namespace weightfs::codec {

// A buffer of fixed size, made at its first use and never cleared.
template <std::size_t kSize>
class LazyBuffer {
 public:
  std::byte* data() {
    if (!bytes_) bytes_ = std::make_unique_for_overwrite<std::byte[]>(kSize);
    return bytes_.get();
  }
  MutableByteSpan first(std::size_t size) { return {data(), size}; }  // REQUIRES: size <= kSize

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

struct Scratch::Impl {
  ZstdCodec zstd;
  LazyBuffer<kMaxFrame + kBitSlack> frame;         // decoding: a padded copy; encoding: the candidate being tried
  LazyBuffer<kMaxBlock> planes;                    // byte planes
  LazyBuffer<64 * 1024> trial_base, trial_target;  // encoding: a part of a block
  SparseFrame sparse;                              // decoding
  DecodeWorkspace decoding;
  SparseEncoder encoder;
};

}  // namespace weightfs::codec
