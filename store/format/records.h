// What a model's log adds up to, piece by piece: kept in memory by the log, written to snapshots.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/format/log_entry.h"

namespace weightfs {

struct VersionRecord {
  std::uint64_t number = 0;  // of the publishing entry; the version's identity for ever
  std::string id;            // that entry's commit id
  VersionName name;
  ManifestRef manifest;
  std::optional<NodeRef> parent;
  std::optional<VersionName> parent_version;
  std::uint64_t plain_bytes = 0, stored_bytes = 0, changed_elements = 0, total_elements = 0;
  WallTime time{};
  std::uint64_t removed = 0;  // number of the remove entry; 0: live
  friend bool operator==(const VersionRecord&, const VersionRecord&) = default;
};

struct EdgeRecord {
  std::uint64_t entry = 0;  // number of the entry that announced it
  EdgeRef edge;
  std::uint64_t collected = 0;  // number of the collect entry that takes it; 0: usable
  friend bool operator==(const EdgeRecord&, const EdgeRecord&) = default;
};

struct HoldRecord {
  std::uint64_t entry = 0;
  HoldEntry hold;
  friend bool operator==(const HoldRecord&, const HoldRecord&) = default;
};

struct CollectRecord {
  std::uint64_t entry = 0;
  std::vector<ObjectKey> objects;  // ascending
  friend bool operator==(const CollectRecord&, const CollectRecord&) = default;
};

}  // namespace weightfs
