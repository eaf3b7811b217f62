// Parts that log entries and snapshots share, as JSON. Inside store/format only.
#pragma once

#include "store/format/json.h"
#include "store/format/log_entry.h"

namespace weightfs::json {

void write_node(Writer& out, const NodeRef& node);  // an object
Result<NodeRef> read_node(const Value& object);

void write_edge(Writer& out, const EdgeRef& edge);
Result<EdgeRef> read_edge(const Value& object);  // checked by check_edge

void write_manifest_ref(Writer& out, const ManifestRef& ref);
Result<ManifestRef> read_manifest_ref(const Value& object);

// A parent: a node and its name.
void write_parent(Writer& out, const NodeRef& parent, const VersionName& name);
Status read_parent(const Value& object, std::optional<NodeRef>& parent, std::optional<VersionName>& name);

void write_keys(Writer& out, const std::vector<ObjectKey>& keys);  // an array
Result<std::vector<ObjectKey>> read_keys(const Value& array);

Result<WallTime> get_time(const Value& object, const char* field);

}  // namespace weightfs::json
