// Plans along paths that nobody publishes.
#include "store/materialize/plan.h"

#include <gtest/gtest.h>

#include "tests/support/memory_bucket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using codec::CodecId;

class FixedPath : public PathSource {
 public:
  Result<std::vector<PathEdge>> path(const NodeRef&, const std::set<NodeRef>&) override { return edges; }
  std::vector<ModelName> related_models(const ModelName& model) override { return {model}; }
  Status refresh(const NodeRef&, const CallOptions&) override { return {}; }
  std::optional<Sha256> manifest_digest(const NodeRef& node) override {
    auto found = manifests.find(node.number);
    return found == manifests.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<PathEdge> edges;
  std::map<std::uint64_t, Sha256> manifests;
};

class PlanTest : public ::testing::Test {
 protected:
  // An edge whose pack has one page of one file.
  PathEdge edge(std::uint64_t to, std::optional<std::uint64_t> from, const EdgePage& page) {
    auto bytes = serialize_page(page);
    PageRef ref{.offset = 0, .length = static_cast<std::uint32_t>(bytes.size()), .digest = Sha256::of(bytes)};
    for (const auto& block : page.blocks) ref.plain_bytes += block.length;
    if (from) ref.base_pages = {{0, 0}};
    PackIndex index;
    index.object_sizes = {0};
    index.files = {{ref}};
    auto tail = serialize_index(index);
    EdgeRef edge{.to = to, .pack = Sha256::of(tail).hex().substr(0, 32), .objects = 1};
    if (from) edge.from = NodeRef{model_, *from};
    edge.index_offset = bytes.size();
    edge.index_digest = Sha256::of(tail);
    bytes.insert(bytes.end(), tail.begin(), tail.end());
    edge.last_size = edge.total_bytes = bytes.size();
    bucket_.objects().set_contents(pack_object_key(model_, edge.pack, 0).str(), bytes);
    return {model_, edge};
  }
  static ListedBlock block(std::uint32_t length) { return {length, 0, Xxh128::of(Bytes(length))}; }
  static BlockFrame made(CodecId codec, std::vector<BaseSegment> base = {}) {
    BlockFrame frame;
    frame.codec = static_cast<std::uint8_t>(codec);
    frame.base = std::move(base);
    return frame;
  }
  Manifest manifest_of(const BlockList& list) {
    FileEntry file{*FilePath::parse("f")};
    for (const auto& one : list) file.size += one.length;
    file.pages = {Sha256::of(serialize_block_list(list))};
    return {model_, *VersionName::parse("v"), {file}, ""};
  }

  const ModelName model_ = *ModelName::parse("m");
  TempDir dir_;
  MemoryBucket bucket_;
  std::unique_ptr<Cache> cache_ = std::move(Cache::open({.dir = dir_ / "cache"})).value();
  WorkerPool pool_{"fetch", 2};
  Meta meta_{bucket_, *cache_, pool_, 64 << 20};
  LocalFiles locals_{*cache_, meta_};
  FixedPath path_;
  Planner planner_{meta_, locals_, path_, *cache_};
};

TEST_F(PlanTest, APathMayHaveAnyLength) {
  constexpr std::uint64_t kEdges = 20'000;
  BlockList list{block(16)};
  EdgePage same{list, {made(CodecId::kSame, {{.file = 0, .offset = 0, .length = 16}})}};
  for (auto to = kEdges; to > 1; to--) path_.edges.push_back(edge(to, to - 1, same));
  path_.edges.push_back(edge(1, std::nullopt, {list, {made(CodecId::kZero)}}));
  auto plans = planner_.plan({model_, kEdges}, manifest_of(list), 0, {0}, {});
  ASSERT_OK(plans);
  EXPECT_EQ(plans->at(0).steps.size(), kEdges);
}

// The parent's file is known here by its manifest, some blocks of it are here; the edge that builds the others cuts it
// in other places.
TEST_F(PlanTest, AnEdgeThatCutsItsBlocksOtherwiseThanTheManifestIsCorrupt) {
  BlockList right{block(1000), block(24)}, wrong{block(24), block(1000)}, target{block(1000)};
  auto parent = manifest_of(right);
  auto digest = Sha256::of(serialize(parent));
  cache_->put_blob(digest, serialize(parent));
  meta_.keep_block_list(parent.files[0].pages[0], right);
  path_.manifests[1] = digest;
  std::vector<std::uint32_t> sizes{1000, 24};
  auto flat = cache_->open_file({"m", 1, 0}, sizes);
  ASSERT_OK(flat);
  ASSERT_OK((*flat)->write(1, 1000, Bytes(24)));
  path_.edges = {edge(2, 1, {target, {made(CodecId::kSame, {{.file = 0, .offset = 0, .length = 1000}})}}),
                 edge(1, std::nullopt, {wrong, {made(CodecId::kZero), made(CodecId::kZero)}})};
  EXPECT_STATUS(planner_.plan({model_, 2}, manifest_of(target), 0, {0}, {}), Code::kCorrupt);
  path_.edges.back() = edge(1, std::nullopt, {right, {made(CodecId::kZero), made(CodecId::kZero)}});
  EXPECT_OK(planner_.plan({model_, 2}, manifest_of(target), 0, {0}, {}));
}

// A page may say of a block that it reads a little of each of very many.
TEST_F(PlanTest, ABlockThatNeedsTooMuchOfOneVersionIsCorrupt) {
  for (std::uint32_t needed : {512, 513}) {  // kMaxLevelBytes, and a block more
    BlockList parent(needed, block(codec::kMaxBlock));
    BlockList target{block(needed)};
    std::vector<BaseSegment> base;
    for (std::uint64_t i = 0; i < needed; i++) base.push_back({.file = 0, .offset = i * codec::kMaxBlock, .length = 1});
    path_.edges = {edge(2, 1, {target, {made(CodecId::kSame, base)}}),
                   edge(1, std::nullopt, {parent, std::vector<BlockFrame>(needed, made(CodecId::kZero))})};
    auto plans = planner_.plan({model_, 2}, manifest_of(target), 0, {0}, {});
    if (needed == 512) {
      EXPECT_OK(plans);
    } else {
      EXPECT_STATUS(plans, Code::kCorrupt);
      EXPECT_NE(plans.status().message().find("a block needs too many others"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace weightfs
