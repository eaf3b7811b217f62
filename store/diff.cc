#include "store/diff.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "store/codec/element.h"
#include "store/format/safetensors.h"
#include "store/materialize/versions.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{4} << 20;

// Where a tensor is.
struct Place {
  std::uint32_t file = 0;
  safetensors::Tensor tensor;
};
using Places = std::map<std::string_view, Place>;  // views into the headers

std::uint64_t elements_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape) count = checked_mul(count, extent).value_or(~std::uint64_t{0});
  return count;
}

TensorDiff describe(std::string_view name, const safetensors::Tensor& tensor) {
  TensorDiff out{.name = std::string(name), .dtype = std::string(tensor.dtype), .shape = tensor.shape.dims()};
  out.elements = elements_of(out.shape);
  return out;
}

// Bits of a float as an integer that grows with its value: -x and x are as far apart as their magnitudes together.
template <typename Raw>
std::uint64_t step_of_floats(Raw a, Raw b) {
  constexpr Raw kSign = Raw{1} << (8 * sizeof(Raw) - 1);
  std::uint64_t x = a & static_cast<Raw>(~kSign), y = b & static_cast<Raw>(~kSign);
  bool same_side = ((a ^ b) & kSign) == 0;
  if (same_side) return x > y ? x - y : y - x;
  return checked_add(x, y).value_or(~std::uint64_t{0});
}

template <typename Raw>
std::uint64_t step_of_integers(Raw a, Raw b) {
  auto up = static_cast<Raw>(a - b), down = static_cast<Raw>(b - a);
  return std::min(up, down);  // right for signed and unsigned alike as long as the step is less than half the range
}

// One side of the comparison.
class Side {
 public:
  Side(Versions& versions, const VersionPtr& version, const CallOptions& options)
      : versions_(versions), version_(version), options_(options) {}

  const Manifest& manifest() const { return version_->manifest(); }

  Status find_tensors() {
    for (std::uint32_t i = 0; i < manifest().files.size(); i++) {
      const FileEntry& entry = manifest().files[i];
      if (entry.kind != FileKind::kFile || !entry.path.str().ends_with(".safetensors")) continue;
      auto file = WFS_TRY(versions_.open_file(version_, i, options_));
      auto header = safetensors::read_header(
          [&](std::uint64_t offset, MutableByteSpan out) {
            return file->read_now({offset, out.size()}, out, options_);
          },
          entry.size);
      if (header.code() == Code::kInvalid) continue;  // not safetensors: compared as bytes
      headers_.push_back(WFS_TRY(std::move(header)));
      tensor_files_.insert(i);
      for (const safetensors::Tensor& tensor : headers_.back().tensors) places_.emplace(tensor.name, Place{i, tensor});
    }
    return {};
  }

  const Places& places() const { return places_; }
  bool has_tensors(std::uint32_t file) const { return tensor_files_.contains(file); }

  Status read(std::uint32_t file, ByteRange range, Bytes* out) {
    if (open_file_ != file || !open_) {
      open_ = WFS_TRY(versions_.open_file(version_, file, options_));
      open_file_ = file;
    }
    out->resize(range.length);
    return open_->read_now(range, *out, options_);
  }

 private:
  Versions& versions_;
  const VersionPtr& version_;
  const CallOptions& options_;
  std::deque<safetensors::Header> headers_;
  Places places_;
  std::set<std::uint32_t> tensor_files_;
  std::uint32_t open_file_ = 0;
  std::shared_ptr<VersionFile> open_;
};

class Comparison {
 public:
  Comparison(Versions& versions, const VersionPtr& a, const VersionPtr& b, const Progress& progress,
             const CallOptions& options)
      : a_(versions, a, options), b_(versions, b, options), progress_(progress), options_(options) {}

  Result<VersionDiff> run() {
    WFS_TRY(a_.find_tensors());
    WFS_TRY(b_.find_tensors());
    for (const auto& [name, place] : b_.places()) {
      if (a_.places().contains(name)) total_ += place.tensor.bytes.length;
    }
    for (const auto& [name, place] : b_.places()) {
      result_.tensors.push_back(WFS_TRY(one_tensor(name, place)));
      result_.changed_elements += result_.tensors.back().changed_elements;
      result_.total_elements += result_.tensors.back().elements;
    }
    for (const auto& [name, place] : a_.places()) {
      if (b_.places().contains(name)) continue;
      TensorDiff removed = describe(name, place.tensor);
      removed.kind = TensorDiff::Kind::kRemoved;
      result_.tensors.push_back(std::move(removed));
    }
    std::sort(result_.tensors.begin(), result_.tensors.end(),
              [](const auto& x, const auto& y) { return x.name < y.name; });
    WFS_TRY(compare_files());
    return std::move(result_);
  }

