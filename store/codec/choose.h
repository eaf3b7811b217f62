// Which codec a block gets. Internal to the codec.
#pragma once

#include "store/codec/codec.h"
#include "store/codec/scratch.h"

namespace weightfs::codec {

Encoded choose_and_encode(Scratch::Impl& scratch, ElementType type, ByteSpan base, ByteSpan target,
                          MutableByteSpan frame, const EncodeOptions& options);

// Encodes by this codec whether it is cheap or not, for tests and benchmarks. Nothing when it cannot (no base, a base
// of another length, not the same, not zero, longer than a frame may be).
std::optional<std::size_t> encode_as(Scratch::Impl& scratch, CodecId codec, ElementType type, ByteSpan base,
                                     ByteSpan target, MutableByteSpan frame, const EncodeOptions& options);

// Samples what plan_classes needs.
void sample_keys(ElementType type, ByteSpan base, ByteSpan target, KeyStatistics& statistics);

}  // namespace weightfs::codec
