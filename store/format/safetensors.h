// The safetensors container: 8 bytes of header length (u64 LE), that many bytes of JSON, then the tensors' bytes.
// Source of the format: the safetensors README ("Format") and its Rust parser, whose checks we repeat; where the two
// disagree we accept what the parser accepts. No length is trusted. A file that does not parse is stored as plain
// bytes, never refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/status.h"
#include "store/codec/codec.h"

namespace weightfs::safetensors {

inline constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes of JSON, as in the reference parser

struct Tensor {
  std::string name;                  // UTF-8
  std::string dtype;                 // as written: "BF16", "F8_E4M3", …; unknown ones are kept
  std::vector<std::uint64_t> shape;  // empty: a scalar
  ByteRange bytes;                   // in the file; may be empty
};

struct Header {
  std::uint64_t data_start = 0;  // 8 + the header's length
  std::vector<Tensor> tensors;   // by offset in the file, then by name; they do not overlap and leave no hole
};

// The element type that the codec uses for a dtype; kBytes for packed and unknown ones.
codec::ElementType element_type(std::string_view dtype);

// Length of the JSON, from the file's first 8 bytes.   kInvalid: not a safetensors file of this size.
Result<std::uint64_t> header_length(ByteSpan first8, std::uint64_t file_size);

// Parses the JSON of a file of `file_size` bytes, by a streaming parser: memory beyond `json` stays below its size.
// kInvalid, with the reason, for whatever the reference parser refuses.
Result<Header> parse_header(ByteSpan json, std::uint64_t file_size);

// Reads and parses through `read` (fills the span from that offset of the file, or fails).
using ReadAt = std::function<Status(std::uint64_t offset, MutableByteSpan out)>;
Result<Header> read_header(const ReadAt& read, std::uint64_t file_size);

// The shard names in a `*.index.json` ("weight_map"), distinct and sorted. kInvalid when it is not such an index.
Result<std::vector<std::string>> shards_of_index(ByteSpan json);

}  // namespace weightfs::safetensors
