#include "store/format/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "store/format/json_scanner.h"

namespace weightfs::safetensors {
namespace {

using json::RawString;
using json::Scanner;

Status invalid(std::string message) { return {Code::kInvalid, "safetensors: " + std::move(message)}; }

struct DtypeInfo {
  std::string_view name;
  unsigned bits;
  codec::ElementType type;
};
constexpr DtypeInfo kDtypes[] = {
    {"BF16", 16, codec::ElementType::kBf16},         {"F16", 16, codec::ElementType::kF16},
    {"F32", 32, codec::ElementType::kF32},           {"F64", 64, codec::ElementType::kF64},
    {"F8_E4M3", 8, codec::ElementType::kF8E4M3},     {"F8_E4M3FN", 8, codec::ElementType::kF8E4M3},
    {"F8_E4M3FNUZ", 8, codec::ElementType::kF8E4M3}, {"F8_E5M2", 8, codec::ElementType::kF8E5M2},
    {"F8_E5M2FNUZ", 8, codec::ElementType::kF8E5M2}, {"F8_E8M0", 8, codec::ElementType::kBytes},
    {"I16", 16, codec::ElementType::kInt16},         {"U16", 16, codec::ElementType::kInt16},
    {"I32", 32, codec::ElementType::kInt32},         {"U32", 32, codec::ElementType::kInt32},
    {"I64", 64, codec::ElementType::kInt64},         {"U64", 64, codec::ElementType::kInt64},
    {"I8", 8, codec::ElementType::kBytes},           {"U8", 8, codec::ElementType::kBytes},
    {"BOOL", 8, codec::ElementType::kBytes},         {"F4", 4, codec::ElementType::kBytes},
    {"F6_E2M3", 6, codec::ElementType::kBytes},      {"F6_E3M2", 6, codec::ElementType::kBytes},
    {"C64", 64, codec::ElementType::kBytes},
};

constexpr std::size_t kMaxDtype = 64;

const DtypeInfo* find_dtype(std::string_view dtype) {
  const auto* at = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& d) { return d.name == dtype; });
  return at == std::end(kDtypes) ? nullptr : at;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

std::size_t varint_length(std::uint64_t value) {
  std::size_t length = 1;
  for (; value >= 0x80; value >>= 7) length++;
  return length;
}

// One entry of the header, as it stands in the text.
struct RawTensor {
  RawString name, dtype;
  std::string_view shape;  // the text of the array
  std::uint64_t rank = 0, shape_bytes = 0;
  std::optional<std::uint64_t> elements;  // none: the product overflows
  std::uint64_t start = 0, end = 0;
};

// An array of whole numbers, each given to `each`.
template <typename Each>
bool scan_numbers(Scanner& in, const Each& each) {
  if (!in.expect('[')) return false;
  for (bool first = true; in.next_item(first);) {
    std::uint64_t value = 0;
    if (!in.number(value)) return false;
    each(value);
  }
  return !in.failed();
}

bool scan_shape(Scanner& in, RawTensor& tensor) {
  tensor.elements = 1;
  auto start = in.position();
  bool ok = scan_numbers(in, [&](std::uint64_t dim) {
    tensor.rank++;
    tensor.shape_bytes += varint_length(dim);
    if (tensor.elements) tensor.elements = checked_mul(*tensor.elements, dim);
  });
  tensor.shape = in.text_from(start);
  return ok;
}

bool scan_offsets(Scanner& in, RawTensor& tensor) {
  return in.expect('[') && in.number(tensor.start) && in.expect(',') && in.number(tensor.end) && in.expect(']');
}

// The fields of one tensor; unknown ones are skipped, as the reference parser does.
Status scan_tensor(Scanner& in, RawTensor& tensor) {
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAll = 7 };
  unsigned seen = 0;
  if (!in.expect('{')) return in.error();
  RawString key;
  for (bool first = true; in.next_member(first, key);) {
    unsigned field = key.is("dtype") ? kDtype : key.is("shape") ? kShape : key.is("data_offsets") ? kOffsets : 0u;
    if ((seen & field) != 0) return invalid("a field of a tensor occurs twice");
    seen |= field;
    bool ok = field == kDtype     ? in.string(tensor.dtype)
              : field == kShape   ? scan_shape(in, tensor)
              : field == kOffsets ? scan_offsets(in, tensor)
                                  : in.skip_value();
    if (!ok) return in.error();
  }
  if (in.failed()) return in.error();
  if (seen != kAll) return invalid("a tensor without dtype, shape or data_offsets");
  return {};
}

