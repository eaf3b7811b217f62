// Weights of a training run as Adam moves them, without a trainer: for tests that need deltas of realistic sizes over
// long distances.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "store/base/bytes.h"

namespace weightfs::testing {

// One tensor of bf16 weights with fp32 masters. A step adds lr times a momentum (0.9) of noise and of a steady drift;
// the constants follow an AdamW fine-tuning of a small sentence encoder (share of changed elements by exponent within a
// few per cent).
class SimulatedRun {
 public:
  SimulatedRun(std::size_t elements, float learning_rate, std::uint64_t seed);
  void step();
  Bytes weights() const;  // bf16, little-endian

 private:
  const float rate_;
  std::mt19937 random_;
  std::vector<float> table_;  // standard normal values, drawn from at random offsets: cheap noise
  std::vector<float> masters_, drift_, momentum_;
};

}  // namespace weightfs::testing
