#include "store/publish/base_match.h"

#include <algorithm>

namespace weightfs {
namespace {

constexpr std::uint32_t kNoFile = ~std::uint32_t{0};

std::uint32_t index_of(const Manifest& manifest, std::string_view path) {
  const auto* entry = manifest.find(path);
  return entry == nullptr || entry->kind != FileKind::kFile ? kNoFile
                                                            : static_cast<std::uint32_t>(entry - manifest.files.data());
}

void append(std::vector<BaseSegment>& segments, BaseSegment next) {
  if (!segments.empty()) {
    auto& last = segments.back();
    bool both_none = last.file == BaseSegment::kNone && next.file == BaseSegment::kNone;
    bool follows = last.file == next.file && last.offset + last.length == next.offset;
    if (both_none || (next.file != BaseSegment::kNone && follows)) {
      last.length += next.length;
      return;
    }
  }
  segments.push_back(next);
}

}  // namespace

Result<std::unique_ptr<BaseMatcher>> BaseMatcher::make(const Manifest& base, const ReadBase& read) {
  std::unique_ptr<BaseMatcher> matcher(new BaseMatcher(base));
  for (std::uint32_t i = 0; i < base.files.size(); i++) {
    const auto& entry = base.files[i];
    if (entry.kind != FileKind::kFile || !entry.path.leaf().ends_with(".safetensors")) continue;
    auto header = safetensors::read_header(
        [&](std::uint64_t offset, MutableByteSpan out) { return read(i, {offset, out.size()}, out); }, entry.size);
    if (!header.is_ok()) {
      if (header.code() == Code::kInvalid) continue;  // it was stored as plain bytes
      return std::move(header).status().with("parent's " + entry.path.str());
    }
    matcher->header_ends_[i] = header->data_start;
    matcher->headers_.push_back(std::make_unique<safetensors::Header>(std::move(header).value()));
    for (auto tensor : matcher->headers_.back()->tensors) {
      matcher->tensors_[std::string(tensor.name)].push_back({i, tensor});
    }
  }
  return matcher;
}

const BaseMatcher::Place* BaseMatcher::find(const safetensors::Tensor& tensor, std::uint32_t same_path) const {
  auto found = tensors_.find(tensor.name);
  if (found == tensors_.end()) return nullptr;
  const Place* best = nullptr;
  for (const auto& place : found->second) {
    if (place.tensor.dtype != tensor.dtype || !(place.tensor.shape == tensor.shape)) continue;
    if (best == nullptr || place.file == same_path) best = &place;
  }
  return best;
}

// Bytes that are no tensor: the header by the header, else the same offsets of the file of the same path.
std::vector<BaseSegment> BaseMatcher::bytes_at(const FileEntry& entry, const BlockSpan& block,
                                               std::uint64_t header_end) const {
  auto file = index_of(base_, entry.path.str());
  if (file == kNoFile) return {};
  auto size = base_.files[file].size;
  if (header_end > 0) {
    auto end = header_ends_.find(file);
    if (end == header_ends_.end()) return {};
    size = end->second;
    if (block.range.offset == 0 && block.range.length == header_end && size <= codec::kMaxBlock) {
      return {{file, 0, static_cast<std::uint32_t>(size)}};
    }
  }
  if (block.range.offset >= size) return {};
  auto length = std::min(block.range.length, size - block.range.offset);
  return {{file, block.range.offset, static_cast<std::uint32_t>(length)}};
}

std::vector<BaseSegment> BaseMatcher::segments(const FileEntry& entry, const safetensors::Header* header,
                                               const BlockSpan& block) const {
  if (header == nullptr) return bytes_at(entry, block, 0);
  if (block.range.offset < header->data_start) return bytes_at(entry, block, header->data_start);
  auto same_path = index_of(base_, entry.path.str());
  std::vector<BaseSegment> segments;
  bool any = false;
  auto at = block.range.offset;
  auto next =
      std::upper_bound(header->tensors.begin(), header->tensors.end(), at,
                       [](std::uint64_t offset, const safetensors::Tensor& t) { return offset < t.bytes.end(); });
  for (; next != header->tensors.end() && at < block.range.end(); ++next) {
    const auto tensor = *next;
    if (tensor.bytes.length == 0) continue;
    auto end = std::min(tensor.bytes.end(), block.range.end());
    auto length = static_cast<std::uint32_t>(end - at);
    const auto* place = find(tensor, same_path);
    if (place != nullptr) {
      append(segments, {place->file, place->tensor.bytes.offset + (at - tensor.bytes.offset), length});
      any = true;
    } else {
      append(segments, {BaseSegment::kNone, 0, length});
    }
    at = end;
  }
  return any && at == block.range.end() ? segments : std::vector<BaseSegment>();
}

}  // namespace weightfs
