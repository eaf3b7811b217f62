#include "log_fixture.h"

#include <fmt/format.h>

#include "store/log/state_snapshot.h"

namespace weightfs::testing {

Sha256 digest_of(const std::string& seed) { return Sha256::of(as_bytes(seed)); }
std::string id_of(const std::string& seed) { return digest_of(seed).hex().substr(0, 32); }

EdgeRef edge_of(const std::string& pack, std::optional<NodeRef> from, std::uint64_t to, std::uint64_t bytes) {
  return {.from = std::move(from),
          .to = to,
          .pack = id_of("pack " + pack),
          .objects = 1,
          .last_size = bytes,
          .meta_offset = bytes / 4,
          .index_offset = bytes / 2,
          .index_digest = digest_of(pack),
          .total_bytes = bytes,
          .frames = 1};
}

PublishEntry publish_of(const std::string& version, std::optional<NodeRef> parent, std::uint64_t bytes) {
  PublishEntry entry{.version = version_name(version)};
  entry.manifest = {digest_of("manifest " + version), 10};
  entry.parent = parent;
  if (parent) entry.parent_version = version_name("parent");
  entry.edge = edge_of(version, parent, 0, bytes);
  return entry;
}

void put_pack(Bucket& bucket, const ModelName& model, const EdgeRef& edge) {
  ASSERT_OK(bucket.put(pack_object_key(model, edge.pack, 0), to_bytes("pack"), IfExists::kOverwrite));
}

void put_objects(Bucket& bucket, const ModelName& model, const PublishEntry& entry) {
  put_pack(bucket, model, entry.edge);
  ASSERT_OK(bucket.put(manifest_key(model, entry.manifest.digest), to_bytes("manifest"), IfExists::kOverwrite));
}

std::uint64_t LogWriter::add(decltype(LogEntry::body) body) {
  LogEntry entry{.number = head_ + 1,
                 .id = id_of(fmt::format("{} {}", model_.str(), head_ + 1)),
                 .previous = digest_,
                 .snapshot = snapshot_,
                 .time = {},
                 .model = model_,
                 .body = std::move(body)};
  auto bytes = serialize(entry);
  digest_ = Sha256::of(bytes);
  objects_.set_contents(log_entry_key(model_, ++head_).str(), std::move(bytes));
  if (std::holds_alternative<SnapshotEntry>(entry.body)) snapshot_ = head_;
  since_.emplace_back(std::move(entry), *digest_);
  return head_;
}

std::uint64_t LogWriter::publish(const std::string& version, std::optional<NodeRef> parent, std::uint64_t bytes) {
  auto entry = publish_of(version, std::move(parent), bytes);
  entry.edge.to = head_ + 1;
  return add(entry);
}

void LogWriter::snapshot() {
  StateBuilder builder = state_ ? StateBuilder(*state_) : StateBuilder(model_);
  for (const auto& [entry, digest] : since_) EXPECT_OK(builder.apply(entry, digest));
  since_.clear();
  state_ = std::move(builder).build();
  auto written = *write_snapshot(*state_);
  written.entry.object = snapshot_key(model_, id_of(fmt::format("snapshot {}", head_)));
  objects_.set_contents(written.entry.object.str(), std::move(written.object));
  add(written.entry);
}

void LogWriter::hint(std::uint64_t head) { objects_.set_contents(log_hint_key(model_).str(), serialize_hint(head)); }

std::string describe(const ModelState& state) {
  auto out = fmt::format("head {} {} snapshot {}\n", state.head, state.head_digest ? state.head_digest->hex() : "-",
                         state.snapshot);
  for (const auto& [number, v] : state.versions) {
    out +=
        fmt::format("version {} {} {} {} parent {} {} removed {} {} {} {} {} {}\n", number, v.id, v.name.str(),
                    v.manifest.digest.hex(), v.parent ? v.parent->model.str() : "-", v.parent ? v.parent->number : 0,
                    v.removed, v.plain_bytes, v.stored_bytes, v.changed_elements, v.total_elements, to_rfc3339(v.time));
  }
  for (const auto& e : state.edges) {
    out += fmt::format("edge {} from {} {} to {} pack {} collected {}\n", e.entry,
                       e.edge.from ? e.edge.from->model.str() : "-", e.edge.from ? e.edge.from->number : 0, e.edge.to,
                       e.edge.pack, e.collected);
  }
  for (const auto& h : state.holds) {
    out += fmt::format("hold {} {} {} {}\n", h.entry, h.hold.target, h.hold.child.str(), h.hold.child_commit);
  }
  for (const auto& c : state.collects) {
    out += fmt::format("collect {}:", c.entry);
    for (const auto& key : c.objects) out += " " + key.str();
    out += "\n";
  }
  for (const auto& key : state.retired) out += "retired " + key.str() + "\n";
  for (const auto* v : state.live_versions()) {
    out += fmt::format("live {} {}\n", v->name.str(), state.live(v->name)->number);
  }
  if (state.broken) out += "broken: " + state.broken->to_string() + "\n";
  return out;
}

}  // namespace weightfs::testing
