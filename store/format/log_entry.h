// One commit of a model's log: MODEL/log/<20 digits>.json, numbers from 1, never deleted, each created by a conditional
// PUT. JSON; FORMAT.md has every field. Bytes in strings (names) are percent-encoded.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/names.h"
#include "store/format/pack.h"

namespace weightfs {

inline constexpr std::uint64_t kMaxLogEntry = std::uint64_t{16} << 20;

struct ManifestRef {
  Sha256 digest;
  std::uint64_t size = 0;
  friend bool operator==(const ManifestRef&, const ManifestRef&) = default;
};

struct PublishEntry {
  VersionName version;
  ManifestRef manifest;
  std::optional<NodeRef> parent;
  std::optional<VersionName> parent_version;  // its name when it was chosen; there exactly when parent is
  EdgeRef edge;                               // edge.to is this entry's own number, edge.from is the parent or nothing
  std::uint64_t plain_bytes = 0;              // sum of the files' sizes
  std::uint64_t stored_bytes = 0;             // packs + manifest
  std::uint64_t changed_elements = 0;         // bitwise, in tensors that have a base
  std::uint64_t total_elements = 0;           // of all tensors
  friend bool operator==(const PublishEntry&, const PublishEntry&) = default;
};
struct RemoveEntry {
  std::uint64_t target = 0;  // the publishing commit's number
  VersionName version;
  friend bool operator==(const RemoveEntry&, const RemoveEntry&) = default;
};
struct EdgeEntry {  // a skip edge or a full edge, made later
  EdgeRef edge;
  friend bool operator==(const EdgeEntry&, const EdgeEntry&) = default;
};
struct HoldEntry {  // a version of another model is about to build on `target`
  std::uint64_t target = 0;
  ModelName child;
  std::string child_commit;  // the id that the child's publish entry will have
  friend bool operator==(const HoldEntry&, const HoldEntry&) = default;
};
struct CollectEntry {                   // gc is going to delete these; nothing may be built on them any more
  std::vector<ObjectKey> objects;       // full keys, of this model, none of its log
  std::vector<std::uint64_t> edges;     // numbers of the entries whose edge goes (publish or edge entries)
  std::vector<std::uint64_t> finished;  // numbers of earlier collect entries whose objects are all deleted
  friend bool operator==(const CollectEntry&, const CollectEntry&) = default;
};
struct SnapshotEntry {  // the state up to `through` is in an object
  std::uint64_t through = 0;
  ObjectKey object = ObjectKey::of("x");
  std::uint64_t size = 0;
  Sha256 directory_digest;  // of the snapshot's directory at the object's end
  std::uint64_t directory_offset = 0;
  friend bool operator==(const SnapshotEntry&, const SnapshotEntry&) = default;
};
struct IgnoredEntry {  // of a kind this version does not know, that its writer marked as safe to ignore
  std::string kind;    // [a-z0-9-]
  friend bool operator==(const IgnoredEntry&, const IgnoredEntry&) = default;
};

struct LogEntry {
  std::uint64_t number = 0;
  std::string id;                  // 32 random hex digits: whose PUT won
  std::optional<Sha256> previous;  // of entry number-1's bytes; none for number 1
  std::uint64_t snapshot = 0;      // number of the newest snapshot entry before this one, 0: none
  WallTime time{};                 // the writer's clock, to the millisecond; for people, never for decisions
  ModelName model;
  std::variant<PublishEntry, RemoveEntry, EdgeEntry, HoldEntry, CollectEntry, SnapshotEntry, IgnoredEntry> body;
  friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

// What parse_log_entry requires of the values; FORMAT.md has the rules of each kind. kCorrupt.
Status check_log_entry(const LogEntry& entry);
// Canonical. Its last field is the SHA-256 of the bytes before it, so that damage is found although nothing continues
// the newest entry yet.   REQUIRES: check_log_entry is OK
Bytes serialize(const LogEntry& entry);
// The text of an entry without that field, with it.   REQUIRES: `json` ends with '}'
std::string with_check(std::string json);
// kCorrupt: breaks the format, or is not entry `number` of `model`. kUnsupported: a later format, or a kind this
// version does not know that is not marked as safe to ignore (FORMAT.md).
Result<LogEntry> parse_log_entry(ByteSpan json, const ModelName& model, std::uint64_t number);

// The hint object: {"head": n}, never trusted backwards. kCorrupt: as if there were none.
Bytes serialize_hint(std::uint64_t head);
Result<std::uint64_t> parse_hint(ByteSpan json);

// The model that an entry says it is of; its number and digest are not looked at. For models whose key is a hash of
// their name.
Result<ModelName> model_of_log_entry(ByteSpan json);

ObjectKey log_entry_key(const ModelName& model, std::uint64_t number);
ObjectKey log_hint_key(const ModelName& model);
ObjectKey manifest_key(const ModelName& model, const Sha256& digest);
ObjectKey heartbeat_key(const ModelName& model, const std::string& pack);  // MODEL/uploads/<pack>
ObjectKey snapshot_key(const ModelName& model, const std::string& id);     // MODEL/snapshots/<id>; 32 hex digits
std::string model_prefix(const ModelName& model);                          // "MODEL/"

}  // namespace weightfs
