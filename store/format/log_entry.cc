#include "store/format/log_entry.h"

#include <algorithm>

#include "store/format/fields.h"
#include "store/format/json.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kFormat = 1;
constexpr std::size_t kMaxHint = 4096;
constexpr std::string_view kCheck = R"(,"check":")";

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// ---- What is required of each kind, beyond the types of its fields.

Status check_earlier(std::uint64_t number, std::uint64_t than, const char* what) {
  return number >= 1 && number < than ? Status() : corrupt(std::string(what) + ": not the number of an earlier entry");
}

Status check_own_key(const LogEntry& entry, const ObjectKey& key) {
  auto prefix = model_prefix(entry.model);
  if (!key.str().starts_with(prefix)) return corrupt("key '" + key.str() + "' of another model");
  if (key.str().substr(prefix.size()).starts_with("log/")) return corrupt("key '" + key.str() + "' of the log");
  return {};
}

// A base in the same model was published before.
Status check_base(const LogEntry& entry, const std::optional<NodeRef>& base) {
  if (!base) return {};
  if (base->model == entry.model) return check_earlier(base->number, entry.number, "base");
  return base->number == 0 ? corrupt("base: number zero") : Status();
}

Status check_body(const LogEntry& entry, const PublishEntry& body) {
  WFS_TRY(check_edge(body.edge));
  WFS_TRY(check_base(entry, body.parent));
  if (body.parent.has_value() != body.parent_version.has_value()) return corrupt("parent and its name go together");
  if (body.edge.to != entry.number) return corrupt("edge to another version");
  if (body.edge.from && body.edge.from != body.parent) return corrupt("edge from what is not the parent");
  if (body.manifest.size == 0 || body.manifest.size > kMaxManifest) return corrupt("size of the manifest");
  if (std::max({body.plain_bytes, body.stored_bytes, body.total_elements}) > json::kMaxNumber) {
    return corrupt("a sum over 2^63");
  }
  if (body.changed_elements > body.total_elements) return corrupt("more changed elements than elements");
  return {};
}

Status check_body(const LogEntry& entry, const RemoveEntry& body) {
  return check_earlier(body.target, entry.number, "target");
}

Status check_body(const LogEntry& entry, const EdgeEntry& body) {
  WFS_TRY(check_edge(body.edge));
  WFS_TRY(check_base(entry, body.edge.from));
  if (body.edge.from == NodeRef{entry.model, body.edge.to}) return corrupt("edge from a version to itself");
  return check_earlier(body.edge.to, entry.number, "edge");
}

Status check_body(const LogEntry& entry, const HoldEntry& body) {
  if (body.child == entry.model) return corrupt("hold for the model itself");
  if (!json::is_id(body.child_commit)) return corrupt("bad commit id of the child");
  return check_earlier(body.target, entry.number, "target");
}

Status check_body(const LogEntry& entry, const CollectEntry& body) {
  for (const auto& key : body.objects) WFS_TRY(check_own_key(entry, key));
  for (auto number : body.edges) WFS_TRY(check_earlier(number, entry.number, "edges"));
  for (auto number : body.finished) WFS_TRY(check_earlier(number, entry.number, "finished"));
  return {};
}

Status check_body(const LogEntry& entry, const SnapshotEntry& body) {
  WFS_TRY(check_own_key(entry, body.object));
  if (body.size > json::kMaxNumber || body.directory_offset >= body.size) return corrupt("place of the directory");
  return check_earlier(body.through, entry.number, "through");
}

Status check_body(const LogEntry&, const IgnoredEntry& body) {
  auto legal = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  if (body.kind.empty() || body.kind.size() > 64 || !std::all_of(body.kind.begin(), body.kind.end(), legal)) {
    return corrupt("bad kind");
  }
  return {};
}

// ---- Writing

