#include "store/format/layout.h"

#include <algorithm>

namespace weightfs {
namespace {

using codec::ElementType;
using codec::kMaxBlock;

// Cuts [at, end) at multiples of kMaxBlock from its start.
void cut_whole(std::vector<BlockSpan>& blocks, std::uint64_t at, std::uint64_t end, ElementType type) {
  for (; at < end; at += kMaxBlock) blocks.push_back({{at, std::min<std::uint64_t>(kMaxBlock, end - at)}, type});
}

}  // namespace

std::vector<BlockSpan> cut_blocks(std::uint64_t file_size, const safetensors::Header* header) {
  std::vector<BlockSpan> blocks;
  if (header == nullptr) {
    cut_whole(blocks, 0, file_size, ElementType::kBytes);
    return blocks;
  }
  cut_whole(blocks, 0, header->data_start, ElementType::kBytes);
  bool shareable = false;  // the last block has small tensors only
  for (const auto& tensor : header->tensors) {
    if (tensor.bytes.empty()) continue;
    auto type = safetensors::element_type(tensor.dtype);
    if (tensor.bytes.length > kMaxBlock) {
      cut_whole(blocks, tensor.bytes.offset, tensor.bytes.end(), type);
      shareable = false;
    } else if (shareable && blocks.back().type == type &&
               blocks.back().range.length + tensor.bytes.length <= kMaxBlock) {
      blocks.back().range.length += tensor.bytes.length;
    } else {
      blocks.push_back({tensor.bytes, type});
      shareable = true;
    }
  }
  return blocks;
}

}  // namespace weightfs
