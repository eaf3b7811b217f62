// Which version a new one is cheapest to build on, by a sample: a few slices of its tensors are encoded against each
// candidate.
#pragma once

#include <vector>

#include "store/publish/base_match.h"
#include "store/publish/source_tree.h"

namespace weightfs {

// Encoded bytes of the sample slices with that base; slices without a base count by themselves. Blocking, by
// `read_base`'s means.
Result<std::uint64_t> sample_cost(const SourceTree& tree, SourceReader& reader, const Manifest& base,
                                  const BaseMatcher::ReadBase& read_base);

// The index of the candidate to take: the first (the newest version) unless another costs at most 0.8 of it.
// REQUIRES: !costs.empty()
std::size_t cheapest_candidate(const std::vector<std::uint64_t>& costs);

}  // namespace weightfs
