// A ModelState as a snapshot object of the bucket, and as what a LogStateStore keeps.
#pragma once

#include "store/bucket/bucket.h"
#include "store/format/snapshot.h"
#include "store/log/model_state.h"

namespace weightfs {

inline constexpr std::uint64_t kMaxSnapshotObject = std::uint64_t{1} << 30;

// The object's bytes, and the entry that will announce them (without its key). kInvalid: too long to be read back.
//   REQUIRES: state.head > 0
Result<SerializedSnapshot> write_snapshot(const ModelState& state);

// Reads the object that `entry` announces. kNotFound, kPermission, kCorrupt, kUnsupported: it is of no use, an older
// one or the log from its start tells the same.
Result<ModelState> read_snapshot(Bucket& bucket, const ModelName& model, const SnapshotEntry& entry,
                                 const CallOptions& options);

// What is saved locally carries its own digest. Empty for a model without entries.
Bytes save_state(const ModelState& state);
Result<ModelState> load_state(ByteSpan bytes, const ModelName& model);  // kCorrupt, kUnsupported: drop it

}  // namespace weightfs
