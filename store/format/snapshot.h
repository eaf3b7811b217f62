// A snapshot: the state of a model's log after entry `through`, in one object MODEL/snapshots/<id>:
//
//   page | page | … | directory
//                   ^ directory_offset
//
// The snapshot entry of the log has the directory's place and SHA-256, the directory each page's, the kind and the
// numbers of its records. So a reader gets the directory, then all pages at once or those that it needs; or everything
// in one GET when the object is small. JSON, pages compressed; FORMAT.md.
#pragma once

#include <vector>

#include "store/format/records.h"

namespace weightfs {

inline constexpr std::size_t kSnapshotPageRecords = 1024;
inline constexpr std::uint64_t kMaxSnapshotDirectory = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxSnapshotPage = std::uint64_t{32} << 20;  // bytes, compressed or not

struct Snapshot {
  explicit Snapshot(ModelName name) : model(std::move(name)) {}
  ModelName model;
  std::uint64_t through = 0;            // at least 1
  Sha256 head_digest;                   // of that entry's bytes
  std::uint64_t snapshot = 0;           // number of the newest snapshot entry up to `through`, 0: none
  std::vector<VersionRecord> versions;  // ascending by number
  std::vector<EdgeRecord> edges;        // ascending by entry
  std::vector<HoldRecord> holds;        // ascending by entry
  std::vector<CollectRecord> collects;  // ascending by entry
  std::vector<ObjectKey> retired;       // ascending
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// What the readers below require. kCorrupt.
Status check_snapshot(const Snapshot& snapshot);

struct SerializedSnapshot {
  Bytes object;
  SnapshotEntry entry;  // all but the key
};
// REQUIRES: check_snapshot is OK
SerializedSnapshot serialize_snapshot(const Snapshot& snapshot);

struct SnapshotPage {
  enum class Table : std::uint8_t { kVersions, kEdges, kHolds, kCollects, kRetired };
  Table table = Table::kVersions;
  std::uint64_t first = 0, last = 0;  // numbers of its first and last record (version's number, or entry); kRetired: 0
  std::uint64_t records = 0;
  ByteRange range;                 // of the object
  std::uint64_t plain_length = 0;  // when decompressed
  bool compressed = true;
  Sha256 digest;  // of the bytes in the object
};

struct SnapshotDirectory {
  Snapshot head;                    // without records
  std::vector<SnapshotPage> pages;  // by table, then by number
};

// The place of the directory in the object.
ByteRange directory_range(const SnapshotEntry& entry);
// kCorrupt: not what `entry` of `model` announces. kUnsupported: a later format, or tables this version does not know:
// an older snapshot, or the log from its start, tells the same.
Result<SnapshotDirectory> parse_snapshot_directory(ByteSpan bytes, const ModelName& model, const SnapshotEntry& entry);
// Appends the records of a page (its bytes in the object) to `into`, whose records of that table precede them.
Status parse_snapshot_page(ByteSpan bytes, const SnapshotPage& page, Snapshot& into);
// The whole object.
Result<Snapshot> parse_snapshot(ByteSpan object, const ModelName& model, const SnapshotEntry& entry);

}  // namespace weightfs
