// Input: 2 bytes with the length of the tensors' bytes, then the header's JSON. The same JSON as an index of shards.
#include "fuzz.h"
#include "store/format/layout.h"
#include "store/format/safetensors.h"

using namespace weightfs;

namespace {

void check_header(const safetensors::Header& header, std::uint64_t file_size) {
  std::uint64_t at = header.data_start;
  for (const auto& tensor : header.tensors) {
    WFS_CHECK(tensor.bytes.offset == at);
    WFS_CHECK(tensor.shape.dims().size() == tensor.shape.rank());
    at = tensor.bytes.end();
  }
  WFS_CHECK(at == file_size);
  at = 0;
  for (const auto& block : cut_blocks(file_size, &header)) {
    WFS_CHECK(block.range.offset == at && !block.range.empty() && block.range.length <= codec::kMaxBlock);
    at = block.range.end();
  }
  WFS_CHECK(at == file_size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto bytes = fuzz::input(data, size);
  if (size < 2) return 0;
  auto json = bytes.subspan(2);
  auto file_size = 8 + json.size() + load_le<std::uint16_t>(bytes.data());
  auto header = safetensors::parse_header(json, file_size);
  if (header.is_ok()) {
    check_header(*header, file_size);
  } else {
    WFS_CHECK(header.code() == Code::kInvalid);
  }
  auto read = [&](std::uint64_t offset, MutableByteSpan out) -> Status {
    if (offset > size || size - offset < out.size()) return {Code::kCorrupt, "read beyond the end"};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return {};
  };
  auto whole = safetensors::read_header(read, size);
  WFS_CHECK(whole.is_ok() || whole.code() == Code::kInvalid);
  auto shards = safetensors::shards_of_index(json);
  WFS_CHECK(shards.is_ok() || shards.code() == Code::kInvalid);
  return 0;
}
