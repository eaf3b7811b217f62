#include "store/format/safetensors.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <random>

#include "store/format/layout.h"

namespace weightfs {
namespace {

using codec::ElementType;
using codec::kMaxBlock;
using safetensors::Header;

Result<Header> parse(const std::string& json, std::uint64_t data_size) {
  return safetensors::parse_header(as_bytes(json), 8 + json.size() + data_size);
}
std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, std::uint64_t start,
                   std::uint64_t end) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
         std::to_string(start) + "," + std::to_string(end) + "]}";
}

TEST(SafetensorsTest, TensorsComeInOrderOfTheirBytesWithNameDtypeAndShape) {
  auto json = "{" + tensor("b", "BF16", "[2,3]", 4, 16) + "," + R"("__metadata__":{"format":"pt"},)" +
              tensor("a", "F32", "[]", 0, 4) + "," + tensor("empty", "I64", "[0,7]", 4, 4) + "}   ";
  auto header = parse(json, 16);
  ASSERT_TRUE(header.is_ok()) << header.status().to_string();
  auto moved = std::move(header).value();
  ASSERT_EQ(moved.tensors.size(), 3u);
  EXPECT_EQ(moved.data_start, 8 + json.size());
  EXPECT_EQ(moved.tensors[0].name, "a");
  EXPECT_EQ(moved.tensors[0].shape.rank(), 0u);
  EXPECT_EQ(moved.tensors[1].name, "empty");
  EXPECT_TRUE(moved.tensors[1].bytes.empty());
  EXPECT_EQ(moved.tensors[2].name, "b");
  EXPECT_EQ(moved.tensors[2].dtype, "BF16");
  EXPECT_EQ(moved.tensors[2].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(moved.tensors[2].bytes, (ByteRange{moved.data_start + 4, 12}));
  std::string names;
  for (const auto& each : moved.tensors) names += each.name;
  EXPECT_EQ(names, "aemptyb");
}

TEST(SafetensorsTest, WhatTheReferenceParserAcceptsIsAccepted) {
  const std::string a = tensor("a", "U8", "[4]", 0, 4);
  for (const auto& json : std::vector<std::string>{
           "{" + a + "}", " \n\t\r{" + a + "}", R"({"__metadata__":null,)" + a + "}",
           R"({"__metadata__":{},)" + a + "}", R"({"__metadata__":{"k":"v","k":"w"},)" + a + "}",
           R"({"a":{"later":[1.5e3,-0,{"x":[true,false,null]},"A\n"],"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           R"({"\u0061\ud83d\ude00\"":{"dt\u0079pe":"\u00558","shape":[2,2],"data_offsets":[0,4]}})",
           "{" + tensor("\xc3\xa9\xf0\x9f\x98\x80", "F4", "[8]", 0, 4) + "}", "{" + tensor("", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("a", "LATER", "[9]", 0, 4) + "}",
           "{" + tensor("a", "U8", "[0,18446744073709551615]", 0, 0) + "," + tensor("b", "U8", "[4]", 0, 4) + "}"}) {
    auto header = parse(json, 4);
    EXPECT_TRUE(header.is_ok()) << json << ": " << header.status().to_string();
  }
  EXPECT_TRUE(parse("{}", 0).is_ok());
  auto escaped = parse(R"({"\u0061\ud83d\ude00\"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  EXPECT_EQ(escaped->tensors[0].name, "a\xf0\x9f\x98\x80\"");
}

