// decode_block and apply_frame on hostile frames and bases.
#include "tests/fuzz/block_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weightfs::codec::run_case({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
