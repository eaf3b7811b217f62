#include "store/log/paths.h"

#include <random>

#include "log_fixture.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;

// A bucket's models as states, built by their entries.
class PathsTest : public ::testing::Test {
 protected:
  struct Model {
    StateBuilder builder;
    std::uint64_t head = 0;
    std::optional<Sha256> digest;
    ModelStatePtr state;
  };
  std::uint64_t add(const std::string& model, decltype(LogEntry::body) body) {
    auto name = model_name(model);
    auto& at = models_.try_emplace(name, Model{StateBuilder(name), 0, {}, {}}).first->second;
    LogEntry entry{.number = at.head + 1, .id = id_of("x"), .previous = at.digest, .model = name, .body = body};
    at.digest = digest_of(model + std::to_string(++at.head));
    EXPECT_OK(at.builder.apply(entry, *at.digest));
    return at.head;
  }
  std::uint64_t publish(const std::string& model, const std::string& version, std::optional<NodeRef> parent,
                        std::uint64_t bytes) {
    auto entry = publish_of(version, std::move(parent), bytes);
    auto found = models_.find(model_name(model));
    entry.edge.to = found == models_.end() ? 1 : found->second.head + 1;
    return add(model, entry);
  }
  std::uint64_t edge(const std::string& model, std::optional<NodeRef> from, std::uint64_t to, std::uint64_t bytes) {
    return add(model, EdgeEntry{edge_of("e" + std::to_string(counter_++), std::move(from), to, bytes)});
  }
  static NodeRef at(const std::string& model, std::uint64_t number) { return {model_name(model), number}; }
  StateResolver resolver() {
    for (auto& [name, model] : models_) {
      auto copy = model.builder;
      model.state = std::move(copy).build();
    }
    return [this](const ModelName& name) {
      auto found = models_.find(name);
      return found == models_.end() ? nullptr : found->second.state;
    };
  }
  std::optional<PathCost> cost(const NodeRef& target, const std::set<NodeRef>& sources = {}) {
    auto path = cheapest_path(target, sources, resolver());
    if (!path) return std::nullopt;
    PathCost sum;
    auto here = path->source;
    for (const auto& step : path->steps) {
      EXPECT_EQ(step.edge.from, here);
      here = step.to();
      sum = sum.plus(step.edge);
    }
    EXPECT_EQ(here, target);
    EXPECT_EQ(sum, path->cost);
    return path->cost;
  }

  std::map<ModelName, Model> models_;
  int counter_ = 0;
};

TEST_F(PathsTest, WhatIsCachedNeedsNoSteps) {
  publish("m", "v1", {}, 1000);
  auto path = cheapest_path(at("m", 1), {at("m", 1)}, resolver());
  ASSERT_TRUE(path);
  EXPECT_TRUE(path->steps.empty());
  EXPECT_EQ(path->source, at("m", 1));
}

TEST_F(PathsTest, AFollowerTakesOneDeltaAndAColdHostTheChainOrASkip) {
  publish("m", "v1", {}, 1000);
  for (std::uint64_t i = 1; i < 9; i++) publish("m", "v" + std::to_string(i + 1), at("m", i), 100);
  EXPECT_EQ(cost(at("m", 9), {at("m", 8)}), (PathCost{100, 1}));
  EXPECT_EQ(cost(at("m", 9)), (PathCost{1800, 9}));
  edge("m", at("m", 1), 9, 400);
  EXPECT_EQ(cost(at("m", 9)), (PathCost{1400, 2}));
  EXPECT_EQ(cost(at("m", 9), {at("m", 6)}), (PathCost{300, 3}));
  EXPECT_EQ(cost(at("m", 9), {at("m", 2)}), (PathCost{700, 7}));
  edge("m", {}, 9, 1100);
  EXPECT_EQ(cost(at("m", 9)), (PathCost{1100, 1}));
  EXPECT_FALSE(cost(at("m", 99)));
}

