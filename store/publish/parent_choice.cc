#include "store/publish/parent_choice.h"

#include <algorithm>

namespace weightfs {
namespace {

constexpr std::size_t kSlices = 24;
constexpr std::uint64_t kSlice = 64 << 10;
constexpr std::uint64_t kFrameOverhead = 60;  // of a block in map and digests

struct Slice {
  std::uint32_t file = 0;
  BlockSpan block;
};

// Slices at the beginnings of blocks, evenly over the tensors' bytes.
std::vector<Slice> choose_slices(const SourceTree& tree) {
  std::vector<Slice> all;
  for (std::uint32_t i = 0; i < tree.files.size(); i++) {
    const auto& file = tree.files[i];
    if (!file.header) continue;
    for (const auto& block : file.cuts) {
      if (block.range.offset < file.header->data_start) continue;
      all.push_back({i, {{block.range.offset, std::min(block.range.length, kSlice)}, block.type}});
    }
  }
  std::vector<Slice> chosen;
  auto count = std::min(kSlices, all.size());
  for (std::size_t i = 0; i < count; i++) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

}  // namespace

Result<std::uint64_t> sample_cost(const SourceTree& tree, SourceReader& reader, const Manifest& base,
                                  const BaseMatcher::ReadBase& read_base) {
  auto matcher = WFS_TRY(BaseMatcher::make(base, read_base));
  codec::Scratch scratch;
  Bytes target, from, frame(codec::kMaxFrame);
  std::uint64_t cost = 0;
  for (const auto& slice : choose_slices(tree)) {
    const auto& file = tree.files[slice.file];
    target.resize(slice.block.range.length);
    WFS_TRY(reader.read(slice.file, slice.block.range, target));
    from.clear();
    for (const auto& segment : matcher->segments(file.entry, file.header.get(), slice.block)) {
      auto at = from.size();
      from.resize(at + segment.length);
      if (segment.file == BaseSegment::kNone) continue;
      WFS_TRY(read_base(segment.file, {segment.offset, segment.length}, MutableByteSpan(from).subspan(at)));
    }
    cost += kFrameOverhead + codec::encode_block(scratch, slice.block.type, from, target, frame).frame_length;
  }
  return cost;
}

std::size_t cheapest_candidate(const std::vector<std::uint64_t>& costs) {
  auto best = static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  return static_cast<double>(costs[best]) <= 0.8 * static_cast<double>(costs[0]) ? best : 0;
}

}  // namespace weightfs
