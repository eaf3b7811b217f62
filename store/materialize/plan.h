// How blocks are made: which frames along which edges, on which local bases. Planning asks for metadata of the whole
// path at once, so a cold read is a constant number of round trips however long the chain is.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "store/materialize/file_map.h"
#include "store/materialize/path_source.h"

namespace weightfs {

// One block of one version on the way to the wanted one.
struct Step {
  static constexpr std::size_t kZeros = ~std::size_t{0};
  struct Piece {
    std::size_t step = kZeros;  // whose plain bytes; comes before this step in the plan. kZeros: zeros
    std::uint32_t from = 0;     // offset in that block
    std::uint32_t into = 0;     // offset in the base buffer
    std::uint32_t length = 0;
  };

  std::uint32_t length = 0;  // plain
  std::uint8_t type = 0;
  // Either the block is here …
  std::optional<LocalFile> local;
  std::size_t local_block = 0;
  // … or it is decoded from a frame (length 0: none) and a base.
  std::uint8_t codec = 0;
  std::optional<ObjectKey> object;  // set exactly when there is a frame
  ByteRange frame;
  Sha256 frame_digest;
  std::vector<Piece> base;
  std::uint32_t base_length = 0;
  std::uint32_t uses = 0;  // pieces of later steps that read this one
};

// Children come before parents; the last step is the wanted block.
struct BlockPlan {
  std::size_t block = 0;
  std::vector<Step> steps;
};

class Planner {
 public:
  Planner(Meta& meta, LocalFiles& locals, PathSource& paths, Cache& cache)
      : meta_(meta), locals_(locals), paths_(paths), cache_(cache) {}

  // Blocking (fetches metadata that is missing). Plans for `blocks` (ascending) of file `file` of the version; none of
  // them is here. kCorrupt: an index or page breaks the format or disagrees with the manifest.
  Result<std::vector<BlockPlan>> plan(const NodeRef& target, const Manifest& manifest, std::uint32_t file,
                                      const std::vector<std::size_t>& blocks, const CallOptions& options);

  // The block map of a file: from what is here, else from an edge's pages. Blocking.
  Result<FileMapPtr> file_map(const NodeRef& target, const Manifest& manifest, std::uint32_t file,
                              const CallOptions& options);

 private:
  class Builder;
  std::set<NodeRef> sources(const NodeRef& target);
  Meta& meta_;
  LocalFiles& locals_;
  PathSource& paths_;
  Cache& cache_;
};

}  // namespace weightfs
