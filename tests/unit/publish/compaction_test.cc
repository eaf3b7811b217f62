// A thousand versions on paper, with sizes that the codec really gives: paths stay short, and what that costs is
// bounded.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "store/codec/codec.h"
#include "store/log/gc_plan.h"
#include "store/publish/compaction_policy.h"
#include "tests/support/simulated_run.h"

namespace weightfs {
namespace {

constexpr std::array<std::uint64_t, 4> kDistances = {1, 8, 64, 512};
constexpr std::uint64_t kPlain = std::uint64_t{2} << 30;
const ModelName kModel = *ModelName::parse("run");

// Encoded bytes of one block over each distance, as a share of a full encoding; by real encodings of a simulated run.
struct Sizes {
  double full = 0;                // of plain
  std::array<double, 4> delta{};  // of plain, by kDistances
  double density = 0;             // elements changed by one step

  double at(std::uint64_t distance) const {
    std::size_t i = 0;
    while (i + 2 < kDistances.size() && distance > kDistances[i + 1]) i++;
    auto x0 = std::log(kDistances[i]), x1 = std::log(kDistances[i + 1]), y0 = std::log(delta[i]),
         y1 = std::log(delta[i + 1]);
    return std::min(full, std::exp(y0 + (std::log(distance) - x0) * (y1 - y0) / (x1 - x0)));
  }
};

Sizes measure(float learning_rate) {
  constexpr std::size_t kElements = 1 << 19;
  testing::SimulatedRun run(kElements, learning_rate, 11);
  codec::Scratch scratch;
  Bytes frame(codec::kMaxFrame);
  std::map<std::uint64_t, Bytes> kept{{0, run.weights()}};
  for (std::uint64_t step = 1; step <= 520; step++) {
    run.step();
    if (step % 64 <= 1 || step % 64 == 8 || step == 512) kept[step] = run.weights();
  }
  auto encode = [&](ByteSpan base, ByteSpan target) {
    return codec::encode_block(scratch, codec::ElementType::kBf16, base, target, frame);
  };
  Sizes sizes;
  sizes.full = static_cast<double>(encode({}, kept[0]).frame_length) / (2 * kElements);
  for (std::size_t i = 0; i < kDistances.size(); i++) {
    double sum = 0, count = 0;
    for (std::uint64_t from = 0; from + kDistances[i] <= 512; from += 64) {
      auto encoded = encode(kept.at(from), kept.at(from + kDistances[i]));
      sum += static_cast<double>(encoded.frame_length);
      count++;
      if (i == 0) sizes.density = static_cast<double>(encoded.changed_elements) / kElements;
    }
    sizes.delta[i] = sum / count / (2 * kElements);
  }
  return sizes;
}

class Bucket1000 {
 public:
  explicit Bucket1000(const Sizes& sizes) : sizes_(sizes) {}

  void publish() {
    auto number = ++next_;
    VersionRecord record{
        .number = number, .id = "", .name = *VersionName::parse("v" + std::to_string(number)), .manifest = {}};
    record.plain_bytes = kPlain;
    std::optional<NodeRef> parent;
    if (number > 1) parent = NodeRef{kModel, number - 1};
    record.parent = parent;
    state_->versions.emplace(number, record);
    auto bytes = add_edge(parent, number);
    if (parent) published_ += bytes;  // the first version is a full one under any scheme
    largest_publish_ = std::max(largest_publish_, parent ? bytes : 0);
    single_ = std::max(single_, parent ? size(1) : 0);
    compact();
  }

  void compact() {
    while (auto wanted = next_wanted_edge(kModel, resolve(), {}, declined_, {})) {
      auto distance = wanted->from ? live_distance(wanted->from->number, wanted->to) : 0;
      auto bytes = size(distance);
      if (wanted->from && bytes >= wanted->beats) {
        declined_.insert({wanted->from->number, wanted->to});
        continue;
      }
      uploaded_ += add_edge(wanted->from, wanted->to);
    }
  }

  void remove(std::uint64_t number) { state_->versions.at(number).removed = 1'000'000; }

  // What gc would collect goes.
  void collect() {
    GcFacts facts;
    facts.now = WallTime(std::chrono::hours(1'000'000));
    facts.resolve = resolve();
    for (const auto& edge : state_->edges) {
      facts.listed[pack_object_key(kModel, edge.edge.pack, 0)] = {edge.edge.last_size, WallTime()};
    }
    auto plan = plan_gc(*state_, facts);
    ASSERT_TRUE(plan.is_ok()) << plan.status().to_string();
    std::set<std::uint64_t> gone(plan->entry.edges.begin(), plan->entry.edges.end());
    std::erase_if(state_->edges, [&](const EdgeRecord& edge) { return gone.contains(edge.entry); });
  }

