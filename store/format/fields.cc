#include "store/format/fields.h"

namespace weightfs::json {

void write_node(Writer& out, const NodeRef& node) {
  out.begin_object().key("model").bytes(node.model.str()).key("number").number(node.number).end_object();
}

Result<NodeRef> read_node(const Value& object) {
  WFS_TRY(require_object(object, "node"));
  auto model = WFS_TRY(get_name<ModelName>(object, "model"));
  auto number = WFS_TRY(get_number(object, "number"));
  if (number == 0) return Status(Code::kCorrupt, "field 'number': zero");
  return NodeRef{std::move(model), number};
}

void write_edge(Writer& out, const EdgeRef& edge) {
  out.begin_object();
  if (edge.from) write_node(out.key("from"), *edge.from);
  out.key("to").number(edge.to).key("pack").text(edge.pack).key("objects").number(edge.objects);
  out.key("last_size").number(edge.last_size).key("meta_offset").number(edge.meta_offset);
  out.key("index_offset").number(edge.index_offset).key("index_digest").text(edge.index_digest.hex());
  out.key("total_bytes").number(edge.total_bytes).key("frames").number(edge.frames).end_object();
}

Result<EdgeRef> read_edge(const Value& object) {
  WFS_TRY(require_object(object, "edge"));
  EdgeRef edge;
  if (const auto* from = find(object, "from")) {
    edge.from = WFS_TRY(read_node(*from).with("field 'from'"));
  }
  edge.to = WFS_TRY(get_number(object, "to"));
  edge.pack = WFS_TRY(get_id(object, "pack"));
  edge.objects = static_cast<std::uint32_t>(WFS_TRY(get_number(object, "objects", kMaxPackObjects)));
  edge.last_size = WFS_TRY(get_number(object, "last_size"));
  edge.meta_offset = WFS_TRY(get_number(object, "meta_offset"));
  edge.index_offset = WFS_TRY(get_number(object, "index_offset"));
  edge.index_digest = WFS_TRY(get_sha256(object, "index_digest"));
  edge.total_bytes = WFS_TRY(get_number(object, "total_bytes"));
  edge.frames = WFS_TRY(get_number(object, "frames"));
  WFS_TRY(check_edge(edge));
  return edge;
}

void write_manifest_ref(Writer& out, const ManifestRef& ref) {
  out.begin_object().key("digest").text(ref.digest.hex()).key("size").number(ref.size).end_object();
}

Result<ManifestRef> read_manifest_ref(const Value& object) {
  WFS_TRY(require_object(object, "manifest"));
  ManifestRef ref;
  ref.digest = WFS_TRY(get_sha256(object, "digest"));
  ref.size = WFS_TRY(get_number(object, "size", kMaxManifest));
  return ref;
}

void write_parent(Writer& out, const NodeRef& parent, const VersionName& name) {
  out.begin_object().key("model").bytes(parent.model.str()).key("number").number(parent.number);
  out.key("version").bytes(name.str()).end_object();
}

Status read_parent(const Value& object, std::optional<NodeRef>& parent, std::optional<VersionName>& name) {
  parent = WFS_TRY(read_node(object));
  name = WFS_TRY(get_name<VersionName>(object, "version"));
  return {};
}

void write_keys(Writer& out, const std::vector<ObjectKey>& keys) {
  out.begin_array();
  for (const auto& key : keys) out.text(key.str());
  out.end_array();
}

Result<std::vector<ObjectKey>> read_keys(const Value& array) {
  std::vector<ObjectKey> keys;
  if (!array.is_array()) return Status(Code::kCorrupt, "keys: not an array");
  keys.reserve(array.size());
  for (const auto& item : array) {
    if (!item.is_string()) return Status(Code::kCorrupt, "a key: not a string");
    auto key = ObjectKey::parse(item.get_ref<const std::string&>());
    if (!key.is_ok()) return Status(Code::kCorrupt, key.status().message());
    keys.push_back(std::move(key).value());
  }
  return keys;
}

Result<WallTime> get_time(const Value& object, const char* field) {
  auto text = WFS_TRY(get_text(object, field));
  auto time = parse_rfc3339(text);
  if (!time.is_ok()) return Status(Code::kCorrupt, std::string("field '") + field + "': " + time.status().message());
  return time;
}

}  // namespace weightfs::json