std::string kind_of(const PublishEntry&) { return "publish"; }
std::string kind_of(const RemoveEntry&) { return "remove"; }
std::string kind_of(const EdgeEntry&) { return "edge"; }
std::string kind_of(const HoldEntry&) { return "hold"; }
std::string kind_of(const CollectEntry&) { return "collect"; }
std::string kind_of(const SnapshotEntry&) { return "snapshot"; }
std::string kind_of(const IgnoredEntry& body) { return body.kind; }

void write_body(json::Writer& out, const PublishEntry& body) {
  out.key("version").bytes(body.version.str());
  json::write_manifest_ref(out.key("manifest"), body.manifest);
  if (body.parent) json::write_parent(out.key("parent"), *body.parent, *body.parent_version);
  json::write_edge(out.key("edge"), body.edge);
  out.key("plain_bytes").number(body.plain_bytes).key("stored_bytes").number(body.stored_bytes);
  out.key("changed_elements").number(body.changed_elements).key("total_elements").number(body.total_elements);
}

void write_body(json::Writer& out, const RemoveEntry& body) {
  out.key("target").number(body.target).key("version").bytes(body.version.str());
}

void write_body(json::Writer& out, const EdgeEntry& body) { json::write_edge(out.key("edge"), body.edge); }

void write_body(json::Writer& out, const HoldEntry& body) {
  out.key("target").number(body.target).key("child").bytes(body.child.str());
  out.key("child_commit").text(body.child_commit);
}

void write_body(json::Writer& out, const CollectEntry& body) {
  json::write_keys(out.key("objects"), body.objects);
  out.key("edges").begin_array();
  for (auto number : body.edges) out.number(number);
  out.end_array();
  if (body.finished.empty()) return;
  out.key("finished").begin_array();
  for (auto number : body.finished) out.number(number);
  out.end_array();
}

void write_body(json::Writer& out, const SnapshotEntry& body) {
  out.key("through").number(body.through).key("object").text(body.object.str()).key("size").number(body.size);
  out.key("directory_offset").number(body.directory_offset);
  out.key("directory_digest").text(body.directory_digest.hex());
}

void write_body(json::Writer& out, const IgnoredEntry&) { out.key("ignorable").boolean(true); }

// ---- Reading

using Body = decltype(LogEntry::body);

Result<Body> read_publish(const json::Value& object) {
  auto version = WFS_TRY(json::get_name<VersionName>(object, "version"));
  PublishEntry body{.version = std::move(version)};
  const auto* manifest = WFS_TRY(json::get(object, "manifest"));
  body.manifest = WFS_TRY(json::read_manifest_ref(*manifest));
  if (const auto* parent = json::find(object, "parent")) {
    WFS_TRY(json::read_parent(*parent, body.parent, body.parent_version).with("field 'parent'"));
  }
  const auto* edge = WFS_TRY(json::get(object, "edge"));
  body.edge = WFS_TRY(json::read_edge(*edge));
  body.plain_bytes = WFS_TRY(json::get_number(object, "plain_bytes"));
  body.stored_bytes = WFS_TRY(json::get_number(object, "stored_bytes"));
  body.changed_elements = WFS_TRY(json::get_number(object, "changed_elements"));
  body.total_elements = WFS_TRY(json::get_number(object, "total_elements"));
  return Body(std::move(body));
}

Result<Body> read_remove(const json::Value& object) {
  auto target = WFS_TRY(json::get_number(object, "target"));
  auto version = WFS_TRY(json::get_name<VersionName>(object, "version"));
  return Body(RemoveEntry{.target = target, .version = std::move(version)});
}

Result<Body> read_edge_entry(const json::Value& object) {
  const auto* edge = WFS_TRY(json::get(object, "edge"));
  return Body(EdgeEntry { .edge = WFS_TRY(json::read_edge(*edge)) });
}

Result<Body> read_hold(const json::Value& object) {
  auto target = WFS_TRY(json::get_number(object, "target"));
  auto child = WFS_TRY(json::get_name<ModelName>(object, "child"));
  auto commit = WFS_TRY(json::get_id(object, "child_commit"));
  return Body(HoldEntry{.target = target, .child = std::move(child), .child_commit = std::move(commit)});
}

