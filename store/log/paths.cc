#include "store/log/paths.h"

#include <algorithm>
#include <queue>

namespace weightfs {
namespace {

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

// Dijkstra's frontier: the cheapest first; among equals the smaller node, so that the result is always the same.
template <typename Item>
using Frontier = std::priority_queue<Item, std::vector<Item>, std::greater<>>;

}  // namespace

PathCost PathCost::plus(const EdgeRef& edge) const {
  return {saturating_add(bytes, edge.total_bytes), saturating_add(frames, edge.frames)};
}

// Backwards from the target, over the edges that build a version, to the first node that needs no building.
std::optional<Path> cheapest_path(const NodeRef& target, const std::set<NodeRef>& sources,
                                  const StateResolver& resolve) {
  using Node = std::optional<NodeRef>;  // nothing is a node, too
  struct Seen {
    PathCost cost;
    std::optional<PathStep> step;  // towards the target
    bool done = false;
  };
  std::map<Node, Seen> seen;
  std::map<ModelName, ModelStatePtr> states;
  Frontier<std::pair<PathCost, Node>> frontier;
  seen[target] = {};
  frontier.push({PathCost{}, target});
  while (!frontier.empty()) {
    auto [cost, node] = frontier.top();
    frontier.pop();
    auto& here = seen[node];
    if (here.done) continue;
    here.done = true;
    if (!node || sources.contains(*node)) {
      Path path{.source = node, .steps = {}, .cost = cost};
      for (const auto* at = &here; at->step; at = &seen[at->step->to()]) path.steps.push_back(*at->step);
      return path;
    }
    auto known = states.find(node->model);
    if (known == states.end()) known = states.emplace(node->model, resolve(node->model)).first;
    if (!known->second || known->second->version(node->number) == nullptr) continue;
    for (const auto* record : known->second->edges_into(node->number)) {
      auto next_cost = cost.plus(record->edge);
      auto [next, fresh] = seen.try_emplace(record->edge.from);
      if (next->second.done || (!fresh && next->second.cost <= next_cost)) continue;
      next->second = {next_cost, PathStep{node->model, record->edge, record->entry}};
      frontier.push({next_cost, record->edge.from});
    }
  }
  return std::nullopt;
}

PathTree::PathTree(const std::vector<ModelName>& models, const StateResolver& resolve, const Usable& usable) {
  std::set<ModelName> wanted(models.begin(), models.end());
  std::vector<ModelName> open(wanted.begin(), wanted.end());
  std::multimap<std::optional<NodeRef>, std::pair<NodeRef, const EdgeRecord*>> leads_to;
  while (!open.empty()) {
    auto state = resolve(open.back());
    open.pop_back();
    if (!state) continue;
    for (const auto& record : state->edges) {
      if (record.collected != 0 || state->version(record.edge.to) == nullptr) continue;
      if (usable && !usable(*state, record)) continue;
      const auto& from = record.edge.from;
      leads_to.emplace(from, std::pair{NodeRef{state->model, record.edge.to}, &record});
      if (from && wanted.insert(from->model).second) open.push_back(from->model);
    }
    states_.push_back(std::move(state));
  }
  struct Item {
    PathCost cost;
    NodeRef node;
    std::uint64_t entry;
    const EdgeRecord* edge;
    bool operator>(const Item& b) const { return std::tie(cost, node, entry) > std::tie(b.cost, b.node, b.entry); }
  };
  Frontier<Item> frontier;
  auto extend = [&](const std::optional<NodeRef>& from, const PathCost& cost) {
    auto [begin, end] = leads_to.equal_range(from);
    for (auto at = begin; at != end; ++at) {
      const auto& [to, edge] = at->second;
      if (!reached_.contains(to)) frontier.push({cost.plus(edge->edge), to, edge->entry, edge});
    }
  };
  extend(std::nullopt, {});
  while (!frontier.empty()) {
    auto item = frontier.top();
    frontier.pop();
    if (reached_.try_emplace(item.node, Reached{item.cost, item.edge}).second) extend(item.node, item.cost);
  }
}

std::optional<PathCost> PathTree::cost(const NodeRef& node) const {
  auto found = reached_.find(node);
  return found == reached_.end() ? std::nullopt : std::optional(found->second.cost);
}

const EdgeRecord* PathTree::last_edge(const NodeRef& node) const {
  auto found = reached_.find(node);
  return found == reached_.end() ? nullptr : found->second.edge;
}

std::optional<Path> PathTree::path(const NodeRef& node) const {
  auto total = cost(node);
  if (!total) return std::nullopt;
  Path path{.source = std::nullopt, .steps = {}, .cost = *total};
  for (std::optional<NodeRef> at = node; at;) {
    const auto* record = last_edge(*at);
    path.steps.push_back({at->model, record->edge, record->entry});
    at = record->edge.from;
  }
  std::reverse(path.steps.begin(), path.steps.end());
  return path;
}

bool is_buildable(const ModelState& state, std::uint64_t number) {
  std::set<std::uint64_t> seen{number};
  std::vector<std::uint64_t> open{number};
  while (!open.empty()) {
    auto at = open.back();
    open.pop_back();
    if (state.version(at) == nullptr) continue;
    for (const auto* record : state.edges_into(at)) {
      const auto& from = record->edge.from;
      if (!from || from->model != state.model) return true;
      if (seen.insert(from->number).second) open.push_back(from->number);
    }
  }
  return false;
}

}  // namespace weightfs
