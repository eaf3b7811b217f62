#include "store/format/pack.h"

#include "store/format/json.h"

// A page:   varint length of the block list | block list | for each block a record:
//           u8 codec | u8 shape | base, frame as the shape says
// The shape's bits 0-1 say where the base is (BaseShape), bit 2 that there is a frame, bit 3 that the frame does not
// begin where the frame before it ended.
namespace weightfs {
namespace {

enum BaseShape : std::uint8_t {
  kNoBase = 0,
  kNextBase = 1,  // one segment: the file of the segment before, from that one's end, as long as the block
  kListBase = 2,  // varint count, then the segments
  kBaseMask = 3,
};
constexpr std::uint8_t kHasFrame = 4;
constexpr std::uint8_t kPlaced = 8;  // varint object, varint offset follow
constexpr std::size_t kLeastRecord = 2;

constexpr std::uint32_t kIndexMagic = 0x49534657;  // "WFSI"
constexpr std::uint8_t kIndexFormat = 1;
constexpr std::size_t kLeastPageRef = 1 + 1 + 1 + 32 + 1;
// No manifest has room for the digests of more pages.
constexpr std::uint64_t kMaxPageNumber = kMaxManifest / 64;
static_assert(kMaxPageNumber <= ~std::uint32_t{0});

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// Where the base segment and the frame that need no numbers would be.
struct Cursor {
  std::optional<std::uint32_t> base_file;
  std::uint64_t base_end = 0;
  std::uint32_t object = 0;
  std::uint64_t frame_end = 0;

