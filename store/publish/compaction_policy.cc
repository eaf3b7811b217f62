#include "store/publish/compaction_policy.h"

#include <algorithm>
#include <map>

namespace weightfs {
namespace {

// Live versions of one model in order, with their nearest live ancestor (within the model) and their place along it.
struct Lineage {
  struct Place {
    std::uint64_t parent = 0;  // number of the nearest live ancestor in this model; 0: none
    std::uint64_t depth = 0;   // N
  };
  std::map<std::uint64_t, Place> places;

  explicit Lineage(const ModelState& state) {
    for (const auto& [number, version] : state.versions) {  // parents have lower numbers
      if (version.removed != 0) continue;
      Place place;
      const auto* at = &version;
      while (at != nullptr && at->parent && at->parent->model == state.model && at->parent->number < at->number) {
        at = state.version(at->parent->number);
        if (at != nullptr && at->removed == 0) {
          place.parent = at->number;
          place.depth = places[at->number].depth + 1;
          break;
        }
      }
      places[number] = place;
    }
  }

  // The live ancestor `steps` back; 0: there is none.
  std::uint64_t ancestor(std::uint64_t number, std::uint64_t steps) const {
    for (; steps > 0 && number != 0; steps--) number = places.at(number).parent;
    return number;
  }
};

bool has_edge(const ModelState& state, const std::optional<NodeRef>& from, std::uint64_t to) {
  return std::any_of(state.edges.begin(), state.edges.end(), [&](const EdgeRecord& record) {
    return record.collected == 0 && record.edge.to == to && record.edge.from == from;
  });
}

// Where on a path that costs too much a full edge does most good: at the version from which the longest skip edges
// leave, among those near enough to the path's end, so that what is built on it later has a short path too. The end
// itself when there is none better.
std::uint64_t full_edge_for(const Path& path, const ModelState& state, const Lineage& lineage,
                            const CompactionRules& rules, std::uint64_t full,
                            const std::set<std::pair<std::uint64_t, std::uint64_t>>& declined,
                            const std::function<bool(const NodeRef&)>& can) {
  auto best = path.steps.back().edge.to;
  std::uint64_t longest = 0, rest = 0, frames = 0;  // rest, frames: of the path behind the version looked at
  for (auto step = path.steps.rbegin(); step != path.steps.rend() && step->model == state.model; ++step) {
    if (static_cast<double>(rest) > rules.full_before * static_cast<double>(full)) break;
    if (frames > rules.max_frames_deep / 2) break;
    auto number = step->edge.to;
    rest += step->edge.total_bytes;
    frames++;
    auto place = lineage.places.find(number);
    if (place == lineage.places.end()) continue;  // removed
    std::uint64_t stride = 1;
    for (auto s : rules.strides) stride = place->second.depth % s == 0 ? s : stride;
    if (stride <= longest || has_edge(state, std::nullopt, number) || declined.contains({0, number})) continue;
    if (can && !can(step->to())) continue;
    best = number;
    longest = stride;
  }
  return best;
}

}  // namespace

std::uint64_t estimate_full(const ModelState& state, const VersionRecord& version) {
  std::uint64_t stored = 0, plain = 0;
  for (const auto& record : state.edges) {
    const auto* target = record.edge.from ? nullptr : state.version(record.edge.to);
    if (target == nullptr || target->plain_bytes == 0) continue;
    stored = record.edge.total_bytes;  // the newest tells best
    plain = target->plain_bytes;
  }
  if (plain == 0) return version.plain_bytes / 3 * 2 + 1;
  return static_cast<std::uint64_t>(static_cast<double>(version.plain_bytes) *
                                    (static_cast<double>(stored) / static_cast<double>(plain))) +
         1;
}

std::optional<WantedEdge> next_wanted_edge(const ModelName& model, const StateResolver& resolve,
                                           const CompactionRules& rules,
                                           const std::set<std::pair<std::uint64_t, std::uint64_t>>& declined,
                                           const std::function<bool(const NodeRef&)>& can) {
  auto state = resolve(model);
  if (!state) return std::nullopt;
  Lineage lineage(*state);
  PathTree tree({model}, resolve);
  // Strides from small to large: a longer one is measured against the paths that the shorter ones left.
  std::vector<std::uint64_t> strides{1};
  strides.insert(strides.end(), rules.strides.begin(), rules.strides.end());
  for (const auto& [number, place] : lineage.places) {
    NodeRef target{model, number};
    if (can && !can(target)) continue;
    for (std::size_t i = 0; i < strides.size(); i++) {
      const auto stride = strides[i];
      if (place.depth == 0 || place.depth % stride != 0) continue;
      // The longest stride that divides N leads there; a shorter one beside it would be on nobody's path from nothing.
      bool longer = stride > 1 && i + 1 < strides.size() && place.depth % strides[i + 1] == 0;
      if (longer) continue;
      auto ancestor = lineage.ancestor(number, stride);
      NodeRef from{model, ancestor};
      if (ancestor == 0 || has_edge(*state, from, number) || declined.contains({ancestor, number}) ||
          (can && !can(from)))
        continue;
      auto path = cheapest_path(target, {from}, resolve);
      // One edge from the ancestor needs no other; a path that starts elsewhere is cheaper than any from it.
      if (path && path->source != from && stride > 1) continue;
      if (path && path->source == from && path->steps.size() < 2) continue;
      return WantedEdge{from, number, path ? path->cost.bytes : ~std::uint64_t{0},
                        "skips " + std::to_string(stride) + " versions"};
    }
    if (has_edge(*state, std::nullopt, number) || declined.contains({0, number})) continue;
    auto cost = tree.cost(target);
    auto path = tree.path(target);
    auto full = estimate_full(*state, *state->version(number));
    bool dear = cost && static_cast<double>(cost->bytes) > rules.full_over * static_cast<double>(full);
    bool deep = path && path->steps.size() > rules.max_frames_deep;
    if (dear) {
      auto at = full_edge_for(*path, *state, lineage, rules, full, declined, can);
      auto why = at == number ? "its path costs over a full encoding" : "paths from it cost over a full encoding";
      return WantedEdge{std::nullopt, at, tree.cost({model, at})->bytes, why};
    }
    if (deep) return WantedEdge{std::nullopt, number, cost->bytes, "its path is deep"};
  }
  return std::nullopt;
}

}  // namespace weightfs