TEST_F(PathsTest, EqualBytesAreDecidedByFrames) {
  publish("m", "v1", {}, 100);
  publish("m", "v2", at("m", 1), 100);
  edge("m", {}, 2, 200);
  EXPECT_EQ(cost(at("m", 2)), (PathCost{200, 1}));
}

TEST_F(PathsTest, PathsGoThroughOtherModelsAndRemovedVersions) {
  publish("base", "v1", {}, 1000);
  publish("base", "v2", at("base", 1), 50);
  publish("tune", "w1", at("base", 2), 70);
  publish("tune", "w2", at("tune", 1), 10);
  add("base", RemoveEntry{2, version_name("v2")});
  EXPECT_EQ(cost(at("tune", 2)), (PathCost{1130, 4}));
  EXPECT_EQ(cost(at("tune", 2), {at("base", 1)}), (PathCost{130, 3}));
  add("base", CollectEntry{.edges = {2}});
  EXPECT_FALSE(cost(at("tune", 2)));
  EXPECT_EQ(cost(at("tune", 2), {at("base", 2)}), (PathCost{80, 2}));
}

TEST_F(PathsTest, HostileSumsAndCirclesDoNoHarm) {
  publish("m", "v1", {}, 8);
  publish("m", "v2", at("m", 1), 8);
  auto big = edge_of("big", at("m", 2), 1, 100);
  big.total_bytes = ~std::uint64_t{0};
  add("m", EdgeEntry{big});
  add("m", EdgeEntry{big});
  EXPECT_EQ(cost(at("m", 2)), (PathCost{16, 2}));
  add("m", CollectEntry{.edges = {1}});
  EXPECT_FALSE(cost(at("m", 2)));
  EXPECT_FALSE(is_buildable(*resolver()(model_name("m")), 2));
}

TEST_F(PathsTest, SearchAndTreeAgreeWithBellmanFordOnRandomGraphs) {
  for (std::uint32_t seed = 0; seed < 60; seed++) {
    models_.clear();
    std::mt19937 random(seed);
    auto below = [&](std::uint64_t n) { return random() % n; };
    std::vector<NodeRef> nodes;
    for (int i = 0; i < 40; i++) {
      auto model = below(3) == 0 ? "a" : "b";
      auto from = nodes.empty() || below(6) == 0 ? std::nullopt : std::optional(nodes[below(nodes.size())]);
      auto choice = nodes.empty() ? 0 : below(4);
      if (choice < 2) {
        nodes.push_back(at(model, publish(model, "v" + std::to_string(i), from, 4 + below(300))));
      } else {
        const auto& to = nodes[below(nodes.size())];
        edge(to.model.str(), from, to.number, 4 + below(300));
      }
    }
    auto resolve = resolver();
    // Bellman and Ford, from nothing and from a random source.
    for (bool with_source : {false, true}) {
      std::set<NodeRef> sources;
      if (with_source) sources.insert(nodes[below(nodes.size())]);
      std::map<NodeRef, PathCost> best;
      for (const auto& node : sources) best[node] = {};
      for (std::size_t round = 0; round < nodes.size(); round++) {
        for (const auto& [name, model] : models_) {
          for (const auto& record : model.state->edges) {
            const auto& from = record.edge.from;
            if (from && !best.contains(*from)) continue;
            auto cost_here = (from ? best.at(*from) : PathCost{}).plus(record.edge);
            auto [place, fresh] = best.try_emplace({name, record.edge.to}, cost_here);
            if (!fresh) place->second = std::min(place->second, cost_here);
          }
        }
      }
      PathTree tree({model_name("a"), model_name("b")}, resolve);
      for (const auto& node : nodes) {
        auto expected = best.contains(node) ? std::optional(best.at(node)) : std::nullopt;
        ASSERT_EQ(cost(node, sources), expected) << "seed " << seed;
        if (with_source) continue;
        ASSERT_EQ(tree.cost(node), expected) << "seed " << seed;
        auto path = tree.path(node);
        ASSERT_EQ(path.has_value(), expected.has_value());
        if (path) {
          ASSERT_EQ(path->steps.back().to(), node);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weightfs
