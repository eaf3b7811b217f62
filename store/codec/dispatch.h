// Which instructions the codec uses. All levels give the same bytes and the same verdicts.
#pragma once

#include <cstdint>

namespace weightfs::codec {

// kAvx2Pdep: where PDEP is fast (Intel, AMD since Zen 3; microcode takes a hundred cycles for it on older AMD).
enum class SimdLevel : std::uint8_t { kScalar = 0, kAvx2 = 1, kAvx2Pdep = 2, kAvx512 = 3 };
inline constexpr int kSimdLevels = 4;

SimdLevel simd_level();  // the best this machine has, or what was forced
// For tests and benchmarks: at most `level`. Any thread's next call uses it.
void force_simd_level(SimdLevel level);
const char* to_string(SimdLevel level);

}  // namespace weightfs::codec