  // Worst cold read over all live versions: bytes over a full encoding, and frames deep.
  std::pair<double, std::size_t> worst() const {
    PathTree tree({kModel}, resolve());
    double bytes = 0;
    std::size_t deep = 0;
    for (const auto& [number, version] : state_->versions) {
      if (version.removed != 0) continue;
      auto path = tree.path({kModel, number});
      EXPECT_TRUE(path.has_value()) << "version " << number << " cannot be read any more";
      if (!path) continue;
      bytes = std::max(bytes, static_cast<double>(path->cost.bytes) / static_cast<double>(size(0)));
      deep = std::max(deep, path->steps.size());
    }
    return {bytes, deep};
  }

  std::uint64_t size(std::uint64_t distance) const {
    return static_cast<std::uint64_t>((distance == 0 ? sizes_.full : sizes_.at(distance)) *
                                      static_cast<double>(kPlain));
  }
  double uploaded_over_published() const {
    return static_cast<double>(uploaded_ + published_) / static_cast<double>(published_);
  }
  std::uint64_t largest_publish() const { return largest_publish_; }

 private:
  std::uint64_t add_edge(const std::optional<NodeRef>& from, std::uint64_t to) {
    EdgeRecord record;
    record.entry = ++entries_ + 10'000;
    record.edge.from = from;
    record.edge.to = to;
    record.edge.pack = random_id();
    record.edge.total_bytes = record.edge.last_size = size(from ? to - from->number : 0);
    record.edge.frames = kPlain >> 20;
    state_->edges.push_back(record);
    return record.edge.total_bytes;
  }
  static std::uint64_t live_distance(std::uint64_t from, std::uint64_t to) { return to - from; }
  StateResolver resolve() const {
    return [state = state_](const ModelName& model) { return model == kModel ? ModelStatePtr(state) : nullptr; };
  }

  const Sizes& sizes_;
  std::shared_ptr<ModelState> state_ = std::make_shared<ModelState>(kModel);
  std::set<std::pair<std::uint64_t, std::uint64_t>> declined_;
  std::uint64_t next_ = 0, entries_ = 0, uploaded_ = 0, published_ = 0, largest_publish_ = 0, single_ = 0;
};

class CompactionTest : public ::testing::TestWithParam<float> {};

TEST_P(CompactionTest, AThousandVersionsStayCheapToReadAndToKeep) {
  auto sizes = measure(GetParam());
  Bucket1000 bucket(sizes);
  for (int i = 0; i < 1000; i++) bucket.publish();
  auto [bytes, deep] = bucket.worst();
  RecordProperty("density", std::to_string(sizes.density));
  std::printf(
      "density %.2f %%: deltas over 1, 8, 64, 512 steps %.4f %.4f %.4f %.4f of plain, full %.3f; worst path %.2f full, "
      "%zu frames; "
      "uploaded %.2f x the single deltas\n",
      100 * sizes.density, sizes.delta[0], sizes.delta[1], sizes.delta[2], sizes.delta[3], sizes.full, bytes, deep,
      bucket.uploaded_over_published());
  EXPECT_NEAR(sizes.density, GetParam() < 1e-6F ? 0.006 : 0.022, 0.0005);
  EXPECT_LE(bytes, 1.75);
  EXPECT_LE(deep, 24u);
  EXPECT_LE(bucket.uploaded_over_published(), 2.2);
  EXPECT_EQ(bucket.largest_publish(), bucket.size(1));  // no publish is a spike
}

TEST_P(CompactionTest, AnyThirdThatIsLeftIsReadWithinTheSameBounds) {
  auto sizes = measure(GetParam());
  for (int pattern = 0; pattern < 4; pattern++) {
    Bucket1000 bucket(sizes);
    for (int i = 0; i < 300; i++) bucket.publish();
    std::mt19937 random(static_cast<unsigned>(pattern));
    for (std::uint64_t number = 1; number <= 300; number++) {
      bool keep = pattern == 0   ? number % 3 == 0
                  : pattern == 1 ? number > 200
                  : pattern == 2 ? number <= 100
                                 : random() % 3 == 0;
      if (!keep) bucket.remove(number);
    }
    bucket.collect();
    bucket.compact();
    bucket.collect();
    auto [bytes, deep] = bucket.worst();
    EXPECT_LE(bytes, 1.75) << "pattern " << pattern;
    EXPECT_LE(deep, 24u) << "pattern " << pattern;
  }
}

// 0.6 % and 2.2 % of the elements a step.
INSTANTIATE_TEST_SUITE_P(Rates, CompactionTest, ::testing::Values(0.69e-6F, 3.16e-6F),
                         [](const auto& rate) { return rate.param < 1e-6F ? "Sparse" : "Dense"; });

}  // namespace
}  // namespace weightfs
