// Checkpoints for the codec's benchmark: safetensors files in memory, cut into blocks as a publisher cuts them.
#pragma once

#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/codec/codec.h"

namespace weightfs::bench {

struct Span {
  codec::ElementType type;
  std::size_t offset, length;  // in Checkpoint::bytes
};

struct Checkpoint {
  Bytes bytes;  // the tensors of all files, one after the other
  std::vector<Span> tensors;
};

// Reads DIR/*.safetensors in the order of their names. Exits with a message when it cannot.
Checkpoint load(const std::string& dir);

// At most `largest` bytes each; a tensor of an eighth of that or more has blocks of its own, smaller neighbours of one
// type share.
std::vector<Span> cut_blocks(const Checkpoint& checkpoint, std::size_t largest);

}  // namespace weightfs::bench
