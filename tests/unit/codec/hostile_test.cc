// The fuzzer's corpus and thousands of mutations of it, in every run of the tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/block_case.h"
#include "tests/unit/codec/blocks.h"

namespace weightfs::codec {
namespace {

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(WEIGHTFS_BLOCK_CORPUS)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> cases;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    cases.push_back(to_bytes(text));
  }
  return cases;
}

TEST(HostileBlockTest, CorpusDecodesAlikeAtEveryLevel) {
  auto cases = corpus();
  ASSERT_GE(cases.size(), 8U);
  int sound = 0;
  for (const auto& one : cases) sound += run_case(one) == Code::kOk;
  EXPECT_GE(sound, 8);
}

TEST(HostileBlockTest, MutationsDecodeAlikeAtEveryLevelAndStayInBounds) {
  auto cases = corpus();
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    auto bytes = cases[rng() % cases.size()];
    for (auto changes = 1 + rng() % 4; changes > 0; --changes) {
      auto at = bytes.empty() ? 0 : rng() % bytes.size();
      switch (rng() % 4) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(rng()));
          break;
        default:
          if (!bytes.empty()) bytes[at] = static_cast<std::byte>(rng() % 3 ? rng() : 0xFF);
      }
    }
    run_case(bytes);  // aborts on disagreement
  }
}

}  // namespace
}  // namespace weightfs::codec
