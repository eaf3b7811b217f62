// Which skip edges and full edges a model should have, as in a skip list: so that paths stay short in bytes and in
// frames. A pure function of the logs; what it wants is never needed for correctness.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/log/paths.h"

namespace weightfs {

struct CompactionRules {
  std::vector<std::uint64_t> strides = {
      8, 64, 512, 4096};               // version N gets an edge from N - stride for the longest stride that divides N
  double full_over = 1.74;             // a full edge where the cheapest path costs over so many full encodings,
  double full_before = 0.3;            // there or, where longer skip edges leave, so many full encodings before it
  std::uint64_t max_frames_deep = 24;  // … or has more edges than this
};

struct WantedEdge {
  std::optional<NodeRef> from;  // none: a full edge
  std::uint64_t to = 0;
  std::uint64_t beats =
      0;  // bytes of the path that it is to replace: announced only when it is smaller (a full edge always)
  std::string why;
  friend bool operator==(const WantedEdge&, const WantedEdge&) = default;
};

struct CompactResult {
  std::uint64_t skip_edges = 0, full_edges = 0;
  std::uint64_t declined = 0;  // tried, and no smaller than the path they were to replace
  std::uint64_t sent_bytes = 0;
};

// The next edge that `model` should get, the oldest version first (later ones build on it); nullopt: nothing is wanted.
// `declined` are edges (from, to) that were tried and were no gain; `can` says whether both ends can be had cheaply
// here (null: all can). N counts along live parents; a version whose parent was removed counts from its nearest live
// ancestor.
std::optional<WantedEdge> next_wanted_edge(const ModelName& model, const StateResolver& resolve,
                                           const CompactionRules& rules,
                                           const std::set<std::pair<std::uint64_t, std::uint64_t>>& declined,
                                           const std::function<bool(const NodeRef&)>& can);

// What a full encoding of a version costs, from the model's full edges: bytes. Without one two thirds of the plain
// size.
std::uint64_t estimate_full(const ModelState& state, const VersionRecord& version);

}  // namespace weightfs
