#include "store/codec/dispatch.h"

#include <algorithm>
#include <atomic>

namespace weightfs::codec {
namespace {

SimdLevel best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
      !__builtin_cpu_supports("popcnt")) {
    return SimdLevel::kScalar;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2")) {
    return SimdLevel::kAvx512;
  }
  return __builtin_cpu_is("amdfam15h") || __builtin_cpu_is("amdfam17h") ? SimdLevel::kAvx2 : SimdLevel::kAvx2Pdep;
#else
  return SimdLevel::kScalar;
#endif
}

std::atomic<SimdLevel>& chosen() {
  static std::atomic<SimdLevel> level{best_level()};
  return level;
}

}  // namespace

SimdLevel simd_level() { return chosen().load(std::memory_order_relaxed); }

void force_simd_level(SimdLevel level) { chosen().store(std::min(level, best_level()), std::memory_order_relaxed); }

const char* to_string(SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512:
      return "AVX-512";
    case SimdLevel::kAvx2Pdep:
      return "AVX2 + PDEP";
    case SimdLevel::kAvx2:
      return "AVX2";
    default:
      return "scalar";
  }
}

}  // namespace weightfs::codec