  bool continues(const std::vector<BaseSegment>& base, std::uint32_t block_length) const {
    return base.size() == 1 && base_file == base[0].file && base_end == base[0].offset &&
           base[0].length == block_length;
  }
  void pass(const BaseSegment& segment) {
    if (segment.file == BaseSegment::kNone) return;
    base_file = segment.file;
    base_end = segment.offset + segment.length;
  }
  void pass(const BlockFrame& frame) {
    object = frame.object;
    frame_end = frame.offset + frame.length;
  }
};

struct Needs {
  bool frame, no_frame, base, no_base;
};
Needs needs_of(std::uint8_t codec) {
  using codec::CodecId;
  switch (static_cast<CodecId>(codec)) {
    case CodecId::kSame:
      return {.frame = false, .no_frame = true, .base = true, .no_base = false};
    case CodecId::kZero:
      return {.frame = false, .no_frame = true, .base = false, .no_base = true};
    case CodecId::kRaw:
    case CodecId::kZstd:
    case CodecId::kPlanes:
      return {.frame = true, .no_frame = false, .base = false, .no_base = true};
    case CodecId::kSparse:
    case CodecId::kDenseXor:
    case CodecId::kDenseDistance:
    case CodecId::kZstdPatch:
      return {.frame = true, .no_frame = false, .base = true, .no_base = false};
  }
  return {};
}

// True for a codec of which nothing but the general rules is known.
bool is_unknown(std::uint8_t codec) { return codec > static_cast<std::uint8_t>(codec::CodecId::kZero); }

Status check_segment(const BaseSegment& segment) {
  if (segment.length < 1 || segment.length > codec::kMaxBlock) return corrupt("bad length of a base segment");
  if (segment.file == BaseSegment::kNone) return segment.offset == 0 ? Status() : corrupt("offset of zeros");
  if (segment.file >= kMaxFiles) return corrupt("base file number over the limit");
  if (segment.offset > kMaxFileSize - segment.length) return corrupt("base segment beyond the largest file");
  return {};
}

Status check_base(const ListedBlock& block, const BlockFrame& frame) {
  if (frame.base.empty()) return {};
  if (frame.base.size() > kMaxBaseSegments) return corrupt("too many base segments");
  std::uint64_t sum = 0;
  for (const auto& segment : frame.base) {
    WFS_TRY(check_segment(segment));
    sum += segment.length;  // at most kMaxBaseSegments * kMaxBlock
  }
  bool any_length = frame.base.size() == 1 &&
                    (frame.codec == static_cast<std::uint8_t>(codec::CodecId::kZstdPatch) || is_unknown(frame.codec));
  if (sum != block.length && !any_length) return corrupt("base segments do not add up to the block");
  return {};
}

Status check_block(const ListedBlock& block, const BlockFrame& frame) {
  if (block.length < 1 || block.length > codec::kMaxBlock) return corrupt("bad length of a block");
  auto needs = needs_of(frame.codec);
  if ((needs.frame && frame.length == 0) || (needs.no_frame && frame.length != 0)) {
    return corrupt("a frame that is missing or too many");
  }
  if ((needs.base && frame.base.empty()) || (needs.no_base && !frame.base.empty())) {
    return corrupt("a base that is missing or too many");
  }
  if (frame.length > codec::kMaxFrame) return corrupt("frame over the limit");
  if (frame.length == 0 && (frame.object != 0 || frame.offset != 0 || frame.digest != Sha256{})) {
    return corrupt("place of a frame that is not there");
  }
  if (frame.codec == static_cast<std::uint8_t>(codec::CodecId::kRaw) && frame.length != block.length) {
    return corrupt("raw frame of another length than its block");
  }
  if (frame.length != 0 && (frame.object >= kMaxPackObjects || frame.offset > kMaxPackObject - frame.length)) {
    return corrupt("frame outside its object");
  }
  return check_base(block, frame);
}

void write_base(ByteWriter& to, const std::vector<BaseSegment>& base) {
  to.varint(base.size());
  for (const auto& segment : base) {
    if (segment.file == BaseSegment::kNone) {
      to.varint(0);
    } else {
      to.varint(std::uint64_t{segment.file} + 1);
      to.varint(segment.offset);
    }
    to.varint(segment.length);
  }
}

void write_record(ByteWriter& to, Cursor& cursor, const ListedBlock& block, const BlockFrame& frame) {
  bool next = cursor.continues(frame.base, block.length);
  bool placed = frame.length != 0 && (frame.object != cursor.object || frame.offset != cursor.frame_end);
  to.u8(frame.codec);
  auto base_shape = frame.base.empty() ? kNoBase : next ? kNextBase : kListBase;
  to.u8(static_cast<std::uint8_t>(base_shape | (frame.length != 0 ? kHasFrame : 0) | (placed ? kPlaced : 0)));
  if (base_shape == kListBase) write_base(to, frame.base);
  for (const auto& segment : frame.base) cursor.pass(segment);
  if (frame.length == 0) return;
  if (placed) {
    to.varint(frame.object);
    to.varint(frame.offset);
  }
  to.varint(frame.length);
  to.bytes(frame.digest.bytes);
  cursor.pass(frame);
}

template <typename T>
T narrow(std::uint64_t value, std::uint64_t limit, bool& bad) {
  if (value > limit) bad = true;
  return static_cast<T>(value);
}

Status read_base_list(ByteReader& from, std::vector<BaseSegment>& base) {
  auto count = from.varint();
  if (from.failed() || count == 0 || count > kMaxBaseSegments || count > from.remaining() / 2) {
    return corrupt("bad number of base segments");
  }
  base.reserve(count);
  for (std::uint64_t i = 0; i < count; i++) {
    BaseSegment segment;
    bool bad = false;
    if (auto file = from.varint(); file != 0) {
      segment.file = narrow<std::uint32_t>(file - 1, kMaxFiles, bad);
      segment.offset = from.varint();
    }
    segment.length = narrow<std::uint32_t>(from.varint(), codec::kMaxBlock, bad);
    if (from.failed() || bad) return corrupt("bad base segment");
    WFS_TRY(check_segment(segment));
    base.push_back(segment);
  }
  return {};
}

Status read_frame(ByteReader& from, const Cursor& cursor, bool placed, std::span<const std::uint64_t> limits,
                  BlockFrame& frame) {
  bool bad = false;
  frame.object = placed ? narrow<std::uint32_t>(from.varint(), kMaxPackObjects - 1, bad) : cursor.object;
  frame.offset = placed ? from.varint() : cursor.frame_end;
  frame.length = narrow<std::uint32_t>(from.varint(), codec::kMaxFrame, bad);
  auto digest = from.bytes(frame.digest.bytes.size());
  if (from.failed() || bad || frame.length == 0) return corrupt("bad frame");
  std::copy(digest.begin(), digest.end(), frame.digest.bytes.begin());
  if (frame.object >= limits.size() || frame.offset > limits[frame.object] ||
      limits[frame.object] - frame.offset < frame.length) {
    return corrupt("frame outside its object");
  }
  return {};
}

Status read_record(ByteReader& from, Cursor& cursor, const ListedBlock& block, std::span<const std::uint64_t> limits,
                   BlockFrame& frame) {
  frame.codec = from.u8();
  auto shape = from.u8();
  if (from.failed()) return corrupt("cut short");
  if (shape > (kBaseMask | kHasFrame | kPlaced) || (shape & kBaseMask) == kBaseMask ||
      (shape & (kHasFrame | kPlaced)) == kPlaced) {
    return corrupt("bad shape of a block");
  }
  if ((shape & kBaseMask) == kNextBase) {
    if (!cursor.base_file) return corrupt("no base segment to continue");
    frame.base.push_back({.file = *cursor.base_file, .offset = cursor.base_end, .length = block.length});
  } else if ((shape & kBaseMask) == kListBase) {
    WFS_TRY(read_base_list(from, frame.base));
  }
  if ((shape & kHasFrame) != 0) WFS_TRY(read_frame(from, cursor, (shape & kPlaced) != 0, limits, frame));
  WFS_TRY(check_block(block, frame));
  for (const auto& segment : frame.base) cursor.pass(segment);
  if (frame.length != 0) cursor.pass(frame);
  return {};
}

Result<ByteSpan> take_block_list(ByteReader& from) {
  auto length = from.varint();
  auto list = from.bytes(length);
  if (from.failed()) return corrupt("page: cut short");
  return list;
}

}  // namespace

Status check_page(const EdgePage& page) {
  if (page.blocks.empty() || page.blocks.size() > kPageBlocks || page.blocks.size() != page.frames.size()) {
    return corrupt("page: bad number of blocks");
  }
  for (std::size_t i = 0; i < page.blocks.size(); i++) {
    WFS_TRY(check_block(page.blocks[i], page.frames[i]).with("page: block " + std::to_string(i)));
  }
  return {};
}

Bytes serialize_page(const EdgePage& page) {
  WFS_CHECK(check_page(page).is_ok());
  Bytes list = serialize_block_list(page.blocks), out;
  out.reserve(list.size() + page.blocks.size() * 40 + 8);
  ByteWriter to(out);
  to.varint(list.size());
  to.bytes(list);
  Cursor cursor;
  for (std::size_t i = 0; i < page.blocks.size(); i++) write_record(to, cursor, page.blocks[i], page.frames[i]);
  return out;
}

Result<EdgePage> parse_page(ByteSpan bytes, std::span<const std::uint64_t> limits) {
  if (bytes.size() > kMaxPage) return corrupt("page over the limit");
  ByteReader from(bytes);
  auto list = WFS_TRY(take_block_list(from));
  EdgePage page;
  page.blocks = WFS_TRY(parse_block_list(list).with("page"));
  if (page.blocks.size() > from.remaining() / kLeastRecord) return corrupt("page: cut short");
  page.frames.resize(page.blocks.size());
  Cursor cursor;
  for (std::size_t i = 0; i < page.blocks.size(); i++) {
    WFS_TRY(read_record(from, cursor, page.blocks[i], limits, page.frames[i]).with("page: block " + std::to_string(i)));
  }
  if (!from.done()) return corrupt("page: bytes after its end");
  return page;
}

Result<Sha256> block_list_digest_of_page(ByteSpan bytes) {
  ByteReader from(bytes);
  auto list = WFS_TRY(take_block_list(from));
  return Sha256::of(list);
}

namespace {

void write_page_ref(ByteWriter& to, const PageRef& page) {
  to.varint(page.offset);
  to.varint(page.length);
  to.varint(page.plain_bytes);
  to.bytes(page.digest.bytes);
  to.varint(page.base_pages.size());
  std::pair<std::uint32_t, std::uint32_t> last{0, 0};
  for (const auto& base : page.base_pages) {
    bool first = &base == page.base_pages.data();
    WFS_CHECK(first || last < base);
    to.varint(base.first - last.first);
    to.varint(base.first != last.first || first ? base.second : base.second - last.second);
    last = base;
  }
}

Status read_base_pages(ByteReader& from, PageRef& page, bool full) {
  auto count = from.varint();
  if (from.failed() || count > from.remaining() / 2) return corrupt("bad number of base pages");
  if (full && count != 0) return corrupt("base pages of a full edge");
  page.base_pages.reserve(count);
  std::uint64_t file = 0, number = 0;
  for (std::uint64_t i = 0; i < count; i++) {
    auto file_step = from.varint(), value = from.varint();
    if (from.failed() || file_step >= kMaxFiles || value > kMaxPageNumber) return corrupt("bad base page");
    bool same_file = i != 0 && file_step == 0;
    if (same_file && value == 0) return corrupt("base pages are not ascending");
    file += file_step;
    number = same_file ? number + value : value;
    if (file >= kMaxFiles || number > kMaxPageNumber) return corrupt("bad base page");
    page.base_pages.emplace_back(static_cast<std::uint32_t>(file), static_cast<std::uint32_t>(number));
  }
  return {};
}

Status read_page_ref(ByteReader& from, const EdgeRef& edge, PageRef& page) {
  page.offset = from.varint();
  auto length = from.varint();
  page.plain_bytes = from.varint();
  auto digest = from.bytes(page.digest.bytes.size());
  if (from.failed()) return corrupt("cut short");
  if (length == 0 || length > kMaxPage) return corrupt("bad length of a page");
  if (page.offset < edge.meta_offset || page.offset > edge.index_offset || edge.index_offset - page.offset < length) {
    return corrupt("page outside the pages");
  }
  if (page.plain_bytes == 0 || page.plain_bytes > kPageBlocks * codec::kMaxBlock)
    return corrupt("bad plain length of a page");
  page.length = static_cast<std::uint32_t>(length);
  std::copy(digest.begin(), digest.end(), page.digest.bytes.begin());
  return read_base_pages(from, page, !edge.from.has_value());
}

Result<std::vector<std::uint64_t>> read_object_sizes(ByteReader& from, const EdgeRef& edge) {
  if (from.varint() != edge.objects || from.failed()) return corrupt("another number of objects than the log says");
  if (edge.objects - 1 > from.remaining()) return corrupt("cut short");
  std::vector<std::uint64_t> sizes;
  sizes.reserve(edge.objects);
  std::uint64_t total = edge.last_size;
  for (std::uint32_t i = 1; i < edge.objects; i++) {
    auto size = from.varint();
    if (from.failed() || size == 0 || size > kMaxPackObject) return corrupt("bad size of an object");
    sizes.push_back(size);
    total += size;  // at most kMaxPackObjects * kMaxPackObject
  }
  sizes.push_back(edge.last_size);
  if (total != edge.total_bytes) return corrupt("another sum of sizes than the log says");
  return sizes;
}

Result<PackIndex> read_index(ByteSpan bytes, const EdgeRef& edge) {
  WFS_TRY(check_edge(edge));
  if (bytes.size() != index_range(edge).length) return corrupt("another length than the log says");
  ByteReader from(bytes);
  if (from.le<std::uint32_t>() != kIndexMagic || from.failed()) return corrupt("no index");
  auto format = from.u8();
  if (from.failed() || format == 0) return corrupt("no index");
  if (format > kIndexFormat) return Status(Code::kUnsupported, "written in a later format: update weightfs");
  PackIndex index;
  index.object_sizes = WFS_TRY(read_object_sizes(from, edge));
  auto files = from.varint();
  if (from.failed() || files > kMaxFiles || files > from.remaining()) return corrupt("bad number of files");
  index.files.resize(files);
  for (auto& pages : index.files) {
    auto count = from.varint();
    if (from.failed() || count > from.remaining() / kLeastPageRef) return corrupt("bad number of pages");
    pages.resize(count);
    for (auto& page : pages) WFS_TRY(read_page_ref(from, edge, page));
  }
  if (!from.done()) return corrupt("bytes after its end");
  return index;
}

}  // namespace

Bytes serialize_index(const PackIndex& index) {
  WFS_CHECK(!index.object_sizes.empty() && index.object_sizes.size() <= kMaxPackObjects);
  WFS_CHECK(index.files.size() <= kMaxFiles);
  Bytes out;
  ByteWriter to(out);
  to.le(kIndexMagic);
  to.u8(kIndexFormat);
  to.varint(index.object_sizes.size());
  for (std::size_t i = 0; i + 1 < index.object_sizes.size(); i++) to.varint(index.object_sizes[i]);
  to.varint(index.files.size());
  for (const auto& pages : index.files) {
    to.varint(pages.size());
    for (const auto& page : pages) write_page_ref(to, page);
  }
  return out;
}

Result<PackIndex> parse_index(ByteSpan bytes, const EdgeRef& edge) {
  return read_index(bytes, edge).with("pack index");
}

ByteRange index_range(const EdgeRef& edge) { return {edge.index_offset, edge.last_size - edge.index_offset}; }

std::vector<std::uint64_t> frame_limits(const PackIndex& index, const EdgeRef& edge) {
  auto limits = index.object_sizes;
  if (!limits.empty()) limits.back() = edge.meta_offset;
  return limits;
}

Status check_edge(const EdgeRef& edge) {
  if (edge.to == 0 || edge.to > json::kMaxNumber) return corrupt("edge: bad number of its version");
  if (edge.from && (edge.from->number == 0 || edge.from->number > json::kMaxNumber)) {
    return corrupt("edge: bad number of its base");
  }
  if (!json::is_id(edge.pack)) return corrupt("edge: bad name of its pack");
  if (edge.objects == 0 || edge.objects > kMaxPackObjects) return corrupt("edge: bad number of objects");
  if (edge.last_size > kMaxPackObject) return corrupt("edge: object over the limit");
  if (edge.meta_offset > edge.index_offset || edge.index_offset >= edge.last_size ||
      edge.last_size - edge.index_offset > kMaxIndex) {
    return corrupt("edge: bad place of its index");
  }
  if (edge.total_bytes < edge.last_size || edge.total_bytes > edge.objects * kMaxPackObject) {
    return corrupt("edge: bad sum of sizes");
  }
  if (edge.objects == 1 && edge.total_bytes != edge.last_size) return corrupt("edge: bad sum of sizes");
  if (edge.frames > edge.total_bytes) return corrupt("edge: more frames than bytes");
  return {};
}

ObjectKey pack_object_key(const ModelName& model, const std::string& pack, std::uint32_t object) {
  WFS_CHECK(json::is_id(pack));
  return ObjectKey::of(model.key_component() + "/packs/" + pack + "-" + std::to_string(object));
}

}  // namespace weightfs
