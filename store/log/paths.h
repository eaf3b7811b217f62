// How a version is rebuilt: the cheapest path of edges to it, from what a host has or from nothing. Pure functions over
// the states of the models' logs. Usable edges are those that no collect took; removed versions serve as steps while
// edges build them.
#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "store/log/model_state.h"

namespace weightfs {

// The state of a model's log as it is known; null: not known, so that nothing is built from its versions.
using StateResolver = std::function<ModelStatePtr(const ModelName& model)>;

// Ordered: first the bytes to fetch, then the frames to decode. Sums saturate.
struct PathCost {
  std::uint64_t bytes = 0, frames = 0;
  PathCost plus(const EdgeRef& edge) const;
  friend auto operator<=>(const PathCost&, const PathCost&) = default;
};

struct PathStep {
  ModelName model;  // whose log has the edge, and whose version edge.to is
  EdgeRef edge;
  std::uint64_t entry = 0;  // number of the entry that announced it
  NodeRef to() const { return {model, edge.to}; }
};

struct Path {
  std::optional<NodeRef> source;  // what the first step builds on; none: nothing (a full edge)
  std::vector<PathStep> steps;    // from the source to the target; empty when the target is a source itself
  PathCost cost;
};

// The cheapest path to `target` from one of `sources` or from nothing; nullopt: there is none. O(E log E) over the
// edges that lead to the target more cheaply than the path found.
std::optional<Path> cheapest_path(const NodeRef& target, const std::set<NodeRef>& sources,
                                  const StateResolver& resolve);

// The cheapest paths from nothing to every version that can be built, of `models` and of those they build on: a tree.
// Made once in O(E log E), asked many times. Which of several equally cheap edges is in it depends on the states only.
class PathTree {
 public:
  // Edges for which `usable` is false are left out (null: all count).
  using Usable = std::function<bool(const ModelState& model, const EdgeRecord& edge)>;
  PathTree(const std::vector<ModelName>& models, const StateResolver& resolve, const Usable& usable = {});

  std::optional<PathCost> cost(const NodeRef& node) const;  // nullopt: it cannot be built
  // The last step of the cheapest path to `node`; null: it cannot be built. The states stay alive with the tree.
  const EdgeRecord* last_edge(const NodeRef& node) const;
  std::optional<Path> path(const NodeRef& node) const;

 private:
  struct Reached {
    PathCost cost;
    const EdgeRecord* edge = nullptr;
  };
  std::vector<ModelStatePtr> states_;
  std::map<NodeRef, Reached> reached_;
};

// Whether `number` can be built as far as this model's own log tells: from a full edge, or from a version of another
// model (which that model's log keeps for as long as it holds it).
bool is_buildable(const ModelState& state, std::uint64_t number);

}  // namespace weightfs
