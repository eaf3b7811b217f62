// What the golden bucket of a format version has in it. golden_test.py reads its versions; this says that nothing of
// the format is left out there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "store/codec/codec.h"
#include "store/format/log_entry.h"
#include "store/format/manifest.h"
#include "store/format/pack.h"
#include "store/format/snapshot.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Key;
using ::testing::Pair;

const fs::path kBucket = fs::path(WEIGHTFS_GOLDEN) / "format-1" / "bucket";

Bytes read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(data, data + text.size());
}

template <typename T>
T value_of(Result<T> result, const std::string& what) {
  EXPECT_TRUE(result.is_ok()) << what << ": " << result.status().to_string();
  if (!result.is_ok()) throw std::runtime_error(what);
  return std::move(result).value();
}

// How often each thing occurs.
struct Found {
  std::map<std::size_t, int> entries;  // by LogEntry::body's index
  std::map<int, int> codecs, types;    // of blocks
  std::map<FileKind, int> files;
  std::set<std::string> models;
  int full_edges = 0, skip_edges = 0, edges_between_models = 0, blocks_of_many_pieces = 0, finished_collects = 0;
};

void look_at_edge(const fs::path& model, const EdgeRef& edge, Found* found) {
  auto key = model / "packs" / (edge.pack + "-" + std::to_string(edge.objects - 1));
  if (!fs::exists(key)) return;  // collected
  auto object = read(key);
  auto range = index_range(edge);
  auto index = value_of(parse_index(ByteSpan(object).subspan(range.offset, range.length), edge), key);
  for (const auto& file : index.files) {
    for (const auto& page : file) {
      auto parsed =
          value_of(parse_page(ByteSpan(object).subspan(page.offset, page.length), frame_limits(index, edge)), key);
      for (const auto& block : parsed.blocks) found->types[block.type]++;
      for (const auto& frame : parsed.frames) {
        found->codecs[frame.codec]++;
        if (frame.base.size() > 1) found->blocks_of_many_pieces++;
      }
    }
  }
}

void look_at(const fs::path& dir, const LogEntry& entry, Found* found) {
  found->entries[entry.body.index()]++;
  if (const auto* publish = std::get_if<PublishEntry>(&entry.body)) {
    look_at_edge(dir, publish->edge, found);
    if (publish->parent && publish->parent->model != entry.model) found->edges_between_models++;
    auto path = dir / "manifests" / publish->manifest.digest.hex();
    if (!fs::exists(path)) return;  // collected
    for (const auto& file : value_of(parse_manifest(read(path)), path).files) found->files[file.kind]++;
  } else if (const auto* later = std::get_if<EdgeEntry>(&entry.body)) {
    look_at_edge(dir, later->edge, found);
    (later->edge.from ? found->skip_edges : found->full_edges)++;
  } else if (const auto* collect = std::get_if<CollectEntry>(&entry.body)) {
    found->finished_collects += static_cast<int>(collect->finished.size());
  } else if (const auto* snapshot = std::get_if<SnapshotEntry>(&entry.body)) {
    value_of(parse_snapshot(read(kBucket / snapshot->object.str()), entry.model, *snapshot), snapshot->object.str());
  }
}

Found look_at_everything() {
  Found found;
  for (const auto& dir : fs::directory_iterator(kBucket)) {
    for (std::uint64_t number = 1;; number++) {
      auto digits = std::to_string(number);
      auto path = dir.path() / "log" / (std::string(20 - digits.size(), '0') + digits + ".json");
      if (!fs::exists(path)) break;
      auto bytes = read(path);
      auto model = value_of(model_of_log_entry(bytes), path);
      found.models.insert(model.str());
      look_at(dir.path(), value_of(parse_log_entry(bytes, model, number), path), &found);
    }
  }
  return found;
}

TEST(GoldenBucketTest, HasEveryKindOfEntryBlockTypeAndFile) {
  auto found = look_at_everything();
  for (std::size_t kind = 0; kind < 6; kind++) EXPECT_THAT(found.entries, Contains(Key(kind)));
  for (int codec = 0; codec <= static_cast<int>(codec::CodecId::kZero); codec++) {
    EXPECT_THAT(found.codecs, Contains(Key(codec)));
  }
  for (int type = 0; type < codec::kElementTypes; type++) EXPECT_THAT(found.types, Contains(Key(type)));
  for (auto kind : {FileKind::kFile, FileKind::kDirectory, FileKind::kSymlink}) {
    EXPECT_THAT(found.files, Contains(Key(kind)));
  }
  EXPECT_EQ(found.models.size(), 3);
  EXPECT_GT(found.skip_edges, 0);
  EXPECT_GT(found.edges_between_models, 0);
  EXPECT_GT(found.blocks_of_many_pieces, 0);
  EXPECT_GT(found.finished_collects, 0);
}

}  // namespace
}  // namespace weightfs
