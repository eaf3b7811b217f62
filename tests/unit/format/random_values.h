// Random legal values of every format, from a seed, for property tests.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "store/format/log_entry.h"
#include "store/format/manifest.h"
#include "store/format/pack.h"
#include "store/format/snapshot.h"

namespace weightfs::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // 0 … below - 1
  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  // Small numbers and large ones alike.
  std::uint64_t sized(std::uint64_t high) { return std::min(high, engine_() >> below(64)); }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <typename Digest>
  Digest digest() {
    Digest out;
    for (auto& byte : out.bytes) byte = static_cast<std::byte>(below(256));
    return out;
  }
  std::string id() { return digest<Xxh128>().hex(); }
  // Any bytes that are a legal name of the kind.
  template <typename Name>
  Name name() {
    while (true) {
      std::string bytes(between(1, chance(5) ? 255 : 12), 'x');
      for (auto& c : bytes) {
        if (chance(3)) c = static_cast<char>(below(256));
      }
      auto name = Name::parse(bytes);
      if (name.is_ok()) return *name;
    }
  }
  NodeRef node(const ModelName& own, std::uint64_t own_number) {
    if (own_number > 1 && chance(2)) return {own, between(1, own_number - 1)};
    auto other = name<ModelName>();
    return {other, other == own ? 1 : 1 + sized(std::uint64_t{1} << 62)};
  }

  EdgeRef edge(std::uint64_t to) {
    EdgeRef edge;
    edge.to = to;
    edge.pack = id();
    edge.objects = static_cast<std::uint32_t>(chance(2) ? 1 : between(1, kMaxPackObjects));
    edge.last_size = between(1, kMaxPackObject);
    edge.index_offset = edge.last_size - between(1, std::min(edge.last_size, kMaxIndex));
    edge.meta_offset = below(edge.index_offset + 1);
    edge.index_digest = digest<Sha256>();
    edge.total_bytes = edge.last_size + (edge.objects - 1) * between(1, kMaxPackObject);
    edge.frames = below(edge.total_bytes);
    return edge;
  }

  LogEntry entry();
  Manifest manifest();
  BlockList block_list(std::size_t blocks);
  EdgePage page(std::size_t blocks, std::span<const std::uint64_t> limits);
  PackIndex index(const EdgeRef& edge);
  Snapshot snapshot(std::size_t records);

 private:
  BlockFrame frame(const ListedBlock& block, std::span<const std::uint64_t> limits, BaseSegment& last,
                   BlockFrame& last_frame);
  std::vector<BaseSegment> base(std::uint32_t length, BaseSegment& last);
  std::mt19937_64 engine_;
};

// What a parser of hostile bytes may do with a damaged sample: refuse it, or read something that it writes and reads
// the same again.
template <typename Parse, typename Write>
void expect_damage_is_harmless(const Bytes& sample, const Parse& parse, const Write& write) {
  auto check = [&](const Bytes& bytes, std::size_t at) {
    auto parsed = parse(bytes);
    if (parsed.is_ok()) {
      auto again = parse(write(*parsed));
      ASSERT_TRUE(again.is_ok()) << "at " << at << ": " << again.status().to_string();
      ASSERT_TRUE(*again == *parsed) << "at " << at;
    } else {
      ASSERT_TRUE(parsed.code() == Code::kCorrupt || parsed.code() == Code::kUnsupported)
          << "at " << at << ": " << parsed.status().to_string();
    }
  };
  for (std::size_t length = 0; length < sample.size(); length++) {
    Bytes cut(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_FALSE(parse(cut).is_ok()) << "cut to " << length;
    check(cut, length);
  }
  auto damaged = sample;
  for (std::size_t at = 0; at < sample.size(); at++) {
    for (unsigned flip = 1; flip < 256; flip++) {
      damaged[at] = sample[at] ^ static_cast<std::byte>(flip);
      check(damaged, at);
    }
    damaged[at] = sample[at];
  }
}

}  // namespace weightfs::testing
