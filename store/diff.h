// Two versions compared tensor by tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/store.h"

namespace weightfs {

struct TensorDiff {
  enum class Kind : std::uint8_t { kSame, kChanged, kAdded, kRemoved, kReshaped };
  std::string name;
  Kind kind = Kind::kSame;
  std::string dtype;                 // in `b`, in `a` where it was removed
  std::vector<std::uint64_t> shape;  // likewise
  std::string old_dtype;             // of kReshaped: what it was
  std::vector<std::uint64_t> old_shape;
  std::uint64_t elements = 0;          // of `shape`
  std::uint64_t changed_elements = 0;  // bitwise; of tensors that are in both with one dtype and shape
  std::uint64_t largest_ulp_step = 0;  // how far apart on the number line of the dtype's bits; saturates
};
std::string_view to_string(TensorDiff::Kind kind);

struct FileDiff {  // files without tensors, directories, links; and which files there are
  enum class Kind : std::uint8_t { kChanged, kAdded, kRemoved };
  std::string path;
  Kind kind = Kind::kChanged;
};
std::string_view to_string(FileDiff::Kind kind);

struct VersionDiff {
  std::vector<TensorDiff> tensors;                         // by name
  std::vector<FileDiff> files;                             // by path, those that differ
  std::uint64_t changed_elements = 0, total_elements = 0;  // total: of `b`
};

// Blocking. Reads the headers of both, and both versions' bytes where their block lists differ, in pieces: memory is
// bounded. A tensor is found by name in whichever file it is.
Result<VersionDiff> diff(Store& store, const VersionPtr& a, const VersionPtr& b, const Progress& progress = {},
                         const CallOptions& options = {});

// The distance of the raw bits of two elements, as the codec counts it: over the sign for floats, plain for integers.
// `changed` counts those that differ.   REQUIRES: both of equal size
struct ElementDiff {
  std::uint64_t changed = 0, largest_step = 0;
};
ElementDiff diff_elements(codec::ElementType type, ByteSpan a, ByteSpan b);

}  // namespace weightfs
