// A cache in a directory of its own, and files whose blocks have contents that follow from their place.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "store/cache/cache.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

using Sizes = std::vector<std::uint32_t>;
constexpr std::uint32_t kBlock = 64 << 10;

inline Sizes blocks_of(std::size_t count, std::uint32_t size = kBlock) { return Sizes(count, size); }
inline std::uint64_t offset_of(const Sizes& sizes, std::size_t block) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(block), std::uint64_t{0});
}

// The right bytes of a block: never zeros, other in each block.
inline Bytes content(const FileId& id, std::size_t block, std::size_t length) {
  Bytes bytes(length);
  std::uint64_t state = (id.number * 1'000'003 + id.file) * 1'000'003 + block * 2'654'435'761u + id.model.size() + 1;
  for (auto& byte : bytes) {
    state = state * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
    byte = static_cast<std::byte>(state >> 56 | 1);
  }
  return bytes;
}

class CacheFixture : public ::testing::Test {
 protected:
  void open(std::uint64_t quota = 0) {
    auto opened = Cache::open({dir(), quota});
    ASSERT_OK(opened);
    cache_ = std::move(opened).value();
  }
  void close() { cache_.reset(); }
  void reopen(std::uint64_t quota = 0) {
    close();
    open(quota);
  }
  std::string dir() const { return folder_ / "cache"; }
  static FileId id(std::uint64_t number, std::uint32_t file = 0, std::string model = "m") {
    return {std::move(model), number, file};
  }
  FlatFilePtr file(const FileId& id, const Sizes& sizes) {
    auto opened = cache_->open_file(id, sizes);
    EXPECT_OK(opened);
    return opened.is_ok() ? *opened : nullptr;
  }
  static Status fill(FlatFile& file, const Sizes& sizes, std::size_t block) {
    return file.write(block, offset_of(sizes, block), content(file.id(), block, sizes[block]));
  }
  // All of a file; closed again.
  void put(const FileId& id, const Sizes& sizes) {
    auto opened = file(id, sizes);
    ASSERT_NE(opened, nullptr);
    for (std::size_t block = 0; block < sizes.size(); block++) ASSERT_OK(fill(*opened, sizes, block));
  }
  // What a reader does: checks an unverified block before it uses it. True: right bytes are there.
  static bool check(FlatFile& file, const Sizes& sizes, std::size_t block) {
    if (file.presence(block) == FlatFile::Presence::kAbsent) return false;
    Bytes bytes(sizes[block]);
    bool right = file.read(offset_of(sizes, block), bytes).is_ok() && bytes == content(file.id(), block, sizes[block]);
    if (right) file.verified(block, sizes[block]);
    if (!right) file.damaged(block, sizes[block]);
    return right;
  }
  std::uint64_t used() const {
    auto usage = cache_->usage();
    return usage.flat_bytes + usage.draft_bytes + usage.blob_bytes;
  }

  TempDir folder_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace weightfs
