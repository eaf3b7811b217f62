// The safetensors container: 8 bytes of header length (u64 LE), that many bytes of JSON, then the tensors' bytes.
// Source of the format: the safetensors README ("Format") and its Rust parser, whose checks we repeat; where the two
// disagree we accept what the parser accepts, with these exceptions: a tensor's name that occurs twice is refused (the
// parser takes the last), so are tensors given as arrays instead of objects, and a dtype that is not known, of at
// most 64 bytes, is kept as it is, its size unchecked (the parser refuses it), and numbers in
// fields that nobody reads may have any exponent. No length is trusted. A file that does
// not parse is stored as plain bytes, never refused.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/status.h"
#include "store/codec/codec.h"

namespace weightfs::safetensors {

inline constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes of JSON, as in the reference parser

// The dimensions of a tensor, slowest first. A view into its Header.
class Shape {
 public:
  Shape() = default;
  Shape(std::size_t rank, ByteSpan packed) : rank_(rank), packed_(packed) {}
  std::size_t rank() const { return rank_; }  // 0: a scalar
  std::vector<std::uint64_t> dims() const;
  friend bool operator==(const Shape& a, const Shape& b);
  friend bool operator==(const Shape& a, const std::vector<std::uint64_t>& b) { return a.dims() == b; }

 private:
  std::size_t rank_ = 0;
  ByteSpan packed_;  // varints
};

// A view into its Header: cheap to copy, valid while the Header lives (a moved Header's content lives on in its new
// place).
struct Tensor {
  std::string_view name;   // UTF-8
  std::string_view dtype;  // as written: "BF16", "F8_E4M3", …; unknown ones are kept
  Shape shape;
  ByteRange bytes;  // in the file; may be empty
};

// Tensors by offset in the file, then by name; they do not overlap and leave no hole. A range of Tensor values, with
// random access. Packed: it takes less memory than the JSON that it comes from.
class TensorList {
 public:
  class Iterator;
  Tensor operator[](std::size_t i) const;
  std::size_t size() const { return records_.size(); }
  bool empty() const { return records_.empty(); }
  Iterator begin() const;
  Iterator end() const;

 private:
  friend class HeaderBuilder;
  struct Record {
    std::uint64_t start = 0, end = 0;  // from data_start_
    std::uint32_t at = 0;              // in packed_: name, then dtype (varint length first), rank, dimensions (varints)
    std::uint32_t name_length = 0;
  };
  std::string_view name_of(const Record& record) const {
    return std::string_view(packed_).substr(record.at, record.name_length);
  }
  std::uint64_t data_start_ = 0;
  std::vector<Record> records_;
  std::string packed_;
};

class TensorList::Iterator {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = Tensor;
  using difference_type = std::ptrdiff_t;
  using reference = Tensor;
  struct Pointer {
    Tensor tensor;
    const Tensor* operator->() const { return &tensor; }
  };
  using pointer = Pointer;

  Iterator() = default;
  Iterator(const TensorList& list, std::size_t at) : list_(&list), at_(static_cast<std::ptrdiff_t>(at)) {}
  Tensor operator*() const { return (*list_)[static_cast<std::size_t>(at_)]; }
  Pointer operator->() const { return {**this}; }
  Tensor operator[](std::ptrdiff_t by) const { return *(*this + by); }
  Iterator& operator++() { return at_++, *this; }
  Iterator& operator--() { return at_--, *this; }
  Iterator operator++(int) { return {*list_, static_cast<std::size_t>(at_++)}; }
  Iterator operator--(int) { return {*list_, static_cast<std::size_t>(at_--)}; }
  Iterator& operator+=(std::ptrdiff_t by) { return at_ += by, *this; }
  Iterator& operator-=(std::ptrdiff_t by) { return at_ -= by, *this; }
  friend Iterator operator+(Iterator it, std::ptrdiff_t by) { return it += by; }
  friend Iterator operator-(Iterator it, std::ptrdiff_t by) { return it -= by; }
  friend std::ptrdiff_t operator-(const Iterator& a, const Iterator& b) { return a.at_ - b.at_; }
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }
  friend auto operator<=>(const Iterator& a, const Iterator& b) { return a.at_ <=> b.at_; }

 private:
  const TensorList* list_ = nullptr;
  std::ptrdiff_t at_ = 0;
};

inline TensorList::Iterator TensorList::begin() const { return {*this, 0}; }
inline TensorList::Iterator TensorList::end() const { return {*this, size()}; }

struct Header {
  std::uint64_t data_start = 0;  // 8 + the header's length
  TensorList tensors;
};

// The element type that the codec uses for a dtype; kBytes for packed and unknown ones.
codec::ElementType element_type(std::string_view dtype);

// Length of the JSON, from the file's first 8 bytes.   kInvalid: not a safetensors file of this size.
Result<std::uint64_t> header_length(ByteSpan first8, std::uint64_t file_size);

inline constexpr std::uint64_t kUnknownSize = ~std::uint64_t{0};

// Parses the JSON of a file of `file_size` bytes (kUnknownSize: as many as the tensors need) in two passes over it:
// memory beyond `json` stays below its size. kInvalid, with the reason, for whatever the reference parser refuses.
Result<Header> parse_header(ByteSpan json, std::uint64_t file_size);
// Where the last tensor ends: the size of the file that a header describes.
std::uint64_t described_size(const Header& header);

// Reads and parses through `read` (fills the span from that offset of the file, or fails).
using ReadAt = std::function<Status(std::uint64_t offset, MutableByteSpan out)>;
Result<Header> read_header(const ReadAt& read, std::uint64_t file_size);

// The shard names in a `*.index.json` ("weight_map"), distinct and sorted, as they stand there: any strings. kInvalid
// when it is not such an index.
Result<std::vector<std::string>> shards_of_index(ByteSpan json);

}  // namespace weightfs::safetensors
