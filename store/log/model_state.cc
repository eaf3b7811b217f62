#include "store/log/model_state.h"

#include <algorithm>

namespace weightfs {

const VersionRecord* ModelState::live(const VersionName& name) const {
  auto found = live_by_name_.find(name);
  return found == live_by_name_.end() ? nullptr : version(found->second);
}

const VersionRecord* ModelState::version(std::uint64_t number) const {
  auto found = versions.find(number);
  return found == versions.end() ? nullptr : &found->second;
}

const VersionRecord* ModelState::latest() const {
  for (auto at = versions.rbegin(); at != versions.rend(); ++at) {
    if (at->second.removed == 0) return &at->second;
  }
  return nullptr;
}

std::vector<const VersionRecord*> ModelState::live_versions() const {
  std::vector<const VersionRecord*> out;
  for (const auto& [number, record] : versions) {
    if (record.removed == 0) out.push_back(&record);
  }
  return out;
}

bool ModelState::is_collected(const ObjectKey& object) const {
  if (retired.contains(object)) return true;
  return std::any_of(collects.begin(), collects.end(), [&](const CollectRecord& record) {
    return std::binary_search(record.objects.begin(), record.objects.end(), object);
  });
}

std::vector<const EdgeRecord*> ModelState::edges_into(std::uint64_t number) const {
  std::vector<const EdgeRecord*> out;
  auto [begin, end] = edges_by_target_.equal_range(number);
  for (auto at = begin; at != end; ++at) {
    if (edges[at->second].collected == 0) out.push_back(&edges[at->second]);
  }
  return out;
}

const EdgeRecord* ModelState::edge_of_entry(std::uint64_t entry) const {
  auto found = std::lower_bound(edges.begin(), edges.end(), entry,
                                [](const EdgeRecord& record, std::uint64_t number) { return record.entry < number; });
  return found == edges.end() || found->entry != entry ? nullptr : &*found;
}

}  // namespace weightfs