Result<Body> read_collect(const json::Value& object) {
  CollectEntry body;
  const auto* objects = WFS_TRY(json::get(object, "objects"));
  body.objects = WFS_TRY(json::read_keys(*objects).with("field 'objects'"));
  const auto* edges = WFS_TRY(json::get_array(object, "edges"));
  for (const auto& edge : *edges) {
    body.edges.push_back(WFS_TRY(json::as_number(edge).with("field 'edges'")));
  }
  if (json::find(object, "finished") != nullptr) {
    const auto* finished = WFS_TRY(json::get_array(object, "finished"));
    for (const auto& number : *finished) {
      body.finished.push_back(WFS_TRY(json::as_number(number).with("field 'finished'")));
    }
  }
  return Body(std::move(body));
}

Result<Body> read_snapshot(const json::Value& object) {
  SnapshotEntry body;
  body.through = WFS_TRY(json::get_number(object, "through"));
  auto key = WFS_TRY(json::get_text(object, "object"));
  auto parsed = ObjectKey::parse(key);
  if (!parsed.is_ok()) return corrupt("field 'object': " + parsed.status().message());
  body.object = std::move(parsed).value();
  body.size = WFS_TRY(json::get_number(object, "size"));
  body.directory_offset = WFS_TRY(json::get_number(object, "directory_offset"));
  body.directory_digest = WFS_TRY(json::get_sha256(object, "directory_digest"));
  return Body(std::move(body));
}

Result<Body> read_ignored(const json::Value& object, const std::string& kind) {
  const auto* ignorable = json::find(object, "ignorable");
  if (ignorable != nullptr && *ignorable == json::Value(true)) return Body(IgnoredEntry{kind});
  return Status(Code::kUnsupported, "an entry of kind '" + percent_encode(kind.substr(0, 64)) +
                                        "', which this version does not know: update weightfs");
}

Result<Body> read_body(const json::Value& object, const std::string& kind) {
  if (kind == "publish") return read_publish(object);
  if (kind == "remove") return read_remove(object);
  if (kind == "edge") return read_edge_entry(object);
  if (kind == "hold") return read_hold(object);
  if (kind == "collect") return read_collect(object);
  if (kind == "snapshot") return read_snapshot(object);
  return read_ignored(object, kind);
}

// The field is the last one, as it was written; a later version adds its fields before it.
Status verify_check(ByteSpan text) {
  auto json = as_text(text);
  constexpr std::size_t kTail = kCheck.size() + 64 + 2;
  if (json.size() <= kTail || !json.substr(json.size() - kTail).starts_with(kCheck) || !json.ends_with("\"}")) {
    return corrupt("does not end with its check");
  }
  auto body = text.first(text.size() - kTail);
  auto digest = json.substr(body.size() + kCheck.size(), 64);
  return Sha256::of(body).hex() == digest ? Status() : corrupt("digest mismatch");
}

Result<LogEntry> read_entry(ByteSpan text, const ModelName& model, std::uint64_t number) {
  if (text.size() > kMaxLogEntry) return corrupt("over the limit");
  auto root = WFS_TRY(json::parse(text));
  WFS_TRY(json::require_object(root, "the whole"));
  WFS_TRY(json::check_format(root, kFormat));
  WFS_TRY(verify_check(text));
  auto kind = WFS_TRY(json::get_text(root, "kind"));
  auto named = WFS_TRY(json::get_name<ModelName>(root, "model"));
  if (named != model) return corrupt("belongs to model '" + named.str() + "'");
  auto numbered = WFS_TRY(json::get_number(root, "number"));
  if (numbered != number) return corrupt("is entry " + std::to_string(numbered));
  auto id = WFS_TRY(json::get_id(root, "id"));
  std::optional<Sha256> previous;
  if (number > 1) {
    previous = WFS_TRY(json::get_sha256(root, "previous"));
  }
  auto snapshot = WFS_TRY(json::get_number(root, "snapshot"));
  auto time = WFS_TRY(json::get_time(root, "time"));
  auto body = WFS_TRY(read_body(root, kind));
  LogEntry entry{number, std::move(id), previous, snapshot, time, std::move(named), std::move(body)};
  WFS_TRY(check_log_entry(entry));
  return entry;
}

}  // namespace

