#include "store/log/state_snapshot.h"

namespace weightfs {
namespace {

constexpr std::size_t kSavedHeader = 8 + 8 + 32;  // through, directory_offset, directory_digest

Snapshot to_snapshot(const ModelState& state) {
  Snapshot out(state.model);
  out.through = state.head;
  out.head_digest = state.head_digest.value_or(Sha256{});
  out.snapshot = state.snapshot;
  for (const auto& [number, record] : state.versions) out.versions.push_back(record);
  out.edges = state.edges;
  out.holds = state.holds;
  out.collects = state.collects;
  out.retired.assign(state.retired.begin(), state.retired.end());
  return out;
}

ModelState to_state(Snapshot&& snapshot) {
  ModelState out(std::move(snapshot.model));
  out.head = snapshot.through;
  out.head_digest = snapshot.head_digest;
  out.snapshot = snapshot.snapshot;
  for (auto& record : snapshot.versions) out.versions.emplace(record.number, std::move(record));
  out.edges = std::move(snapshot.edges);
  out.holds = std::move(snapshot.holds);
  out.collects = std::move(snapshot.collects);
  for (auto& key : snapshot.retired) out.retired.insert(std::move(key));
  return out;
}

}  // namespace

Result<SerializedSnapshot> write_snapshot(const ModelState& state) {
  auto snapshot = to_snapshot(state);
  WFS_TRY(check_snapshot(snapshot));
  auto written = serialize_snapshot(snapshot);
  if (written.object.size() > kMaxSnapshotObject) return Status(Code::kInvalid, "the snapshot is too long");
  return written;
}

Result<ModelState> read_snapshot(Bucket& bucket, const ModelName& model, const SnapshotEntry& entry,
                                 const CallOptions& options) {
  if (entry.size > kMaxSnapshotObject) return Status(Code::kUnsupported, entry.object.str() + ": too long");
  auto object = WFS_TRY(bucket.get_all(entry.object, entry.size, options));
  auto snapshot = WFS_TRY(parse_snapshot(object, model, entry).with(entry.object.str()));
  return to_state(std::move(snapshot));
}

Bytes save_state(const ModelState& state) {
  if (state.head == 0) return {};
  auto snapshot = to_snapshot(state);
  if (!check_snapshot(snapshot).is_ok()) return {};  // then it is read from the bucket each time
  auto written = serialize_snapshot(snapshot);
  Bytes out;
  ByteWriter writer(out);
  writer.le(written.entry.through);
  writer.le(written.entry.directory_offset);
  writer.bytes(written.entry.directory_digest.bytes);
  writer.bytes(written.object);
  return out;
}

Result<ModelState> load_state(ByteSpan bytes, const ModelName& model) {
  if (bytes.size() < kSavedHeader) return Status(Code::kCorrupt, "too short");
  ByteReader reader(bytes);
  SnapshotEntry entry;
  entry.through = reader.le<std::uint64_t>();
  entry.directory_offset = reader.le<std::uint64_t>();
  auto digest = reader.bytes(entry.directory_digest.bytes.size());
  std::copy(digest.begin(), digest.end(), entry.directory_digest.bytes.begin());
  entry.size = reader.remaining();
  if (entry.directory_offset >= entry.size) return Status(Code::kCorrupt, "place of the directory");
  auto snapshot = WFS_TRY(parse_snapshot(reader.bytes(entry.size), model, entry));
  return to_state(std::move(snapshot));
}

}  // namespace weightfs
