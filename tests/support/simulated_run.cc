#include "tests/support/simulated_run.h"

#include <cstring>

namespace weightfs::testing {
namespace {

constexpr float kSigma = 0.03F;   // of the weights
constexpr float kDrift = 0.18F;   // of the steady part of a gradient
constexpr float kStart = 0.229F;  // of the momentum that earlier steps left

}  // namespace

SimulatedRun::SimulatedRun(std::size_t elements, float learning_rate, std::uint64_t seed)
    : rate_(learning_rate), random_(static_cast<std::mt19937::result_type>(seed)) {
  std::normal_distribution<float> normal;
  table_.resize(1 << 20);
  for (auto& value : table_) value = normal(random_);
  for (std::size_t i = 0; i < elements; i++) {
    masters_.push_back(normal(random_) * kSigma);
    drift_.push_back(normal(random_) * kDrift);
    momentum_.push_back(normal(random_) * kStart + drift_.back());
  }
}

void SimulatedRun::step() {
  auto at = random_();
  for (std::size_t i = 0; i < masters_.size(); i++) {
    if (i % 64 == 0) at = random_();
    auto noise = table_[(at + i % 64 * 15'485'863) & ((1 << 20) - 1)];
    momentum_[i] = momentum_[i] * 0.9F + (noise + drift_[i]) * 0.1F;
    masters_[i] -= rate_ * momentum_[i];
  }
}

Bytes SimulatedRun::weights() const {
  Bytes bytes(masters_.size() * 2);
  for (std::size_t i = 0; i < masters_.size(); i++) {
    std::uint32_t bits;
    std::memcpy(&bits, &masters_[i], 4);
    bits += 0x7fff + (bits >> 16 & 1);  // round to nearest even
    store_le(bytes.data() + 2 * i, static_cast<std::uint16_t>(bits >> 16));
  }
  return bytes;
}

}  // namespace weightfs::testing
