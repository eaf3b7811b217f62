#include "store/materialize/plan.h"

#include <algorithm>

#include "store/codec/codec.h"

namespace weightfs {
namespace {

// A block that needs more steps than this for its place in the path is an attack or a fault: one step an edge is the
// rule, a few more where the layout of tensors changed.
std::size_t max_steps(std::size_t levels) { return 4096 + 64 * levels; }
// The blocks of one version are all decoded before those that build on them. A publisher takes 128 pieces a block.
constexpr std::uint64_t kMaxLevelBytes = std::uint64_t{512} << 20;

Status not_here(const NodeRef& node) {
  return {Code::kNotFound,
          node.model.str() + " commit " + std::to_string(node.number) + ": a base block is not in the cache"};
}

}  // namespace

// Builds the steps of one batch along one path. `pages` has every page that the blocks reach.
class Planner::Builder {
 public:
  Builder(Planner& planner, const NodeRef& target, std::vector<PathEdge> edges)
      : planner_(planner), edges_(std::move(edges)) {
    nodes_.push_back(target);
    for (const auto& edge : edges_) {
      if (edge.edge.from) nodes_.push_back(*edge.edge.from);
    }
  }

  // Fetches indexes, then all pages that blocks of page numbers `first` of `file` reach.
  Status load(std::uint32_t file, const std::set<std::uint32_t>& first, const CallOptions& options) {
    indexes_ = WFS_TRY(planner_.meta_.indexes(edges_, options));
    starts_.resize(edges_.size());
    std::set<Meta::PageKey> keys;
    std::set<std::pair<std::uint32_t, std::uint32_t>> here;
    for (auto page : first) here.insert({file, page});
    for (std::size_t level = 0; level < edges_.size() && !here.empty(); level++) {
      std::set<std::pair<std::uint32_t, std::uint32_t>> next;
      for (auto [f, p] : here) {
        const auto& files = indexes_[level]->files;
        if (f >= files.size() || p >= files[f].size()) return bad(level, "lacks a page that a later edge builds on");
        keys.insert({level, f, p});
        next.insert(files[f][p].base_pages.begin(), files[f][p].base_pages.end());
        if (keys.size() > 1'000'000) return bad(level, "reaches too many pages");
      }
      here = std::move(next);
    }
    pages_ = WFS_TRY(planner_.meta_.pages(edges_, indexes_, {keys.begin(), keys.end()}, options));
    return {};
  }

  const Meta::Pages& pages() const { return pages_; }

  Result<BlockPlan> build(std::uint32_t file, std::size_t block) {
    // Level by level, for a path may have any length: blocks of level n build on those of level n + 1 only.
    std::vector<Level> levels(1);
    WFS_TRY(need(levels[0], 0, file, block));
    std::size_t count = 1;
    for (std::size_t level = 0; level < levels.size(); level++) {
      Level below;
      for (auto& [place, draft] : levels[level].blocks) WFS_TRY(find_base(draft, level, below));
      count += below.blocks.size();
      if (count > max_steps(edges_.size())) return bad(level, "a block needs too many others");
      if (!below.blocks.empty()) levels.push_back(std::move(below));
    }
    BlockPlan plan;
    plan.block = block;
    plan.steps.reserve(count);
    for (auto level = levels.size(); level-- > 0;) {
      for (auto& [place, draft] : levels[level].blocks) {
        for (auto& [piece, child] : draft.children) {
          auto step = levels[level + 1].blocks.at(child).step;
          draft.made.base[piece].step = step;
          plan.steps[step].uses++;
        }
        draft.step = plan.steps.size();
        plan.steps.push_back(std::move(draft.made));
      }
    }
    return plan;
  }

  Status bad(std::size_t level, const std::string& what) const {
    return {Code::kCorrupt, edges_[level].model.str() + "/packs/" + edges_[level].edge.pack + ": " + what};
  }

 private:
  using Place = std::pair<std::uint32_t, std::size_t>;  // file, block
  struct Draft {
    Step made;
    std::vector<BaseSegment> base;                        // until find_base()
    std::vector<std::pair<std::size_t, Place>> children;  // index in made.base, and the block of the next level
    std::size_t step = 0;                                 // in the plan, once it is there
  };
  struct Level {
    std::map<Place, Draft> blocks;
    std::uint64_t bytes = 0;  // of the blocks, decoded
  };

  const LocalFile& local(std::size_t level, std::uint32_t file) {
    auto [at, is_new] = locals_.try_emplace({level, file});
    if (is_new) {
      auto digest = planner_.paths_.manifest_digest(nodes_[level]);
      if (digest) at->second = planner_.locals_.find(nodes_[level], file, *digest);
    }
    return at->second;
  }

