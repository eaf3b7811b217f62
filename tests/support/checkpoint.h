// Small checkpoints as tests need them: directories of safetensors files whose bf16 weights change a little from step
// to step.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "store/base/bytes.h"

namespace weightfs::testing {

struct CheckpointShape {
  int shards = 2;
  int tensors_per_shard = 3;
  std::uint64_t elements = 300'000;  // of a tensor, bf16
  std::uint64_t seed = 1;
  double changed = 0.02;  // share of the elements that a step changes
};

// Writes step `step` of the run that `shape` describes below `dir` (made when missing): shards, an index, a config, an
// empty file, a nested file and a symlink. The same arguments give the same bytes.
void write_checkpoint(const std::string& dir, const CheckpointShape& shape, int step);

// Every path below `dir` with its content: "file:<bytes>", "link:<target>", "dir". For comparing.
std::map<std::string, std::string> read_tree(const std::string& dir);

}  // namespace weightfs::testing
