// How other systems encode an update, written anew from their formats, to compare on the same bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/bench/codec_data.h"

namespace weightfs::bench {

class Rival {
 public:
  virtual ~Rival() = default;
  virtual std::string name() const = 0;
  virtual int repetitions() const { return 3; }
  // Encodes all tensors; returns the encoded size.
  virtual std::size_t encode(const Checkpoint& base, const Checkpoint& target) = 0;
  // Decodes what encode() made into `out`, which has target's size.
  virtual void decode(const Checkpoint& base, MutableByteSpan out) = 0;
};

// TRL v1 and gap_delta, XOR + zstd-1, zstd -3 --patch-from, xdelta3, zstd -3 of the file itself.
std::vector<std::unique_ptr<Rival>> rivals(const std::string& temp_dir);

}  // namespace weightfs::bench