 private:
  Result<TensorDiff> one_tensor(std::string_view name, const Place& place) {
    TensorDiff out = describe(name, place.tensor);
    auto old = a_.places().find(name);
    if (old == a_.places().end()) {
      out.kind = TensorDiff::Kind::kAdded;
      return out;
    }
    const safetensors::Tensor& before = old->second.tensor;
    if (before.dtype != out.dtype || !(before.shape == place.tensor.shape) ||
        before.bytes.length != place.tensor.bytes.length) {
      out.kind = TensorDiff::Kind::kReshaped;
      out.old_dtype = before.dtype;
      out.old_shape = before.shape.dims();
      done_ += place.tensor.bytes.length;
      return out;
    }
    codec::ElementType type = safetensors::element_type(out.dtype);
    // Equal files are equal tensors, and need not be read.
    const FileEntry& a_file = a_.manifest().files[old->second.file];
    const FileEntry& b_file = b_.manifest().files[place.file];
    bool same_file = a_file.size == b_file.size && a_file.pages == b_file.pages && before.bytes == place.tensor.bytes;
    for (std::uint64_t at = 0; at < place.tensor.bytes.length && !same_file; at += kPiece) {
      if (options_.cancel && options_.cancel->cancelled()) return Status(Code::kInterrupted, "interrupted");
      std::uint64_t length = std::min(kPiece, place.tensor.bytes.length - at);
      WFS_TRY(a_.read(old->second.file, {before.bytes.offset + at, length}, &buffer_a_));
      WFS_TRY(b_.read(place.file, {place.tensor.bytes.offset + at, length}, &buffer_b_));
      ElementDiff piece = diff_elements(type, buffer_a_, buffer_b_);
      out.changed_elements += piece.changed;
      out.largest_ulp_step = std::max(out.largest_ulp_step, piece.largest_step);
      if (progress_) progress_(done_ + at + length, total_);
    }
    done_ += place.tensor.bytes.length;
    out.kind = out.changed_elements > 0 ? TensorDiff::Kind::kChanged : TensorDiff::Kind::kSame;
    return out;
  }

  // Tensors are compared above: files that have some are named only when they come or go.
  Status compare_files() {
    const auto& before = a_.manifest().files;
    const auto& after = b_.manifest().files;
    for (std::uint32_t i = 0; i < after.size(); i++) {
      const std::string& path = after[i].path.str();
      const FileEntry* old = a_.manifest().find(path);
      if (old == nullptr) {
        result_.files.push_back({path, FileDiff::Kind::kAdded});
        continue;
      }
      auto old_index = static_cast<std::uint32_t>(old - before.data());
      bool same =
          old->kind == after[i].kind && old->target == after[i].target && (old->mode & 0111) == (after[i].mode & 0111);
      bool tensors = a_.has_tensors(old_index) && b_.has_tensors(i);
      if (same && !tensors && after[i].kind == FileKind::kFile)
        same = WFS_TRY(same_bytes(old_index, *old, i, after[i]));
      if (!same) result_.files.push_back({path, FileDiff::Kind::kChanged});
    }
    for (const FileEntry& entry : before) {
      if (b_.manifest().find(entry.path.str()) == nullptr) {
        result_.files.push_back({entry.path.str(), FileDiff::Kind::kRemoved});
      }
    }
    std::sort(result_.files.begin(), result_.files.end(), [](const auto& x, const auto& y) { return x.path < y.path; });
    return {};
  }

  // Equal block lists are equal bytes; others may be cut in other ways.
  Result<bool> same_bytes(std::uint32_t a_index, const FileEntry& a, std::uint32_t b_index, const FileEntry& b) {
    if (a.size != b.size) return false;
    if (a.pages == b.pages) return true;
    for (std::uint64_t at = 0; at < a.size; at += kPiece) {
      ByteRange range{at, std::min(kPiece, a.size - at)};
      WFS_TRY(a_.read(a_index, range, &buffer_a_));
      WFS_TRY(b_.read(b_index, range, &buffer_b_));
      if (buffer_a_ != buffer_b_) return false;
    }
    return true;
  }

  Side a_, b_;
  const Progress& progress_;
  const CallOptions& options_;
  VersionDiff result_;
  std::uint64_t done_ = 0, total_ = 0;
  Bytes buffer_a_, buffer_b_;
};

}  // namespace

std::string_view to_string(TensorDiff::Kind kind) {
  switch (kind) {
    case TensorDiff::Kind::kSame:
      return "same";
    case TensorDiff::Kind::kChanged:
      return "changed";
    case TensorDiff::Kind::kAdded:
      return "added";
    case TensorDiff::Kind::kRemoved:
      return "removed";
    case TensorDiff::Kind::kReshaped:
      return "reshaped";
  }
  return "";
}

std::string_view to_string(FileDiff::Kind kind) {
  switch (kind) {
    case FileDiff::Kind::kChanged:
      return "changed";
    case FileDiff::Kind::kAdded:
      return "added";
    case FileDiff::Kind::kRemoved:
      return "removed";
  }
  return "";
}

ElementDiff diff_elements(codec::ElementType type, ByteSpan a, ByteSpan b) {
  return codec::visit_element(type, [&]<typename E>(E) {
    using Raw = typename E::Raw;
    ElementDiff out;
    for (std::size_t i = 0; i < a.size() / sizeof(Raw); i++) {
      Raw x = codec::load_element<Raw>(a.data(), i), y = codec::load_element<Raw>(b.data(), i);
      if (x == y) continue;
      out.changed++;
      out.largest_step = std::max(out.largest_step, E::kHasExponent ? step_of_floats(x, y) : step_of_integers(x, y));
    }
    return out;
  });
}

Result<VersionDiff> diff(Store& store, const VersionPtr& a, const VersionPtr& b, const Progress& progress,
                         const CallOptions& options) {
  return Comparison(store.versions(), a, b, progress, options).run();
}

}  // namespace weightfs
