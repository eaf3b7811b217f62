// Input: one byte that selects a manifest or a page of a block list, then that.
#include "fuzz.h"
#include "store/format/manifest.h"

using namespace weightfs;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto bytes = fuzz::input(data, size).subspan(1);
  if (data[0] % 2 == 0) {
    fuzz::check_round_trip(
        parse_manifest(bytes), [](const Manifest& manifest) { return serialize(manifest); }, parse_manifest);
  } else {
    fuzz::check_round_trip(parse_block_list(bytes), serialize_block_list, parse_block_list);
  }
  return 0;
}
