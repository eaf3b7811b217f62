// What a model's log adds up to. Immutable once made; shared by reference among threads.
#pragma once

#include <map>
#include <memory>
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
};

struct EdgeRecord {
  std::uint64_t entry = 0;  // number of the entry that announced it
  EdgeRef edge;
  std::uint64_t collected = 0;  // number of the collect entry that takes it; 0: usable
};

struct HoldRecord {
  std::uint64_t entry = 0;
  HoldEntry hold;
};

struct CollectRecord {
  std::uint64_t entry = 0;
  std::vector<ObjectKey> objects;
};

struct ModelState {
  explicit ModelState(ModelName name) : model(std::move(name)) {}
  ModelName model;
  std::uint64_t head = 0;             // number of the last entry; 0: the model does not exist
  std::optional<Sha256> head_digest;  // of the last entry's bytes
  std::uint64_t snapshot = 0;         // newest snapshot entry
  std::map<std::uint64_t, VersionRecord>
      versions;                   // by number: order of publishing; removed ones too while edges need them
  std::vector<EdgeRecord> edges;  // by entry number
  std::vector<HoldRecord> holds;
  std::vector<CollectRecord> collects;  // not yet known to be carried out
  // Set when an entry past `head` is damaged or of a later format: what is here is readable, nothing can be appended.
  std::optional<Status> broken;

  const VersionRecord* live(const VersionName& name) const;  // the newest live version of that name
  const VersionRecord* version(std::uint64_t number) const;  // live or removed
  const VersionRecord* latest() const;                       // the live version with the highest number; null: none
  std::vector<const VersionRecord*> live_versions() const;   // ascending by number
  bool is_collected(const ObjectKey& object) const;

 private:
  friend class ModelLog;
  friend class StateBuilder;
  std::map<std::string, std::uint64_t, std::less<>> live_by_name_;
};

using ModelStatePtr = std::shared_ptr<const ModelState>;

}  // namespace weightfs
