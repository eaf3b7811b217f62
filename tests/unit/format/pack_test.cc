#include <gtest/gtest.h>

#include "random_values.h"
#include "store/format/pack.h"

namespace weightfs {
namespace {

using codec::CodecId;
using testing::expect_damage_is_harmless;
using testing::Random;

constexpr std::uint64_t kObject = std::uint64_t{200} << 20;

std::uint8_t id(CodecId codec) { return static_cast<std::uint8_t>(codec); }

EdgePage one_block(CodecId codec) {
  EdgePage page;
  page.blocks.push_back({.length = 1000, .type = 1});
  page.frames.push_back({.codec = id(codec)});
  return page;
}

Status parse_status(const Bytes& bytes, std::vector<std::uint64_t> limits = {kObject}) {
  return parse_page(bytes, limits).status();
}

TEST(PackPageTest, WhatIsWrittenIsReadForRandomPages) {
  for (std::uint64_t seed = 0; seed < 300; seed++) {
    Random random(seed);
    std::vector<std::uint64_t> limits(1 + random.below(4), kObject);
    auto page = random.page(1 + random.sized(200), limits);
    auto bytes = serialize_page(page);
    auto parsed = parse_page(bytes, limits);
    ASSERT_TRUE(parsed.is_ok()) << seed << ": " << parsed.status().to_string();
    ASSERT_TRUE(*parsed == page) << seed;
    ASSERT_EQ(*block_list_digest_of_page(bytes), Sha256::of(serialize_block_list(page.blocks)));
  }
}

TEST(PackPageTest, AnUnchangedBlockCosts22BytesAndASparseOneUnder60) {
  Random random(1);
  auto bytes_a_block = [&](CodecId codec) {
    EdgePage page;
    std::uint64_t frame_end = 5;
    for (std::uint32_t i = 0; i < kPageBlocks; i++) {
      page.blocks.push_back({.length = codec::kMaxBlock, .type = 1, .digest = random.digest<Xxh128>()});
      BlockFrame frame{.codec = id(codec)};
      frame.base = {{.file = 3, .offset = (std::uint64_t{i} << 20) + 4096, .length = codec::kMaxBlock}};
      if (codec != CodecId::kSame) {
        frame.length = 8000;
        frame.offset = frame_end;
        frame.digest = random.digest<Sha256>();
        frame_end += frame.length;
      }
      page.frames.push_back(frame);
    }
    return static_cast<double>(serialize_page(page).size()) / kPageBlocks;
  };
  EXPECT_LT(bytes_a_block(CodecId::kSame), 22.01);
  EXPECT_LT(bytes_a_block(CodecId::kSparse), 56.01);
}

TEST(PackPageTest, DamageIsRefusedOrHarmless) {
  Random random(5);
  std::vector<std::uint64_t> limits{kObject, kObject};
  auto page = random.page(6, limits);
  expect_damage_is_harmless(
      serialize_page(page), [&](const Bytes& bytes) { return parse_page(bytes, limits); },
      [](const EdgePage& parsed) { return serialize_page(parsed); });
}

TEST(PackPageTest, FramesAreInsideTheirObjectAndBelowItsPages) {
  auto page = one_block(CodecId::kSparse);
  page.frames[0].base = {{.file = 0, .offset = 0, .length = 1000}};
  page.frames[0].object = 1;
  page.frames[0].offset = 500;
  page.frames[0].length = 100;
  auto bytes = serialize_page(page);
  EXPECT_TRUE(parse_status(bytes, {kObject, 600}).is_ok());
  EXPECT_EQ(parse_status(bytes, {kObject, 599}).code(), Code::kCorrupt);
  EXPECT_EQ(parse_status(bytes, {kObject, 0}).code(), Code::kCorrupt);
  EXPECT_EQ(parse_status(bytes, {kObject}).code(), Code::kCorrupt);
}

TEST(PackPageTest, FramesAndBasesAreAsTheCodecNeedsThem) {
  auto check = [](CodecId codec, bool has_frame, bool has_base) {
    auto page = one_block(codec);
    if (has_frame) page.frames[0].length = 1000;
    if (has_base) page.frames[0].base = {{.file = 0, .offset = 0, .length = 1000}};
    return check_page(page).code();
  };
  for (auto codec : {CodecId::kSame, CodecId::kZero, CodecId::kRaw, CodecId::kZstd, CodecId::kPlanes, CodecId::kSparse,
                     CodecId::kDenseXor, CodecId::kDenseDistance, CodecId::kZstdPatch}) {
    bool frame = codec != CodecId::kSame && codec != CodecId::kZero;
    bool base = codec == CodecId::kSame || codec >= CodecId::kSparse;
    if (codec == CodecId::kZero) base = false;
    EXPECT_EQ(check(codec, frame, base), Code::kOk) << int(codec);
    EXPECT_EQ(check(codec, !frame, base), Code::kCorrupt) << int(codec);
    EXPECT_EQ(check(codec, frame, !base), Code::kCorrupt) << int(codec);
  }
}

TEST(PackPageTest, BaseSegmentsAddUpToTheBlock) {
  auto check = [](CodecId codec, std::vector<BaseSegment> base) {
    auto page = one_block(codec);
    page.frames[0].length = 10;
    page.frames[0].base = std::move(base);
    return check_page(page).code();
  };
  BaseSegment half{.file = 1, .offset = 7, .length = 500}, zeros{.length = 500};
  EXPECT_EQ(check(CodecId::kSparse, {half, zeros}), Code::kOk);
  EXPECT_EQ(check(CodecId::kSparse, {half}), Code::kCorrupt);
  EXPECT_EQ(check(CodecId::kSparse, {half, half, half}), Code::kCorrupt);
  EXPECT_EQ(check(CodecId::kZstdPatch, {half}), Code::kOk);
  EXPECT_EQ(check(CodecId::kZstdPatch, {half, half, half}), Code::kCorrupt);
  EXPECT_EQ(check(CodecId::kSparse, std::vector<BaseSegment>(1000, {.file = 0, .offset = 0, .length = 1})), Code::kOk);
  EXPECT_EQ(check(CodecId::kSparse, {{.file = 1, .offset = kMaxFileSize - 999, .length = 1000}}), Code::kCorrupt);
  EXPECT_EQ(check(CodecId::kSparse, {{.file = 1, .offset = ~std::uint64_t{0} - 10, .length = 1000}}), Code::kCorrupt);
  EXPECT_EQ(check(CodecId::kSparse, {{.file = kMaxFiles, .offset = 0, .length = 1000}}), Code::kCorrupt);
}

TEST(PackPageTest, CountsThatTheBytesCannotHoldAreRefusedBeforeTheyAreAllocated) {
  for (std::uint64_t count : {std::uint64_t{4096}, std::uint64_t{4097}, ~std::uint64_t{0}}) {
    Bytes list, page;
    ByteWriter to(list);
    to.varint(count);
    ByteWriter(page).varint(list.size());
    page.insert(page.end(), list.begin(), list.end());
    EXPECT_EQ(parse_block_list(list).code(), Code::kCorrupt);
    EXPECT_EQ(parse_status(page).code(), Code::kCorrupt);
  }
  Bytes huge;
  ByteWriter(huge).varint(~std::uint64_t{0});
  EXPECT_EQ(parse_status(huge).code(), Code::kCorrupt);
  EXPECT_EQ(block_list_digest_of_page(huge).code(), Code::kCorrupt);
}

TEST(PackPageTest, ABlockCannotContinueASegmentThatIsNotThere) {
  auto page = one_block(CodecId::kSame);
  page.frames[0].base = {{.file = 0, .offset = 0, .length = 1000}};
  auto bytes = serialize_block_list(page.blocks);
  bytes.insert(bytes.begin(), static_cast<std::byte>(bytes.size()));
  bytes.push_back(std::byte{0});  // kSame
  bytes.push_back(std::byte{1});  // the next segment
  EXPECT_EQ(parse_status(bytes).code(), Code::kCorrupt);
}

EdgeRef edge_of(const PackIndex& index, Random& random, bool full = false) {
  EdgeRef edge{.to = 5, .pack = random.id()};
  if (!full) edge.from = NodeRef{*ModelName::parse("m"), 4};
  edge.objects = static_cast<std::uint32_t>(index.object_sizes.size());
  edge.last_size = index.object_sizes.back();
  for (auto size : index.object_sizes) edge.total_bytes += size;
  edge.index_offset = edge.last_size - serialize_index(index).size();
  return edge;
}

TEST(PackIndexTest, WhatIsWrittenIsReadForRandomIndexes) {
  for (std::uint64_t seed = 0; seed < 300; seed++) {
    Random random(seed);
    EdgeRef edge{.to = 9, .pack = random.id()};
    if (random.chance(2)) edge.from = NodeRef{*ModelName::parse("m"), 4};
    edge.objects = static_cast<std::uint32_t>(random.between(1, 50));
    edge.last_size = kObject;
    edge.index_offset = kObject - 50'000;
    edge.meta_offset = kObject - 90'000;
    edge.total_bytes = edge.last_size + (edge.objects - 1) * std::uint64_t{1000};
    auto index = random.index(edge);
    auto bytes = serialize_index(index);
    edge.index_offset = kObject - bytes.size();
    auto parsed = parse_index(bytes, edge);
    ASSERT_TRUE(parsed.is_ok()) << seed << ": " << parsed.status().to_string();
    ASSERT_TRUE(*parsed == index) << seed;
    ASSERT_EQ(frame_limits(*parsed, edge).back(), edge.meta_offset);
  }
}

TEST(PackIndexTest, ABasePageBeyondAnyManifestIsCorrupt) {
  Random random(5);
  for (auto [number, expected] :
       {std::pair(std::uint32_t{1} << 22, Code::kOk), std::pair(~std::uint32_t{0}, Code::kCorrupt)}) {
    PackIndex index{.object_sizes = {5000}, .files = {{{.offset = 10, .length = 20, .plain_bytes = 100}}}};
    index.files[0][0].base_pages = {{0, number}};
    EXPECT_EQ(parse_index(serialize_index(index), edge_of(index, random)).code(), expected) << number;
  }
}

PackIndex small_index(Random& random) {
  PackIndex index{.object_sizes = {700, 5000}, .files = {{}, {}}};
  index.files[1].push_back({.offset = 10, .length = 20, .digest = random.digest<Sha256>(), .plain_bytes = 100});
  index.files[1][0].base_pages = {{0, 0}, {0, 2}, {4, 1}};
  return index;
}

TEST(PackIndexTest, DamageIsRefusedOrHarmless) {
  Random random(3);
  auto index = small_index(random);
  auto edge = edge_of(index, random);
  expect_damage_is_harmless(
      serialize_index(index),
      [&](const Bytes& bytes) {
        auto fitting = edge;
        if (bytes.size() < edge.last_size) fitting.index_offset = edge.last_size - bytes.size();
        return parse_index(bytes, fitting);
      },
      [](const PackIndex& parsed) { return serialize_index(parsed); });
}

TEST(PackIndexTest, WhatDoesNotFitTheEdgeIsCorruptAndALaterFormatUnsupported) {
  Random random(4);
  auto index = small_index(random);
  auto bytes = serialize_index(index);
  const auto edge = edge_of(index, random);
  ASSERT_TRUE(parse_index(bytes, edge).is_ok());
  auto refused = [&](auto change) {
    auto changed = edge;
    change(changed);
    return parse_index(bytes, changed).code() == Code::kCorrupt;
  };
  EXPECT_TRUE(refused([](EdgeRef& e) { e.objects = 1; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.total_bytes++; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.index_offset--; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.meta_offset = 11; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.from.reset(); }));  // a full edge has no base pages
  EXPECT_TRUE(refused([](EdgeRef& e) { e.last_size = 29; }));
  bytes[4] = std::byte{2};
  EXPECT_EQ(parse_index(bytes, edge).code(), Code::kUnsupported);
}

TEST(EdgeTest, NumbersThatCannotBeAreRefused) {
  Random random(6);
  for (int i = 0; i < 100; i++) EXPECT_TRUE(check_edge(random.edge(3)).is_ok());
  const auto good = random.edge(3);
  auto refused = [&](auto change) {
    auto changed = good;
    change(changed);
    return check_edge(changed).code() == Code::kCorrupt;
  };
  EXPECT_TRUE(refused([](EdgeRef& e) { e.to = 0; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.pack = "../../x"; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.objects = 0; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.objects = kMaxPackObjects + 1; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.last_size = kMaxPackObject + 1; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.index_offset = e.last_size; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.meta_offset = e.index_offset + 1; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.total_bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](EdgeRef& e) { e.frames = e.total_bytes + 1; }));
}

}  // namespace
}  // namespace weightfs
