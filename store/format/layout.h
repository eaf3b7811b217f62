// How a file is cut into blocks: the unit of fetching, verifying and caching. A property of the version, recorded in
// its block lists, so a reader never computes it; publishers may cut in other ways as long as the limits hold.
#pragma once

#include <vector>

#include "store/base/bytes.h"
#include "store/codec/codec.h"
#include "store/format/safetensors.h"

namespace weightfs {

struct BlockSpan {
  ByteRange range;  // of the file; 1 .. codec::kMaxBlock bytes
  codec::ElementType type = codec::ElementType::kBytes;
  friend bool operator==(const BlockSpan&, const BlockSpan&) = default;
};

// Blocks that cover [0, file_size) in order, without holes. With a header: the header's own bytes are blocks of kBytes;
// a tensor over kMaxBlock is cut at multiples of kMaxBlock from its start, neighbouring smaller tensors of one element
// type share a block up to kMaxBlock. Without: multiples of kMaxBlock. So the cuts inside a tensor do not depend on the
// file it is in.
std::vector<BlockSpan> cut_blocks(std::uint64_t file_size, const safetensors::Header* header);

}  // namespace weightfs