// `__metadata__`: null, or strings.
Status scan_metadata(Scanner& in) {
  if (in.null()) return {};
  if (!in.expect('{')) return in.error();
  RawString key, value;
  for (bool first = true; in.next_member(first, key);) {
    if (!in.string(value)) return in.error();
  }
  return in.failed() ? in.error() : Status();
}

template <typename OnTensor>
Status scan_header(ByteSpan text, const OnTensor& on_tensor) {
  Scanner in(text);
  if (!in.expect('{')) return in.error();
  bool metadata_seen = false;
  RawTensor tensor;
  for (bool first = true; in.next_member(first, tensor.name);) {
    if (tensor.name.is("__metadata__")) {
      if (std::exchange(metadata_seen, true)) return invalid("__metadata__ occurs twice");
      WFS_TRY(scan_metadata(in));
      continue;
    }
    tensor.rank = tensor.shape_bytes = 0;
    WFS_TRY(scan_tensor(in, tensor));
    WFS_TRY(on_tensor(tensor));
  }
  return in.failed() || !in.end() ? in.error() : Status();
}

// Against dtype and shape, where the dtype is known.
Status check_size(const RawTensor& tensor, const std::string& dtype) {
  if (tensor.end < tensor.start) return invalid("offsets of a tensor are not in order");
  if (!tensor.elements) return invalid("shape of a tensor overflows");
  const auto* info = find_dtype(dtype);
  if (info == nullptr) return {};
  auto bits = checked_mul(*tensor.elements, std::uint64_t{info->bits});
  if (!bits) return invalid("size of a tensor overflows");
  if (*bits % 8 != 0 || *bits / 8 != tensor.end - tensor.start) return invalid("size of a tensor is not its shape's");
  return {};
}

}  // namespace

// Fills a TensorList: first told how much there will be, so that it allocates once.
class HeaderBuilder {
 public:
  HeaderBuilder(TensorList& list, std::uint64_t data_start) : list_(list) { list_.data_start_ = data_start; }

  Status count(const RawTensor& tensor) {
    tensors_++;
    if (tensor.dtype.text.size() > kMaxDtype) return invalid("a dtype of over 64 bytes");
    bytes_ += tensor.name.text.size() + varint_length(tensor.dtype.text.size()) + tensor.dtype.text.size() +
              varint_length(tensor.rank) + tensor.shape_bytes;
    return {};
  }
  void reserve() {
    list_.records_.reserve(tensors_);
    list_.packed_.reserve(bytes_);
  }

  Status add(const RawTensor& tensor) {
    auto& packed = list_.packed_;
    auto at = static_cast<std::uint32_t>(packed.size());  // below the JSON's size, which is below kMaxHeader
    std::string dtype;
    tensor.dtype.append_to(dtype);
    WFS_TRY(check_size(tensor, dtype));
    tensor.name.append_to(packed);
    auto name_length = static_cast<std::uint32_t>(packed.size() - at);
    put_varint(packed, dtype.size());
    packed.append(dtype);
    put_varint(packed, tensor.rank);
    Scanner shape(as_bytes(tensor.shape));
    WFS_CHECK(scan_numbers(shape, [&](std::uint64_t dim) { put_varint(packed, dim); }));
    list_.records_.push_back({tensor.start, tensor.end, at, name_length});
    return {};
  }

  // Everything is there: names once each, and the data without hole and overlap from 0 to `data_size` (where known).
  Status finish(std::optional<std::uint64_t> data_size) {
    auto& records = list_.records_;
    auto name = [&](const TensorList::Record& record) { return list_.name_of(record); };
    std::sort(records.begin(), records.end(), [&](const auto& a, const auto& b) { return name(a) < name(b); });
    auto twice = std::adjacent_find(records.begin(), records.end(),
                                    [&](const auto& a, const auto& b) { return name(a) == name(b); });
    if (twice != records.end()) return invalid("a tensor's name occurs twice");
    std::sort(records.begin(), records.end(), [&](const auto& a, const auto& b) {
      return std::pair(a.start, a.end) != std::pair(b.start, b.end)
                 ? std::pair(a.start, a.end) < std::pair(b.start, b.end)
                 : name(a) < name(b);
    });
    std::uint64_t end = 0;
    for (const auto& record : records) {
      if (record.start != end) return invalid("tensors overlap, or leave a hole");
      end = record.end;
    }
    return !data_size || end == *data_size ? Status() : invalid("the tensors do not end where the file does");
  }

