#include "store/log/gc_plan.h"

#include <algorithm>

namespace weightfs {
namespace {

std::string pack_stem(const ModelName& model, const std::string& pack) {
  auto key = pack_object_key(model, pack, 0).str();
  return key.substr(0, key.rfind('-'));
}

std::string_view stem_of(std::string_view key) { return key.substr(0, key.rfind('-')); }

class Planner {
 public:
  Planner(const ModelState& state, const GcFacts& facts)
      : state_(state), facts_(facts), prefix_(model_prefix(state.model)) {}

  Result<GcPlan> plan() {
    WFS_TRY(choose_edges());
    for (const auto& record : state_.collects) pending_.insert(record.objects.begin(), record.objects.end());
    for (const auto& [key, info] : facts_.listed) consider(key, info);
    return std::move(plan_);
  }

 private:
  Status choose_edges();
  Status keep_path(const PathTree& tree, std::uint64_t number, std::string_view what);
  void keep_parent_edge(const VersionRecord& version);
  void keep(const EdgeRecord& record);
  bool is_held(const HoldRecord& record) const;
  ModelStatePtr resolve(const ModelName& model) const { return facts_.resolve(model); }
  void consider(const ObjectKey& key, const ObjectInfo& info);
  void consider_pack(const ObjectKey& key, const ObjectInfo& info);
  void consider_manifest(const ObjectKey& key, const ObjectInfo& info);
  void collect(const ObjectKey& key, const ObjectInfo& info, std::string why);
  void keep_object(const ObjectInfo& info) {
    plan_.kept_objects++;
    plan_.kept_bytes += info.size;
  }

