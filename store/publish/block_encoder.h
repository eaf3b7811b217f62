// One block of a new version becomes a frame. Any thread may call; buffers are the thread's own.
#pragma once

#include <functional>
#include <vector>

#include "store/format/layout.h"
#include "store/format/pack.h"

namespace weightfs {

using ReadFile = std::function<Status(std::uint32_t file, ByteRange range, MutableByteSpan out)>;

struct EncodedBlock {
  ListedBlock listed;
  BlockFrame frame;  // its place is not filled in yet
  Bytes bytes;       // the frame; empty: it needs none
  std::uint64_t changed_elements = 0;
};

// The bytes of `block` by `read`, in a buffer that is good until the thread's next call here.
Result<ByteSpan> read_block(const BlockSpan& block, const std::function<Status(MutableByteSpan)>& read);

ListedBlock listed_block(const BlockSpan& block, ByteSpan target);

// `segments`: what it builds on, read by `read_base`. `tensor`: its changed elements are counted. Fills in all but
// `listed`.
Status encode_frame(const BlockSpan& block, ByteSpan target, bool tensor, std::vector<BaseSegment> segments,
                    const ReadFile& read_base, EncodedBlock& out);

}  // namespace weightfs
