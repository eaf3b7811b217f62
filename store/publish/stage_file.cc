#include "store/publish/stage_file.h"

#include <algorithm>
#include <array>

namespace weightfs {
namespace {

// Smaller files go with the commit: a round trip for each would take longer than they do.
constexpr std::uint64_t kSmall = std::uint64_t{256} << 10;

// Where the file is now, below `root`.
Result<std::string> path_below(int fd, const std::string& root) {
  auto path = WFS_TRY(posix::read_link("/proc/self/fd/" + std::to_string(fd)));
  if (path.size() <= root.size() + 1 || !path.starts_with(root) || path[root.size()] != '/') {
    return Status(Code::kNotFound, path + " is not in the draft");
  }
  return path.substr(root.size() + 1);
}

// A name that its writer will change. What is no tensor builds on the file of the same name, so that is waited for.
bool is_passing(std::string_view leaf) {
  for (std::string_view end : {".tmp", ".partial", ".incomplete", ".part", ".aria2"}) {
    if (leaf.ends_with(end)) return true;
  }
  return leaf.starts_with(".") || leaf.starts_with("tmp");
}

Result<std::optional<safetensors::Header>> read_header(int fd, std::uint64_t size, std::uint64_t settled, bool whole) {
  std::array<std::byte, 8> first{};
  if (size < 8) return std::optional<safetensors::Header>();
  WFS_TRY(posix::pread_exact(fd, 0, first));
  auto length = safetensors::header_length(first, whole ? size : kMaxFileSize);
  if (!length.is_ok()) return std::optional<safetensors::Header>();
  if (8 + *length > settled) return Status(Code::kBusy, "not all of the header is there");
  Bytes text(*length);
  WFS_TRY(posix::pread_exact(fd, 8, text));
  auto header = safetensors::parse_header(text, whole ? size : safetensors::kUnknownSize);
  if (!header.is_ok()) return std::optional<safetensors::Header>();
  return std::optional(std::move(header).value());
}

}  // namespace

Result<std::shared_ptr<const StageCuts>> look_at(int fd, const std::string& root, std::uint64_t settled) {
  using Found = std::shared_ptr<const StageCuts>;
  bool whole = settled == ~std::uint64_t{0};
  if (settled < 8) return Found();
  auto st = WFS_TRY(posix::fstat(fd));
  if (st.st_nlink == 0) return Status(Code::kNotFound, "it has no name any more");
  auto path = WFS_TRY(path_below(fd, root));
  auto parsed = FilePath::parse(path);
  if (!parsed.is_ok()) return Status(Code::kNotFound, "no version may have it: " + parsed.status().message());
  auto cuts = std::make_shared<StageCuts>(StageCuts{{FileEntry{*parsed}, root + "/" + path, {}, nullptr}});
  cuts->size = static_cast<std::uint64_t>(st.st_size);
  auto header = read_header(fd, cuts->size, settled, whole);
  if (header.code() == Code::kBusy) return Found();
  if (!header.is_ok()) return std::move(header).status();
  auto leaf = cuts->file.entry.path.leaf();
  bool passing = is_passing(leaf);
  // The commit goes by the name.
  if (*header && (leaf.ends_with(".safetensors") || passing)) {
    cuts->file.header = std::make_shared<const safetensors::Header>(std::move(**header));
    if (!whole) cuts->size = safetensors::described_size(*cuts->file.header);
  } else {
    cuts->at_commit = passing || (!whole && leaf.ends_with(".safetensors"));
    // Without its end only whole blocks are known.
    if (!whole) cuts->size = cuts->size / codec::kMaxBlock * codec::kMaxBlock;
  }
  if (whole && cuts->size < kSmall) cuts->at_commit = true;
  cuts->file.entry.size = cuts->size;
  if (!cuts->at_commit) cuts->file.cuts = cut_blocks(cuts->size, cuts->file.header.get());
  return Found(std::move(cuts));
}

void StageFile::wrote(ByteRange range) {
  if (range.length == 0) return;
  front_ = range.end();
  unseen_ += range.length;
  auto next = std::lower_bound(written_.begin(), written_.end(), range.offset,
                               [](const ByteRange& r, std::uint64_t at) { return r.end() < at; });
  auto last = next;
  auto joined = range;
  for (; last != written_.end() && last->offset <= range.end(); ++last) {
    auto end = std::max(joined.end(), last->end());
    joined.offset = std::min(joined.offset, last->offset);
    joined.length = end - joined.offset;
  }
  next = written_.erase(next, last);
  written_.insert(next, joined);
  if (written_.size() > kMostRanges) {
    scattered_ = true;
    written_.clear();
  }
  if (!cuts_ || blocks_.empty() || range.offset >= cuts_->size) return;
  for (auto i = block_at(range.offset); i < blocks_.size() && cuts_->file.cuts[i].range.offset < range.end(); i++) {
    if ((blocks_[i] & kDone) == 0) continue;
    blocks_[i] &= static_cast<std::uint8_t>(~kDone);
    if (blocks_[i] <= kMostTimes) blocks_[i]++;
  }
}

std::uint64_t StageFile::settled_prefix() const {
  if (scattered_ || written_.empty() || written_[0].offset != 0) return 0;
  auto end = written_[0].end();
  return front_ == end ? end - std::min(end, kBehind) : end;
}

void StageFile::set_cuts(std::shared_ptr<const StageCuts> cuts) {
  bool same = cuts_ && cuts && cuts_->file.cuts == cuts->file.cuts;
  // Of a file that only grew, what was done stays done.
  bool longer = cuts_ && cuts && !same && !cuts_->file.header && !cuts->file.header && cuts->size >= cuts_->size;
  cuts_ = std::move(cuts);
  if (!same && !longer) blocks_.clear();
  blocks_.resize(cuts_ ? cuts_->file.cuts.size() : 0, 0);
}

std::size_t StageFile::block_at(std::uint64_t offset) const {
  const auto& cuts = cuts_->file.cuts;
  auto next = std::upper_bound(cuts.begin(), cuts.end(), offset,
                               [](std::uint64_t at, const BlockSpan& block) { return at < block.range.offset; });
  return next == cuts.begin() ? 0 : static_cast<std::size_t>(next - cuts.begin()) - 1;
}

bool StageFile::settled(ByteRange range) const {
  auto next = std::upper_bound(written_.begin(), written_.end(), range.offset,
                               [](std::uint64_t at, const ByteRange& r) { return at < r.offset; });
  if (next == written_.begin() || std::prev(next)->end() < range.end()) return false;
  return range.end() + kBehind <= front_ || range.offset >= front_;
}

std::vector<std::size_t> StageFile::take(bool all, std::uint64_t bytes) {
  std::vector<std::size_t> out;
  std::uint64_t taken = 0;
  if (!cuts_) return out;
  auto start = cuts_->file.header ? cuts_->file.header->data_start : 0;  // headers are small: they go with the commit
  std::size_t i = 0;
  for (; i < blocks_.size() && taken < bytes; i++) {
    const auto& range = cuts_->file.cuts[i].range;
    if ((blocks_[i] & kDone) != 0 || range.offset < start) continue;
    if (!all && (blocks_[i] > kMostTimes || !settled(range))) continue;
    blocks_[i] |= kDone;
    out.push_back(i);
    taken += range.length;
  }
  if (i == blocks_.size()) unseen_ = 0;
  return out;
}

void StageFile::failed(const std::vector<std::size_t>& blocks) {
  for (auto i : blocks) {
    if (i < blocks_.size()) blocks_[i] &= static_cast<std::uint8_t>(~kDone);
  }
}

}  // namespace weightfs
