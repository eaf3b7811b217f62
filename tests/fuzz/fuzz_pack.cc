// Input: one byte that selects a page, an index of a delta, or of a full edge, then that.
#include "fuzz.h"
#include "store/format/pack.h"

using namespace weightfs;

namespace {

constexpr std::uint64_t kObject = std::uint64_t{64} << 20;

// Of three objects, as the index is long.
EdgeRef edge_for(std::size_t index_bytes, bool full) {
  EdgeRef edge{.to = 2, .pack = std::string(32, 'a'), .objects = 3};
  if (!full) edge.from = NodeRef{*ModelName::parse("m"), 1};
  edge.last_size = kObject;
  edge.meta_offset = 1000;
  edge.index_offset = kObject - std::max<std::size_t>(index_bytes, 1);
  edge.total_bytes = kObject + 3000;
  return edge;
}

void run_page(ByteSpan bytes) {
  const std::uint64_t limits[] = {1000, 2000, 1000};
  auto parse = [&](ByteSpan page) { return parse_page(page, limits); };
  auto page = parse(bytes);
  fuzz::check_round_trip(page, serialize_page, parse);
  auto digest = block_list_digest_of_page(bytes);
  if (page.is_ok()) {
    // A block list has one form only, so the digest is the manifest's or the blocks are others.
    WFS_CHECK(digest.is_ok() && *digest == Sha256::of(serialize_block_list(page->blocks)));
  }
}

void run_index(ByteSpan bytes, bool full) {
  if (bytes.size() > kObject - 1000) return;
  auto parse = [&](ByteSpan index) { return parse_index(index, edge_for(index.size(), full)); };
  auto index = parse(bytes);
  fuzz::check_round_trip(index, serialize_index, parse);
  if (!index.is_ok()) return;
  for (const auto& pages : index->files) {
    for (const auto& page : pages)
      WFS_CHECK(page.offset >= 1000 && page.offset + page.length <= kObject - bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto bytes = fuzz::input(data, size).subspan(1);
  if (data[0] % 4 < 2) {
    run_page(bytes);
  } else {
    run_index(bytes, data[0] % 4 == 3);
  }
  return 0;
}