 private:
  TensorList& list_;
  std::size_t tensors_ = 0, bytes_ = 0;
};

Tensor TensorList::operator[](std::size_t i) const {
  const auto& record = records_[i];
  ByteReader in(as_bytes(packed_).subspan(record.at + record.name_length));
  Tensor tensor;
  tensor.name = name_of(record);
  tensor.dtype = as_text(in.bytes(in.varint()));
  auto rank = in.varint();
  auto dims = as_bytes(packed_).subspan(record.at + record.name_length + in.position());
  std::size_t length = 0;
  for (auto left = rank; left > 0; length++) left -= (dims[length] & std::byte{0x80}) == std::byte{0} ? 1 : 0;
  tensor.shape = Shape(rank, dims.first(length));
  tensor.bytes = {data_start_ + record.start, record.end - record.start};
  return tensor;
}

std::vector<std::uint64_t> Shape::dims() const {
  std::vector<std::uint64_t> dims(rank_);
  ByteReader in(packed_);
  for (auto& dim : dims) dim = in.varint();
  return dims;
}

bool operator==(const Shape& a, const Shape& b) {
  return a.rank_ == b.rank_ && std::equal(a.packed_.begin(), a.packed_.end(), b.packed_.begin(), b.packed_.end());
}

codec::ElementType element_type(std::string_view dtype) {
  const auto* info = find_dtype(dtype);
  return info == nullptr ? codec::ElementType::kBytes : info->type;
}

Result<std::uint64_t> header_length(ByteSpan first8, std::uint64_t file_size) {
  if (first8.size() < 8 || file_size < 8) return invalid("shorter than 8 bytes");
  auto length = load_le<std::uint64_t>(first8.data());
  if (length > kMaxHeader) return invalid("header over 100 MB");
  if (length > file_size - 8) return invalid("header longer than the file");
  return length;
}

Result<Header> parse_header(ByteSpan text, std::uint64_t file_size) {
  if (text.size() > kMaxHeader || file_size < 8 || text.size() > file_size - 8)
    return invalid("bad length of the header");
  Header header;
  header.data_start = 8 + text.size();
  HeaderBuilder builder(header.tensors, header.data_start);
  WFS_TRY(scan_header(text, [&](const RawTensor& tensor) { return builder.count(tensor); }));
  builder.reserve();
  WFS_TRY(scan_header(text, [&](const RawTensor& tensor) { return builder.add(tensor); }));
  std::optional<std::uint64_t> data_size;
  if (file_size != kUnknownSize) data_size = file_size - header.data_start;
  WFS_TRY(builder.finish(data_size));
  return header;
}

std::uint64_t described_size(const Header& header) {
  return header.tensors.empty() ? header.data_start : header.tensors[header.tensors.size() - 1].bytes.end();
}

Result<Header> read_header(const ReadAt& read, std::uint64_t file_size) {
  if (file_size < 8) return invalid("shorter than 8 bytes");
  std::array<std::byte, 8> first{};
  WFS_TRY(read(0, first));
  auto length = WFS_TRY(header_length(first, file_size));
  Bytes text(length);
  WFS_TRY(read(8, text));
  return parse_header(text, file_size);
}

Result<std::vector<std::string>> shards_of_index(ByteSpan text) {
  Scanner in(text);
  std::set<std::string, std::less<>> shards;
  bool seen = false;
  RawString key;
  if (!in.expect('{')) return in.error();
  for (bool first = true; in.next_member(first, key);) {
    if (!key.is("weight_map")) {
      if (!in.skip_value()) return in.error();
      continue;
    }
    seen = true;
    if (!in.expect('{')) return in.error();
    RawString shard;
    for (bool first_shard = true; in.next_member(first_shard, key);) {
      if (!in.string(shard)) return in.error();
      std::string name;
      shard.append_to(name);
      shards.insert(std::move(name));
    }
    if (in.failed()) return in.error();
  }
  if (in.failed() || !in.end()) return in.error();
  if (!seen) return Status(Code::kInvalid, "no weight_map in it");
  return std::vector<std::string>(shards.begin(), shards.end());
}

}  // namespace weightfs::safetensors
