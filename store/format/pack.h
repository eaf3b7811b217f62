// An edge: a pack that builds one version from another (a delta) or from nothing (full). A pack is one or more objects
// MODEL/packs/<id>-<n> of at most kMaxPackObject bytes: frames first, then (in the last object only) the pages, then
// the index:
//
//   object 0 … n-2:  frames
//   object n-1:      frames | pages | index
//                            ^ meta_offset   ^ index_offset
//
// The log entry that announces the edge has the index's place and SHA-256; the index has each page's; a page has each
// frame's. A page holds a page of the file's block list (checked against the manifest) and, for the same blocks, how
// this edge builds them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/base/digest.h"
#include "store/base/names.h"
#include "store/format/manifest.h"

namespace weightfs {

inline constexpr std::uint64_t kMaxPackObject = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMaxIndex = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxPage = std::uint64_t{8} << 20;
inline constexpr std::uint32_t kMaxPackObjects = 100'000;
inline constexpr std::size_t kMaxBaseSegments = 1024;  // a block; a publisher with more lets zeros stand for the rest

// Bytes of the base version that stand for a piece of a block, in order.
struct BaseSegment {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint32_t file =
      kNone;  // index in the base manifest's files; kNone: zeros stand for the piece (a tensor without a base)
  std::uint64_t offset = 0;  // in that file
  std::uint32_t length =
      0;  // plain bytes; equals the piece's length in the block, but for kZstdPatch (one segment) it may differ
  friend bool operator==(const BaseSegment&, const BaseSegment&) = default;
};

// Rules, by codec (those of an unknown codec are the general ones): kSame and kZero have no frame, all others have one;
// kSame and the delta codecs have a base, kRaw, kZstd, kPlanes and kZero none; a frame has 1 .. codec::kMaxFrame bytes;
// a kRaw frame is as long as the block.
struct BlockFrame {
  std::uint8_t codec = 0;    // codec::CodecId; an unknown one is kept
  std::uint32_t object = 0;  // of the pack
  std::uint64_t offset = 0;  // in the object
  std::uint32_t length = 0;  // 0: no frame (same, zero)
  Sha256 digest;             // of the frame, when there is one
  std::vector<BaseSegment>
      base;  // empty: none; else lengths sum to the block's length (or one segment of another length)
  friend bool operator==(const BlockFrame&, const BlockFrame&) = default;
};

struct EdgePage {
  BlockList blocks;                // of the target version
  std::vector<BlockFrame> frames;  // as many
  friend bool operator==(const EdgePage&, const EdgePage&) = default;
};
// The rules above, and the limits of all lengths. A publisher may ask before it writes.
Status check_page(const EdgePage& page);  // kCorrupt
// The canonical page of the block list comes first in the page's bytes. Unchanged blocks that follow each other in the
// base cost about 22 bytes, others add some 35 for a frame; a page of the worst case can be over kMaxPage, which the
// publisher avoids by giving up bases.   REQUIRES: check_page is OK
Bytes serialize_page(const EdgePage& page);
// kCorrupt. `frame_limits`: for each object of the pack the end of its frames (frame_limits() below).
Result<EdgePage> parse_page(ByteSpan bytes, std::span<const std::uint64_t> frame_limits);
// SHA-256 of the block list inside a page, to hold against the manifest.
Result<Sha256> block_list_digest_of_page(ByteSpan bytes);

struct PageRef {
  std::uint64_t offset = 0;  // in the last object
  std::uint32_t length = 0;
  Sha256 digest;
  std::uint64_t plain_bytes = 0;  // sum of its blocks' lengths: where the next page begins in the file
  // The pages of the base version (file, page number) that this page's base segments reach, ascending: so that a reader
  // can ask for the pages of a whole path at once.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> base_pages;
  friend bool operator==(const PageRef&, const PageRef&) = default;
};

struct PackIndex {
  std::vector<std::uint64_t>
      object_sizes;  // objects 0 … n-1; the last one's size is that of its frames + pages + index
  // For each entry of the target manifest, in order: its pages (empty for directories, links and empty files).
  std::vector<std::vector<PageRef>> files;
  friend bool operator==(const PackIndex&, const PackIndex&) = default;
};
// The last object's size is not known before the index is: it is not written, the reader takes it from the edge.
//   REQUIRES: at least one object, at most kMaxFiles files, base_pages ascending without repetition
Bytes serialize_index(const PackIndex& index);
// kCorrupt: breaks the format, or does not fit the edge. kUnsupported: a later format.
Result<PackIndex> parse_index(ByteSpan bytes, const struct EdgeRef& edge);

// A version, wherever in the bucket: the commit of that model's log that published it.
struct NodeRef {
  ModelName model;
  std::uint64_t number = 0;
  friend auto operator<=>(const NodeRef& a, const NodeRef& b) = default;
};

// What a log entry says of an edge.
struct EdgeRef {
  std::optional<NodeRef> from;     // none: a full edge
  std::uint64_t to = 0;            // commit number in the model whose log has the entry
  std::string pack;                // 32 lower-case hex digits
  std::uint32_t objects = 1;       // 1 .. 100,000
  std::uint64_t last_size = 0;     // bytes of the last object
  std::uint64_t meta_offset = 0;   // in the last object: pages begin
  std::uint64_t index_offset = 0;  // the index, to the object's end
  Sha256 index_digest;
  std::uint64_t total_bytes = 0;  // of all objects: the cost of a path
  std::uint64_t frames = 0;       // number of frames: the work
  friend bool operator==(const EdgeRef&, const EdgeRef&) = default;
};
// The index's place in the last object, and what parse_page wants to know.
ByteRange index_range(const EdgeRef& edge);
std::vector<std::uint64_t> frame_limits(const PackIndex& index, const EdgeRef& edge);
// What every reader requires of the numbers: limits, order of the offsets. kCorrupt.
Status check_edge(const EdgeRef& edge);
ObjectKey pack_object_key(const ModelName& model, const std::string& pack, std::uint32_t object);

}  // namespace weightfs
