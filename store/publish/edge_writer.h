// Encodes one edge on all cores and uploads it as a pack while it is encoded. Used to publish (a directory against its
// parent) and to compact (a version against an older one, or against nothing).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/threads.h"
#include "store/bucket/bucket.h"
#include "store/format/layout.h"
#include "store/format/pack.h"
#include "store/materialize/file_map.h"
#include "store/publish/block_encoder.h"
#include "store/publish/pack_writer.h"

namespace weightfs {

// Frames that are in a pack already, by what they decode to.
class FrameTable {
 public:
  virtual ~FrameTable() = default;
  struct Found {
    BlockFrame frame;  // with its place
    std::uint64_t changed_elements = 0;
  };
  // Any thread may call.
  virtual std::optional<Found> find(const ListedBlock& block) const = 0;
  virtual void add(const ListedBlock& block, const Found& found) = 0;
};

struct EdgeInput {
  ModelName model;  // whose log will announce it: the pack lies there
  std::optional<NodeRef> from;
  struct File {
    std::vector<BlockSpan> cuts;   // empty for directories and links
    std::uint64_t data_start = 0;  // blocks from here on are tensors, and counted; ~0: none
  };
  std::vector<File> files;  // by index in the target's manifest
  ReadFile read_target;     // blocking; called by many threads
  // Everything of the base; unset when `from` is.
  ReadFile read_base;
  std::function<std::vector<BaseSegment>(std::uint32_t file, const BlockSpan& block)> base_of;
  std::function<Result<FileMapPtr>(std::uint32_t file)> base_map;
  std::string spool_dir;                                // for objects on their way; made when missing
  std::uint64_t object_size = std::uint64_t{64} << 20;  // begin another object from here on; at most kMaxPackObject
  std::uint64_t window = std::uint64_t{64} << 20;       // plain bytes under way at once
  // A pack begun before, and its frames; null: a new pack. Blocks that have a frame there get that one: what is read of
  // the target now decides, by its digest.
  PackWriter* pack = nullptr;
  FrameTable* frames = nullptr;
};

struct EdgeOutput {
  EdgeRef edge;                               // `to` is not set
  std::vector<std::vector<BlockList>> lists;  // by file and page
  std::vector<std::vector<Sha256>> list_digests;
  std::uint64_t changed_elements = 0;
};

// Blocking. `progress` is told plain bytes encoded. On error what was uploaded is garbage that gc collects.
// REQUIRES: not called from a job of one of the pools.
Result<EdgeOutput> write_edge(const EdgeInput& input, Bucket& bucket, WorkerPool& encode_pool, WorkerPool& upload_pool,
                              const std::function<void(std::uint64_t)>& progress, const CallOptions& options);

}  // namespace weightfs