  // Adds a block to its level, without its base.
  Status need(Level& here, std::size_t level, std::uint32_t file, std::size_t block) {
    auto [at, is_new] = here.blocks.try_emplace({file, block});
    if (!is_new) return {};
    WFS_TRY(find_step(at->second, level, file, block));
    here.bytes += at->second.made.length;
    if (here.blocks.size() > max_steps(edges_.size()) || here.bytes > kMaxLevelBytes) {
      return bad(level > 0 ? level - 1 : 0, "a block needs too many others");
    }
    return {};
  }

  // Where the block comes from: the cache, or a frame of the edge into its version.
  Status find_step(Draft& draft, std::size_t level, std::uint32_t file, std::size_t block) {
    auto& step = draft.made;
    if (level > 0) {
      const auto& known = local(level, file);
      if (known.map && block < known.map->blocks.size() && is_present(known, block)) {
        step.length = known.map->blocks[block].length;
        step.type = known.map->blocks[block].type;
        step.local = known;
        step.local_block = block;
        return {};
      }
    }
    if (level >= edges_.size()) return not_here(nodes_[level]);
    auto page = pages_.find({level, file, static_cast<std::uint32_t>(block / kPageBlocks)});
    if (page == pages_.end() || block % kPageBlocks >= page->second->blocks.size()) {
      return bad(level, "a block builds on one that its page does not announce");
    }
    const auto& listed = page->second->blocks[block % kPageBlocks];
    const auto& frame = page->second->frames[block % kPageBlocks];
    step.length = listed.length;
    step.type = listed.type;
    step.codec = frame.codec;
    step.frame_digest = frame.digest;
    if (frame.length > 0) {
      step.object = pack_object_key(edges_[level].model, edges_[level].edge.pack, frame.object);
      step.frame = {frame.offset, frame.length};
    }
    draft.base = frame.base;
    if (!draft.base.empty() && !edges_[level].edge.from) return bad(level, "a full edge has a block with a base");
    return {};
  }

  // Adds the blocks that `draft` of `level` builds on to the level below.
  Status find_base(Draft& draft, std::size_t level, Level& below) {
    auto& step = draft.made;
    for (const auto& segment : draft.base) {
      if (segment.file != BaseSegment::kNone) {
        WFS_TRY(pieces(draft, level + 1, segment, below));
        continue;  // pieces() advanced base_length
      }
      step.base.push_back({Step::kZeros, 0, step.base_length, segment.length});
      step.base_length += segment.length;
    }
    if (step.base_length > codec::kMaxBlock) return bad(level, "a base longer than a block");
    return {};
  }

  // The base blocks that a segment reads, at `level`.
  Status pieces(Draft& parent, std::size_t level, const BaseSegment& segment, Level& here) {
    auto& step = parent.made;
    std::uint64_t at = segment.offset, end = segment.offset + segment.length;
    while (at < end) {
      std::size_t block = 0;
      ByteRange range;
      WFS_TRY(find_block(level, segment.file, at, block, range));
      WFS_TRY(need(here, level, segment.file, block));
      // What is known of the file and what this edge's page says of it may differ: the page is not checked here.
      if (here.blocks.at({segment.file, block}).made.length != range.length) {
        return bad(level, "its block list is not the one of the manifest");
      }
      auto length = static_cast<std::uint32_t>(std::min(end, range.end()) - at);
      parent.children.emplace_back(step.base.size(), Place{segment.file, block});
      step.base.push_back({0, static_cast<std::uint32_t>(at - range.offset), step.base_length, length});
      step.base_length += length;
      if (step.base_length > codec::kMaxBlock) return bad(level - 1, "a base longer than a block");
      at += length;
    }
    return {};
  }