TEST(SafetensorsTest, HostileHeadersAreInvalid) {
  const std::string a = tensor("a", "U8", "[4]", 0, 4), big = "18446744073709551615";
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const auto& json : std::vector<std::string>{
           "",
           " ",
           "[]",
           "null",
           "{",
           "{}",
           "{" + a,
           "{" + a + ",}",
           "{" + a + "}x",
           "{" + a + "}{}",
           "\xef\xbb\xbf{" + a + "}",
           "{" + a + "}" + std::string(1, '\0'),
           "{" + a + "," + a + "}",                     // a name twice
           "{" + tensor("a", "U8", "[4]", 1, 5) + "}",  // a hole at the start
           "{" + tensor("a", "U8", "[2]", 0, 2) + "," + tensor("b", "U8", "[1]", 3, 4) + "}",
           "{" + tensor("a", "U8", "[3]", 0, 3) + "," + tensor("b", "U8", "[2]", 2, 4) + "}",  // overlap
           "{" + tensor("a", "U8", "[3]", 0, 3) + "}",                                         // shorter than the file
           "{" + tensor("a", "U8", "[5]", 0, 5) + "}",                                         // longer
           "{" + tensor("a", "U8", "[4]", 4, 0) + "}",
           "{" + tensor("a", "BF16", "[4]", 0, 4) + "}",
           "{" + tensor("a", "F4", "[7]", 0, 4) + "}",
           "{" + tensor("a", "U8", "[4294967296,4294967296,4]", 0, 4) + "}",
           "{" + tensor("a", "U8", "[" + big + ",2,0]", 0, 4) + "}",
           "{" + tensor("a", "F64", "[" + big + "]", 0, 4) + "}",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551616]}})",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,)" + big + "]}}",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + big + ",3]}}",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}})",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-0,4]}})",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,04]}})",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})",
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4]}})",
           R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})",
           R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           R"({"a":{"shape":[4],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"U8","data_offsets":[0,4]}})",
           R"({"a":{"dtype":"U8","shape":[4]}})",
           R"({"a":7})",
           R"({"a":null})",
           R"({"__metadata__":{"k":1},)" + a + "}",
           R"({"__metadata__":[],)" + a + "}",
           R"({"__metadata__":"x",)" + a + "}",
           R"({"__metadata__":{},"__metadata__":{},)" + a + "}",
           R"({"__metadata__":{"k":null},)" + a + "}",
           R"({"a":{"x":)" + deep + R"(,"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           R"({"\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           R"({"\udc00":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           R"({"\x41":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
           "{" + tensor("\xff", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("\xc0\x80", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("\xed\xa0\x80", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("\xf4\x90\x80\x80", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("a\nb", "U8", "[4]", 0, 4) + "}",
           "{" + tensor("a", std::string(65, 'X'), "[4]", 0, 4) + "}"}) {
    EXPECT_EQ(parse(json, 4).code(), Code::kInvalid) << json.substr(0, 200);
  }
}

TEST(SafetensorsTest, TheLengthOfTheHeaderIsNotTrusted) {
  auto length = [](std::uint64_t value, std::uint64_t file_size) {
    Bytes first;
    ByteWriter(first).le(value);
    return safetensors::header_length(first, file_size);
  };
  EXPECT_EQ(*length(2, 10), 2u);
  EXPECT_EQ(*length(100'000'000, 100'000'008), 100'000'000u);
  for (auto [value, size] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{3, 10},
                                                            {0, 7},
                                                            {100'000'001, std::uint64_t{1} << 40},
                                                            {~std::uint64_t{0}, 100},
                                                            {~std::uint64_t{0} - 7, ~std::uint64_t{0}}}) {
    EXPECT_EQ(length(value, size).code(), Code::kInvalid) << value;
  }
  auto broken = safetensors::read_header([](auto, auto) { return Status(Code::kIo, "disk"); }, 100);
  EXPECT_EQ(broken.code(), Code::kIo);
}

TEST(SafetensorsTest, DamageNeverCrashesTheParser) {
  auto json = "{" + tensor("a\\n", "BF16", "[2,3]", 0, 12) + R"(,"__metadata__":{"k":"v"},)" +
              tensor("b", "F8_E4M3", "[4]", 12, 16) + "}";
  for (std::size_t at = 0; at < json.size(); at++) {
    EXPECT_FALSE(parse(json.substr(0, at), 16).is_ok());
    for (int value = 0; value < 256; value++) {
      auto damaged = json;
      damaged[at] = static_cast<char>(value);
      auto header = parse(damaged, 16);
      if (header.is_ok()) {
        for (const auto& each : header->tensors) ASSERT_LE(each.bytes.end(), 8 + json.size() + 16);
      } else {
        ASSERT_EQ(header.code(), Code::kInvalid);
      }
    }
  }
}

// Bytes that malloc has given out and not got back.
std::size_t allocated() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

TEST(SafetensorsTest, AHeaderOf100MegabytesTakesLessThanTwiceItsSize) {
  struct Case {
    const char* what;
    std::string (*entry)(std::uint64_t i);
  };
  const Case cases[] = {{"shortest entries",
                         [](std::uint64_t i) {
                           char name[8];
                           std::snprintf(name, sizeof name, "%x", static_cast<unsigned>(i));
                           return tensor(name, "U8", "[0]", 0, 0);
                         }},
                        {"usual entries",
                         [](std::uint64_t i) {
                           return tensor("model.layers." + std::to_string(i) + ".self_attn.q_proj.weight", "BF16",
                                         "[2,4]", 16 * i, 16 * i + 16);
                         }},
                        {"names of escapes", [](std::uint64_t i) {
                           std::string name = std::to_string(i);
                           for (int e = 0; e < 100'000; e++) name += "\\n";
                           return tensor(name, "U8", "[0]", 0, 0);
                         }}};
  for (const auto& each : cases) {
    std::string json;
    json.reserve(safetensors::kMaxHeader);
    json = "{";
    std::uint64_t count = 0;
    while (true) {
      auto next = each.entry(count);
      if (json.size() + next.size() + 2 > safetensors::kMaxHeader) break;
      if (count++ > 0) json += ",";
      json += next;
    }
    json += "}";
    ASSERT_GT(json.size(), safetensors::kMaxHeader - (2 << 20)) << each.what;
    std::uint64_t data = std::string_view(each.what) == "usual entries" ? 16 * count : 0;
    malloc_trim(0);
    auto before = allocated();
    auto header = parse(json, data);
    ASSERT_TRUE(header.is_ok()) << each.what << ": " << header.status().to_string();
    EXPECT_EQ(header->tensors.size(), count);
    // All is allocated once and never given back, so what is there at the end was the most. A page is malloc's own.
    EXPECT_LT(allocated() - before, json.size() + 4096) << each.what;
  }
}

TEST(SafetensorsTest, DtypesMapToTheElementsTheyAre) {
  EXPECT_EQ(safetensors::element_type("BF16"), ElementType::kBf16);
  EXPECT_EQ(safetensors::element_type("F16"), ElementType::kF16);
  EXPECT_EQ(safetensors::element_type("F32"), ElementType::kF32);
  EXPECT_EQ(safetensors::element_type("F64"), ElementType::kF64);
  EXPECT_EQ(safetensors::element_type("F8_E4M3"), ElementType::kF8E4M3);
  EXPECT_EQ(safetensors::element_type("F8_E4M3FN"), ElementType::kF8E4M3);
  EXPECT_EQ(safetensors::element_type("F8_E5M2FNUZ"), ElementType::kF8E5M2);
  EXPECT_EQ(safetensors::element_type("U16"), ElementType::kInt16);
  EXPECT_EQ(safetensors::element_type("I32"), ElementType::kInt32);
  EXPECT_EQ(safetensors::element_type("U64"), ElementType::kInt64);
  for (auto dtype : {"U8", "BOOL", "F4", "F8_E8M0", "C64", "", "bf16"}) {
    EXPECT_EQ(safetensors::element_type(dtype), ElementType::kBytes) << dtype;
  }
}

TEST(SafetensorsTest, AnIndexNamesItsShardsOnce) {
  auto shards = safetensors::shards_of_index(as_bytes(
      R"({"metadata":{"total_size":5},"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors","c":"model-\u0032.safetensors"}})"));
  ASSERT_TRUE(shards.is_ok());
  EXPECT_EQ(*shards, (std::vector<std::string>{"model-1.safetensors", "model-2.safetensors"}));
  EXPECT_TRUE(safetensors::shards_of_index(as_bytes(R"({"weight_map":{}})"))->empty());
  for (std::string_view bad :
       {"", "{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})", R"({"weight_map":{}}x)"}) {
    EXPECT_EQ(safetensors::shards_of_index(as_bytes(bad)).code(), Code::kInvalid) << bad;
  }
}

// What cut_blocks promises, whatever the tensors are.
void expect_legal_cuts(const std::vector<BlockSpan>& blocks, std::uint64_t file_size) {
  std::uint64_t at = 0;
  for (const auto& block : blocks) {
    ASSERT_EQ(block.range.offset, at);
    ASSERT_GE(block.range.length, 1u);
    ASSERT_LE(block.range.length, kMaxBlock);
    at = block.range.end();
  }
  ASSERT_EQ(at, file_size);
}

struct Made {
  Header header;
  std::uint64_t file_size;
};
Made make(const std::vector<std::pair<std::string, std::uint64_t>>& dtype_and_bytes, const std::string& prefix = "") {
  std::string json = "{" + prefix;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < dtype_and_bytes.size(); i++) {
    auto [dtype, bytes] = dtype_and_bytes[i];
    if (i > 0) json += ",";
    json += tensor("t" + std::to_string(i), dtype, "[]", at, at + bytes);
    at += bytes;
  }
  json += "}";
  // Dtypes that are not known (a name in front makes them so) have any size.
  auto header = parse(json, at);
  EXPECT_TRUE(header.is_ok()) << header.status().to_string();
  return {std::move(header).value(), 8 + json.size() + at};
}

TEST(LayoutTest, LargeTensorsAreCutFromTheirStartAndSmallNeighboursShare) {
  auto [header, size] = make({{"x", 2 * kMaxBlock + 5}, {"x", 10}, {"x", kMaxBlock - 10}, {"x", 1}, {"x", kMaxBlock}});
  auto blocks = cut_blocks(size, &header);
  expect_legal_cuts(blocks, size);
  std::vector<std::uint64_t> lengths;
  for (const auto& block : blocks) lengths.push_back(block.range.length);
  EXPECT_EQ(lengths, (std::vector<std::uint64_t>{header.data_start, kMaxBlock, kMaxBlock, 5, kMaxBlock, 1, kMaxBlock}));
}

TEST(LayoutTest, CutsInsideATensorDoNotDependOnItsFile) {
  auto cuts_of_last = [](std::uint64_t before, const std::string& metadata) {
    auto [header, size] = make({{"y", before}, {"x", 3 * kMaxBlock + 77}}, metadata);
    auto start = header.tensors[header.tensors.size() - 1].bytes.offset;
    std::vector<std::uint64_t> cuts;
    for (const auto& block : cut_blocks(size, &header)) {
      if (block.range.offset >= start) cuts.push_back(block.range.offset - start);
    }
    return cuts;
  };
  auto cuts = cuts_of_last(0, "");
  EXPECT_EQ(cuts, (std::vector<std::uint64_t>{0, kMaxBlock, 2 * kMaxBlock, 3 * kMaxBlock}));
  EXPECT_EQ(cuts_of_last(12345, ""), cuts);
  EXPECT_EQ(cuts_of_last(kMaxBlock + 3, R"("__metadata__":{"a":"b"},)"), cuts);
}

TEST(LayoutTest, OnlyTensorsOfOneElementTypeShare) {
  auto json = "{" + tensor("a", "BF16", "[4]", 0, 8) + "," + tensor("b", "BF16", "[2]", 8, 12) + "," +
              tensor("c", "F32", "[2]", 12, 20) + "," + tensor("d", "U8", "[3]", 20, 23) + "," +
              tensor("e", "I8", "[3]", 23, 26) + "}";
  auto header = parse(json, 26);
  ASSERT_TRUE(header.is_ok());
  auto blocks = cut_blocks(8 + json.size() + 26, &*header);
  expect_legal_cuts(blocks, 8 + json.size() + 26);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].type, ElementType::kBytes);
  EXPECT_EQ(blocks[1].type, ElementType::kBf16);
  EXPECT_EQ(blocks[1].range.length, 12u);
  EXPECT_EQ(blocks[2].type, ElementType::kF32);
  EXPECT_EQ(blocks[3].range.length, 6u);
}

TEST(LayoutTest, AnyTensorsGiveLegalCuts) {
  for (std::uint64_t seed = 0; seed < 200; seed++) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<std::string, std::uint64_t>> tensors(random() % 20);
    for (auto& [dtype, bytes] : tensors) {
      dtype = random() % 2 == 0 ? "x" : "y";
      bytes = random() % 4 == 0 ? 0 : (random() % (4 * kMaxBlock)) >> (random() % 22);
    }
    auto [header, size] = make(tensors);
    expect_legal_cuts(cut_blocks(size, &header), size);
  }
}

TEST(LayoutTest, FilesThatAreNotSafetensorsAreCutAtMultiples) {
  EXPECT_TRUE(cut_blocks(0, nullptr).empty());
  auto blocks = cut_blocks(2 * kMaxBlock + 1, nullptr);
  expect_legal_cuts(blocks, 2 * kMaxBlock + 1);
  EXPECT_EQ(blocks.size(), 3u);
  auto [empty, size] = make({});
  expect_legal_cuts(cut_blocks(size, &empty), size);
  auto [zero, zero_size] = make({{"x", 0}, {"x", 0}});
  expect_legal_cuts(cut_blocks(zero_size, &zero), zero_size);
}

}  // namespace
}  // namespace weightfs