  const ModelState& state_;
  const GcFacts& facts_;
  const std::string prefix_;
  GcPlan plan_;
  std::set<std::uint64_t> kept_edges_;  // by entry
  std::set<std::uint64_t> done_;        // versions whose path is kept
  std::set<ObjectKey> kept_manifests_;
  std::map<ObjectKey, std::string> spare_manifests_;             // and whose they were
  std::set<std::string, std::less<>> kept_packs_;                // stems
  std::map<std::string, std::string, std::less<>> spare_packs_;  // stems, and why they go
  std::set<ObjectKey> pending_;
};

Status Planner::choose_edges() {
  auto own = std::make_shared<const ModelState>(state_);
  StateResolver all = [&](const ModelName& model) { return model == state_.model ? own : resolve(model); };
  // An edge from another model lasts only as long as that model knows of it.
  auto usable = [&](const ModelState& model, const EdgeRecord& edge) {
    const auto& from = edge.edge.from;
    if (!from || from->model == model.model) return true;
    auto base = all(from->model);
    return base && std::any_of(base->holds.begin(), base->holds.end(), [&](const HoldRecord& record) {
             return record.hold.target == from->number && record.hold.child == model.model;
           });
  };
  PathTree tree({state_.model}, all, usable);
  for (const auto& [number, version] : state_.versions) {
    if (version.removed == 0) {
      WFS_TRY(keep_path(tree, number, version.name.str()));
      keep_parent_edge(version);
    }
  }
  for (const auto& record : state_.holds) {
    if (is_held(record)) WFS_TRY(keep_path(tree, record.hold.target, "a version held for " + record.hold.child.str()));
  }
  for (const auto& record : state_.edges) {
    if (kept_edges_.contains(record.entry)) {
      kept_packs_.insert(pack_stem(state_.model, record.edge.pack));
      continue;
    }
    spare_packs_.emplace(pack_stem(state_.model, record.edge.pack),
                         "edge " + std::to_string(record.entry) + ", no version needs it");
    if (record.collected == 0) plan_.entry.edges.push_back(record.entry);
  }
  for (const auto& [number, version] : state_.versions) {
    auto key = manifest_key(state_.model, version.manifest.digest);
    if (version.removed != 0) spare_manifests_.emplace(key, version.name.str());
  }
  return {};
}

// The whole way from nothing; what is in other models is kept by those.
Status Planner::keep_path(const PathTree& tree, std::uint64_t number, std::string_view what) {
  std::optional<NodeRef> at = NodeRef{state_.model, number};
  while (at) {
    if (at->model == state_.model && !done_.insert(at->number).second) return {};
    const auto* record = tree.last_edge(*at);
    if (record == nullptr) {
      return {Code::kCorrupt, state_.model.str() + "/" + std::string(what) +
                                  ": cannot be rebuilt from nothing, so nothing is collected: run verify, or rm it"};
    }
    if (at->model == state_.model) keep(*record);
    at = record->edge.from;
  }
  return {};
}

void Planner::keep(const EdgeRecord& record) {
  kept_edges_.insert(record.entry);
  for (auto number :
       {record.edge.to,
        record.edge.from && record.edge.from->model == state_.model ? record.edge.from->number : record.edge.to}) {
    if (const auto* version = state_.version(number)) {
      kept_manifests_.insert(manifest_key(state_.model, version->manifest.digest));
    }
  }
}

// Followers that have the parent need it.
void Planner::keep_parent_edge(const VersionRecord& version) {
  if (!version.parent) return;
  auto other = version.parent->model == state_.model ? nullptr : resolve(version.parent->model);
  const auto* base = version.parent->model == state_.model ? &state_ : other.get();
  const auto* parent = base == nullptr ? nullptr : base->version(version.parent->number);
  if (parent == nullptr || parent->removed != 0) return;
  const EdgeRecord* best = nullptr;
  for (const auto* record : state_.edges_into(version.number)) {
    if (record->edge.from != version.parent) continue;
    if (best == nullptr || PathCost{}.plus(record->edge) < PathCost{}.plus(best->edge)) best = record;
  }
  if (best != nullptr) keep(*best);
}

bool Planner::is_held(const HoldRecord& record) const {
  if (!facts_.is_older(log_entry_key(state_.model, record.entry), std::max(facts_.grace, kHoldLasts))) return true;
  auto child = resolve(record.hold.child);
  if (!child) return false;
  if (child->broken) return true;  // what comes after the damage cannot be told
  NodeRef target{state_.model, record.hold.target};
  return std::any_of(child->edges.begin(), child->edges.end(),
                     [&](const EdgeRecord& edge) { return edge.collected == 0 && edge.edge.from == target; });
}

void Planner::consider(const ObjectKey& key, const ObjectInfo& info) {
  auto name = std::string_view(key.str()).substr(prefix_.size());
  if (name.starts_with("packs/")) return consider_pack(key, info);
  if (name.starts_with("manifests/")) return consider_manifest(key, info);
  if (name.starts_with("snapshots/")) {
    bool known = facts_.snapshot == state_.snapshot && !facts_.kept_snapshots.contains(key);
    if (!known || !facts_.is_older(key, facts_.grace)) return keep_object(info);
    return collect(key, info, "snapshot, newer ones are there");
  }
  if (name.starts_with("uploads/")) {
    auto pack = std::string(name.substr(name.find('/') + 1));
    bool committed = kept_packs_.contains(prefix_ + "packs/" + pack);
    if (committed || facts_.is_older(key, facts_.grace)) plan_.heartbeats.push_back(key);
  }
}

void Planner::consider_pack(const ObjectKey& key, const ObjectInfo& info) {
  auto stem = stem_of(key.str());
  if (kept_packs_.contains(stem)) return keep_object(info);
  if (auto spare = spare_packs_.find(stem); spare != spare_packs_.end()) return collect(key, info, spare->second);
  auto heartbeat =
      heartbeat_key(state_.model, std::string(stem.substr(prefix_.size() + std::string_view("packs/").size())));
  bool beats = facts_.listed.contains(heartbeat) && !facts_.is_older(heartbeat, facts_.grace);
  if (beats || !facts_.is_older(key, facts_.grace)) return keep_object(info);
  collect(key, info, "upload that was never committed");
}

void Planner::consider_manifest(const ObjectKey& key, const ObjectInfo& info) {
  if (kept_manifests_.contains(key)) return keep_object(info);
  if (auto spare = spare_manifests_.find(key); spare != spare_manifests_.end()) {
    return collect(key, info, "manifest of " + spare->second + ", removed, no version needs it");
  }
  if (!facts_.is_older(key, facts_.grace)) return keep_object(info);
  collect(key, info, "manifest that was never committed");
}

void Planner::collect(const ObjectKey& key, const ObjectInfo& info, std::string why) {
  if (pending_.contains(key) || plan_.entry.objects.size() == kMaxCollected) return;
  plan_.entry.objects.push_back(key);
  plan_.items.push_back({GcItem::What::kCollected, key, info.size, std::move(why)});
}

}  // namespace

bool GcFacts::is_older(const ObjectKey& key, Duration age) const {
  auto found = listed.find(key);
  return found != listed.end() && now - found->second.modified >= age;
}

Result<GcPlan> plan_gc(const ModelState& state, const GcFacts& facts) { return Planner(state, facts).plan(); }

UsedObjects::UsedObjects(const ModelState& state) {
  for (const auto& record : state.edges) {
    if (record.collected == 0) packs_.insert(pack_stem(state.model, record.edge.pack));
  }
  for (const auto& [number, version] : state.versions) {
    manifests_.insert(manifest_key(state.model, version.manifest.digest));
  }
}

bool UsedObjects::contains(const ObjectKey& key) const {
  return manifests_.contains(key) || packs_.contains(stem_of(key.str()));
}

}  // namespace weightfs
