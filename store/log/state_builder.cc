#include "store/log/state_builder.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace weightfs {
namespace {

void no_effect(const LogEntry& entry, std::string_view why) {
  spdlog::warn("log {}: entry {} has no effect: {}", entry.model.str(), entry.number, why);
}

// "MODEL/packs/ID-3" → "MODEL/packs/ID"; other keys stay as they are.
std::string_view pack_of(std::string_view key) { return key.substr(0, key.rfind('-')); }

}  // namespace

void StateBuilder::restore() {
  state_.live_by_name_.clear();
  for (const auto& [number, record] : state_.versions) {
    if (record.removed == 0) state_.live_by_name_.insert_or_assign(record.name, number);
  }
  state_.edges_by_target_.clear();
  for (std::uint32_t i = 0; i < state_.edges.size(); i++) state_.edges_by_target_.emplace(state_.edges[i].edge.to, i);
}

Status StateBuilder::apply(const LogEntry& entry, const Sha256& digest) {
  if (entry.number != state_.head + 1 || entry.model != state_.model) {
    return {Code::kCorrupt, "not the entry that comes next"};
  }
  if (entry.previous != state_.head_digest) {
    return {Code::kCorrupt, "it does not continue entry " + std::to_string(state_.head) + " as it was read (digest)"};
  }
  if (entry.snapshot != state_.snapshot) return {Code::kCorrupt, "it names another newest snapshot than the log has"};
  std::visit([&](const auto& body) { apply_body(entry, body); }, entry.body);
  state_.head = entry.number;
  state_.head_digest = digest;
  return {};
}

ModelStatePtr StateBuilder::build(std::optional<Status> broken) && {
  state_.broken = std::move(broken);
  return std::make_shared<const ModelState>(std::move(state_));
}

void StateBuilder::apply_body(const LogEntry& entry, const PublishEntry& body) {
  if (state_.live_by_name_.contains(body.version)) return no_effect(entry, "the version's name is taken");
  if (body.edge.to != entry.number) return no_effect(entry, "its edge builds another version");
  VersionRecord record{.number = entry.number,
                       .id = entry.id,
                       .name = body.version,
                       .manifest = body.manifest,
                       .parent = body.parent,
                       .parent_version = body.parent_version,
                       .plain_bytes = body.plain_bytes,
                       .stored_bytes = body.stored_bytes,
                       .changed_elements = body.changed_elements,
                       .total_elements = body.total_elements,
                       .time = entry.time};
  state_.versions.emplace(entry.number, std::move(record));
  state_.live_by_name_.emplace(body.version, entry.number);
  add_edge(entry.number, body.edge);
}

void StateBuilder::apply_body(const LogEntry& entry, const RemoveEntry& body) {
  auto found = state_.versions.find(body.target);
  if (found == state_.versions.end() || found->second.removed != 0 || found->second.name != body.version) {
    return no_effect(entry, "no such live version");
  }
  found->second.removed = entry.number;
  state_.live_by_name_.erase(body.version);
  forget_unbuildable();
}

void StateBuilder::apply_body(const LogEntry& entry, const EdgeEntry& body) {
  const auto& from = body.edge.from;
  if (!state_.versions.contains(body.edge.to)) return no_effect(entry, "it builds an unknown version");
  if (from && from->model == state_.model && !state_.versions.contains(from->number)) {
    return no_effect(entry, "it starts at an unknown version");
  }
  add_edge(entry.number, body.edge);
}

void StateBuilder::apply_body(const LogEntry& entry, const HoldEntry& body) {
  if (!state_.versions.contains(body.target)) return no_effect(entry, "it holds an unknown version");
  std::erase_if(state_.holds, [&](const HoldRecord& record) {
    return record.hold.target == body.target && record.hold.child == body.child;
  });
  state_.holds.push_back({entry.number, body});
}

void StateBuilder::apply_body(const LogEntry& entry, const CollectEntry& body) {
  std::set<std::uint64_t> edges(body.edges.begin(), body.edges.end());
  for (auto& record : state_.edges) {
    if (record.collected == 0 && edges.contains(record.entry)) record.collected = entry.number;
  }
  if (!body.objects.empty()) {
    CollectRecord record{entry.number, body.objects};
    std::sort(record.objects.begin(), record.objects.end());
    state_.collects.push_back(std::move(record));
  }
  for (auto number : body.finished) finish_collect(number);
  forget_unbuildable();
}

void StateBuilder::apply_body(const LogEntry& entry, const SnapshotEntry&) { state_.snapshot = entry.number; }

void StateBuilder::apply_body(const LogEntry&, const IgnoredEntry&) {}

void StateBuilder::add_edge(std::uint64_t entry, const EdgeRef& edge) {
  state_.edges_by_target_.emplace(edge.to, static_cast<std::uint32_t>(state_.edges.size()));
  state_.edges.push_back({entry, edge});
}

// Its objects are gone. Keys that cannot come again need not be remembered: a pack that an entry named is used up.
void StateBuilder::finish_collect(std::uint64_t entry) {
  auto record =
      std::find_if(state_.collects.begin(), state_.collects.end(), [&](const auto& r) { return r.entry == entry; });
  if (record == state_.collects.end()) return;
  std::set<std::string, std::less<>> used_up;
  for (const auto& edge : state_.edges) {
    if (edge.collected != 0) {
      auto key = pack_object_key(state_.model, edge.edge.pack, 0).str();
      used_up.emplace(pack_of(key));
    }
  }
  for (auto& object : record->objects) {
    if (!used_up.contains(pack_of(object.str()))) state_.retired.insert(std::move(object));
  }
  state_.collects.erase(record);
  if (std::erase_if(state_.edges, [&](const EdgeRecord& edge) { return edge.collected == entry; }) > 0) restore();
}

bool StateBuilder::buildable(std::uint64_t number) const {
  auto [begin, end] = state_.edges_by_target_.equal_range(number);
  return std::any_of(begin, end, [&](const auto& at) { return state_.edges[at.second].collected == 0; });
}

// A removed version that no edge builds any more is over, and so are holds on it.
void StateBuilder::forget_unbuildable() {
  std::erase_if(state_.versions, [&](const auto& at) { return at.second.removed != 0 && !buildable(at.first); });
  std::erase_if(state_.holds, [&](const HoldRecord& at) { return !state_.versions.contains(at.hold.target); });
}

}  // namespace weightfs