Status check_log_entry(const LogEntry& entry) {
  if (entry.number == 0 || entry.number > json::kMaxNumber) return corrupt("bad number");
  if (!json::is_id(entry.id)) return corrupt("bad commit id");
  if (entry.previous.has_value() != (entry.number > 1)) return corrupt("digest of the entry before");
  if (entry.snapshot != 0) WFS_TRY(check_earlier(entry.snapshot, entry.number, "snapshot"));
  return std::visit([&](const auto& body) { return check_body(entry, body); }, entry.body);
}

Bytes serialize(const LogEntry& entry) {
  WFS_CHECK(check_log_entry(entry).is_ok());
  json::Writer out;
  out.begin_object().key("format").number(kFormat);
  out.key("kind").text(std::visit([](const auto& body) { return kind_of(body); }, entry.body));
  out.key("model").bytes(entry.model.str()).key("number").number(entry.number).key("id").text(entry.id);
  if (entry.previous) out.key("previous").text(entry.previous->hex());
  out.key("snapshot").number(entry.snapshot).key("time").text(to_rfc3339(entry.time));
  std::visit([&](const auto& body) { write_body(out, body); }, entry.body);
  out.end_object();
  return to_bytes(with_check(std::string(as_text(out.take()))));
}

std::string with_check(std::string json) {
  json.pop_back();
  auto digest = Sha256::of(as_bytes(json)).hex();
  return json.append(kCheck).append(digest).append("\"}");
}

Result<LogEntry> parse_log_entry(ByteSpan text, const ModelName& model, std::uint64_t number) {
  return read_entry(text, model, number).with("log entry " + std::to_string(number));
}

Bytes serialize_hint(std::uint64_t head) {
  json::Writer out;
  out.begin_object().key("head").number(head).end_object();
  return out.take();
}

Result<std::uint64_t> parse_hint(ByteSpan text) {
  if (text.size() > kMaxHint) return corrupt("hint over the limit");
  auto root = WFS_TRY(json::parse(text));
  WFS_TRY(json::require_object(root, "hint"));
  return json::get_number(root, "head");
}

std::string model_prefix(const ModelName& model) { return model.key_component() + "/"; }

Result<ModelName> model_of_log_entry(ByteSpan text) {
  if (text.size() > kMaxLogEntry)
    return Status(Code::kCorrupt, "log entry over " + std::to_string(kMaxLogEntry) + " bytes");
  auto root = WFS_TRY(json::parse(text));
  WFS_TRY(json::require_object(root, "log entry"));
  return json::get_name<ModelName>(root, "model");
}

ObjectKey log_entry_key(const ModelName& model, std::uint64_t number) {
  auto digits = std::to_string(number);
  return ObjectKey::of(model_prefix(model) + "log/" + std::string(20 - digits.size(), '0') + digits + ".json");
}

ObjectKey log_hint_key(const ModelName& model) { return ObjectKey::of(model_prefix(model) + "log/hint"); }

ObjectKey manifest_key(const ModelName& model, const Sha256& digest) {
  return ObjectKey::of(model_prefix(model) + "manifests/" + digest.hex());
}

ObjectKey heartbeat_key(const ModelName& model, const std::string& pack) {
  return ObjectKey::of(model_prefix(model) + "uploads/" + pack);
}

ObjectKey snapshot_key(const ModelName& model, const std::string& id) {
  return ObjectKey::of(model_prefix(model) + "snapshots/" + id);
}

}  // namespace weightfs