  Status find_block(std::size_t level, std::uint32_t file, std::uint64_t offset, std::size_t& block, ByteRange& range) {
    const auto& here = local(level, file);
    if (here.map) {
      if (offset >= here.map->starts.back()) return bad(level - 1, "a base segment past the end of its file");
      block = here.map->block_at(offset);
      range = here.map->range(block);
      return {};
    }
    if (level >= edges_.size()) return not_here(nodes_[level]);
    const auto& files = indexes_[level]->files;
    if (file >= files.size()) return bad(level - 1, "a base segment in a file that is not there");
    auto& starts = starts_[level][file];
    if (starts.empty()) {
      starts.push_back(0);
      for (const auto& page : files[file]) starts.push_back(starts.back() + page.plain_bytes);
    }
    auto page_number =
        static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), offset) - starts.begin());
    if (page_number == 0 || page_number >= starts.size())
      return bad(level - 1, "a base segment past the end of its file");
    page_number--;
    auto page = pages_.find({level, file, static_cast<std::uint32_t>(page_number)});
    if (page == pages_.end()) return bad(level - 1, "a block builds on a page that its own page does not announce");
    auto& inner = page_starts_[page->first];
    if (inner.empty()) {
      inner.push_back(starts[page_number]);
      for (const auto& listed : page->second->blocks) inner.push_back(inner.back() + listed.length);
      if (inner.back() != starts[page_number + 1]) return bad(level, "a page is not as long as its index says");
    }
    auto at = static_cast<std::size_t>(std::upper_bound(inner.begin(), inner.end(), offset) - inner.begin()) - 1;
    block = page_number * kPageBlocks + at;
    range = {inner[at], inner[at + 1] - inner[at]};
    return {};
  }

  static bool is_present(const LocalFile& file, std::size_t block) {
    switch (file.flat->presence(block)) {
      case FlatFile::Presence::kVerified:
        return true;
      case FlatFile::Presence::kUnverified: {
        Bytes scratch;
        return verify_local(file, block, scratch);
      }
      case FlatFile::Presence::kAbsent:
        break;
    }
    return false;
  }

  Planner& planner_;
  std::vector<PathEdge> edges_;
  std::vector<NodeRef> nodes_;  // nodes_[i] is what edges_[i] leads into
  std::vector<IndexPtr> indexes_;
  Meta::Pages pages_;
  std::map<std::pair<std::size_t, std::uint32_t>, LocalFile> locals_;
  std::vector<std::map<std::uint32_t, std::vector<std::uint64_t>>> starts_;  // by level and file: where pages begin
  std::map<Meta::PageKey, std::vector<std::uint64_t>> page_starts_;
};

std::set<NodeRef> Planner::sources(const NodeRef& target) {
  std::set<NodeRef> result;
  for (const auto& model : paths_.related_models(target.model)) {
    for (auto number : cache_.cached_versions(model.str())) result.insert({model, number});
  }
  result.erase(target);
  return result;
}

Result<std::vector<BlockPlan>> Planner::plan(const NodeRef& target, const Manifest& manifest, std::uint32_t file,
                                             const std::vector<std::size_t>& blocks, const CallOptions& options) {
  std::map<std::size_t, BlockPlan> done;
  auto candidates = sources(target);
  std::vector<std::size_t> left = blocks;
  while (!left.empty()) {
    auto edges = WFS_TRY(paths_.path(target, candidates));
    auto source = edges.back().edge.from;
    std::set<std::uint32_t> first;
    for (auto block : left) first.insert(static_cast<std::uint32_t>(block / kPageBlocks));
    Builder builder(*this, target, edges);
    WFS_TRY(builder.load(file, first, options));
    for (auto page : first) {
      const auto& list = builder.pages().at({0, file, page})->blocks;
      if (page >= manifest.files[file].pages.size() ||
          Sha256::of(serialize_block_list(list)) != manifest.files[file].pages[page]) {
        return builder.bad(0, "its block list is not the one of the manifest");
      }
    }
    std::vector<std::size_t> again;
    for (auto block : left) {
      auto plan = builder.build(file, block);
      if (plan.is_ok()) {
        done[block] = std::move(plan).value();
      } else if (plan.code() == Code::kNotFound && source) {
        again.push_back(block);  // the source has not this block: another path
      } else {
        return std::move(plan).status();
      }
    }
    if (source) candidates.erase(*source);
    left = std::move(again);
  }
  std::vector<BlockPlan> result;
  for (auto& [block, plan] : done) result.push_back(std::move(plan));
  return result;
}

Result<FileMapPtr> Planner::file_map(const NodeRef& target, const Manifest& manifest, std::uint32_t file,
                                     const CallOptions& options) {
  const auto& entry = manifest.files[file];
  if (auto known = locals_.map_of(entry)) return known;
  auto edges = WFS_TRY(paths_.path(target, sources(target)));
  edges.erase(edges.begin() + 1, edges.end());  // every edge into the version has its block lists
  auto indexes = WFS_TRY(meta_.indexes(edges, options));
  std::vector<Meta::PageKey> keys;
  for (std::uint32_t page = 0; page < entry.pages.size(); page++) keys.push_back({0, file, page});
  auto pages = WFS_TRY(meta_.pages(edges, indexes, keys, options));
  std::vector<BlockListPtr> lists;
  for (const auto& key : keys) {
    const auto& list = pages.at(key)->blocks;
    if (Sha256::of(serialize_block_list(list)) != entry.pages[key.page]) {
      return Status(Code::kCorrupt, edges[0].model.str() + "/packs/" + edges[0].edge.pack +
                                        ": its block list is not the one of the manifest");
    }
    meta_.keep_block_list(entry.pages[key.page], list);
    lists.push_back(std::make_shared<const BlockList>(list));
  }
  return FileMap::make(lists, entry.size);
}

}  // namespace weightfs
