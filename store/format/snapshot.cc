#include "store/format/snapshot.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>

#include "store/format/fields.h"
#include "store/format/json.h"

namespace weightfs {
namespace {

using Table = SnapshotPage::Table;
constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kPagePlainTarget = std::uint64_t{4} << 20;  // a page is full at this size, too
constexpr std::uint64_t kMaxExpansion = 256;                        // of a page by decompression, against bombs
constexpr int kLevel = 9;
constexpr std::array<std::string_view, 5> kTables = {"versions", "edges", "holds", "collects", "retired"};

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// ---- Records: what is required of them, given the one before.

Status check_number(std::uint64_t number, std::uint64_t before, std::uint64_t through) {
  if (number <= before) return corrupt("records are not ascending");
  return number <= through ? Status() : corrupt("record of an entry after the snapshot");
}

// `later` is 0 or the number of an entry after `number`.
Status check_later(std::uint64_t later, std::uint64_t number, std::uint64_t through) {
  return later == 0 || (later > number && later <= through) ? Status() : corrupt("bad number of a later entry");
}

Status check_key(const Snapshot& to, const ObjectKey& key) {
  return key.str().starts_with(model_prefix(to.model)) ? Status() : corrupt("key of another model");
}

Status check(const Snapshot& to, const VersionRecord& record, const VersionRecord* before) {
  WFS_TRY(check_number(record.number, before == nullptr ? 0 : before->number, to.through));
  WFS_TRY(check_later(record.removed, record.number, to.through));
  if (!json::is_id(record.id)) return corrupt("bad commit id");
  if (record.parent.has_value() != record.parent_version.has_value()) return corrupt("parent and its name go together");
  return {};
}

Status check(const Snapshot& to, const EdgeRecord& record, const EdgeRecord* before) {
  WFS_TRY(check_number(record.entry, before == nullptr ? 0 : before->entry, to.through));
  WFS_TRY(check_later(record.collected, record.entry, to.through));
  WFS_TRY(check_edge(record.edge));
  return record.edge.to <= record.entry ? Status() : corrupt("edge to a later version");
}

Status check(const Snapshot& to, const HoldRecord& record, const HoldRecord* before) {
  WFS_TRY(check_number(record.entry, before == nullptr ? 0 : before->entry, to.through));
  if (record.hold.target == 0 || record.hold.target >= record.entry) return corrupt("hold of a later version");
  return json::is_id(record.hold.child_commit) ? Status() : corrupt("bad commit id");
}

Status check(const Snapshot& to, const CollectRecord& record, const CollectRecord* before) {
  WFS_TRY(check_number(record.entry, before == nullptr ? 0 : before->entry, to.through));
  for (const auto& key : record.objects) WFS_TRY(check_key(to, key));
  return {};
}

Status check(const Snapshot& to, const ObjectKey& key, const ObjectKey* before) {
  if (before != nullptr && *before >= key) return corrupt("records are not ascending");
  return check_key(to, key);
}

std::uint64_t number_of(const VersionRecord& record) { return record.number; }
std::uint64_t number_of(const EdgeRecord& record) { return record.entry; }
std::uint64_t number_of(const HoldRecord& record) { return record.entry; }
std::uint64_t number_of(const CollectRecord& record) { return record.entry; }
std::uint64_t number_of(const ObjectKey&) { return 0; }

// ---- Records as JSON

void write(json::Writer& out, const VersionRecord& record) {
  out.begin_object().key("number").number(record.number).key("id").text(record.id);
  out.key("version").bytes(record.name.str());
  json::write_manifest_ref(out.key("manifest"), record.manifest);
  if (record.parent) json::write_parent(out.key("parent"), *record.parent, *record.parent_version);
  out.key("plain_bytes").number(record.plain_bytes).key("stored_bytes").number(record.stored_bytes);
  out.key("changed_elements").number(record.changed_elements).key("total_elements").number(record.total_elements);
  out.key("time").text(to_rfc3339(record.time)).key("removed").number(record.removed).end_object();
}

void write(json::Writer& out, const EdgeRecord& record) {
  out.begin_object().key("entry").number(record.entry);
  json::write_edge(out.key("edge"), record.edge);
  out.key("collected").number(record.collected).end_object();
}

void write(json::Writer& out, const HoldRecord& record) {
  out.begin_object().key("entry").number(record.entry).key("target").number(record.hold.target);
  out.key("child").bytes(record.hold.child.str()).key("child_commit").text(record.hold.child_commit).end_object();
}

void write(json::Writer& out, const CollectRecord& record) {
  out.begin_object().key("entry").number(record.entry);
  json::write_keys(out.key("objects"), record.objects);
  out.end_object();
}

void write(json::Writer& out, const ObjectKey& key) { out.text(key.str()); }

Result<VersionRecord> read(const json::Value& object, std::type_identity<VersionRecord>) {
  WFS_TRY(json::require_object(object, "version"));
  auto name = WFS_TRY(json::get_name<VersionName>(object, "version"));
  VersionRecord record{.name = std::move(name)};
  record.number = WFS_TRY(json::get_number(object, "number"));
  record.id = WFS_TRY(json::get_id(object, "id"));
  const auto* manifest = WFS_TRY(json::get(object, "manifest"));
  record.manifest = WFS_TRY(json::read_manifest_ref(*manifest));
  if (const auto* parent = json::find(object, "parent")) {
    WFS_TRY(json::read_parent(*parent, record.parent, record.parent_version));
  }
  record.plain_bytes = WFS_TRY(json::get_number(object, "plain_bytes"));
  record.stored_bytes = WFS_TRY(json::get_number(object, "stored_bytes"));
  record.changed_elements = WFS_TRY(json::get_number(object, "changed_elements"));
  record.total_elements = WFS_TRY(json::get_number(object, "total_elements"));
  record.time = WFS_TRY(json::get_time(object, "time"));
  record.removed = WFS_TRY(json::get_number(object, "removed"));
  return record;
}

Result<EdgeRecord> read(const json::Value& object, std::type_identity<EdgeRecord>) {
  WFS_TRY(json::require_object(object, "edge"));
  EdgeRecord record;
  record.entry = WFS_TRY(json::get_number(object, "entry"));
  const auto* edge = WFS_TRY(json::get(object, "edge"));
  record.edge = WFS_TRY(json::read_edge(*edge));
  record.collected = WFS_TRY(json::get_number(object, "collected"));
  return record;
}

Result<HoldRecord> read(const json::Value& object, std::type_identity<HoldRecord>) {
  WFS_TRY(json::require_object(object, "hold"));
  auto entry = WFS_TRY(json::get_number(object, "entry"));
  auto target = WFS_TRY(json::get_number(object, "target"));
  auto child = WFS_TRY(json::get_name<ModelName>(object, "child"));
  auto commit = WFS_TRY(json::get_id(object, "child_commit"));
  return HoldRecord{entry, {target, std::move(child), std::move(commit)}};
}

Result<CollectRecord> read(const json::Value& object, std::type_identity<CollectRecord>) {
  WFS_TRY(json::require_object(object, "collect"));
  CollectRecord record;
  record.entry = WFS_TRY(json::get_number(object, "entry"));
  const auto* objects = WFS_TRY(json::get(object, "objects"));
  record.objects = WFS_TRY(json::read_keys(*objects));
  return record;
}

Result<ObjectKey> read(const json::Value& value, std::type_identity<ObjectKey>) {
  if (!value.is_string()) return corrupt("a key: not a string");
  auto key = ObjectKey::parse(value.get_ref<const std::string&>());
  if (!key.is_ok()) return corrupt(key.status().message());
  return key;
}

// ---- Pages

Bytes compress(ByteSpan plain) {
  Bytes out(ZSTD_compressBound(plain.size()));
  auto length = ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), kLevel);
  WFS_CHECK(ZSTD_isError(length) == 0);
  out.resize(length);
  return out;
}

class PageWriter {
 public:
  PageWriter(Bytes& object, std::vector<SnapshotPage>& pages) : object_(object), pages_(pages) {}

  template <typename Record>
  void table(Table table, const std::vector<Record>& records) {
    for (std::size_t begin = 0; begin < records.size();) {
      json::Writer out;
      out.begin_object().key("records").begin_array();
      std::size_t end = begin;
      while (end < records.size() && end - begin < kSnapshotPageRecords && out.size() < kPagePlainTarget) {
        write(out, records[end++]);
      }
      out.end_array().end_object();
      SnapshotPage page{.table = table, .records = end - begin};
      page.first = number_of(records[begin]);
      page.last = number_of(records[end - 1]);
      add(std::move(page), out.take());
      begin = end;
    }
  }

 private:
  void add(SnapshotPage page, const Bytes& plain) {
    auto stored = compress(plain);
    page.compressed = plain.size() <= stored.size() * kMaxExpansion;
    if (!page.compressed) stored = plain;
    page.range = {object_.size(), stored.size()};
    page.plain_length = plain.size();
    page.digest = Sha256::of(stored);
    object_.insert(object_.end(), stored.begin(), stored.end());
    pages_.push_back(std::move(page));
  }
  Bytes& object_;
  std::vector<SnapshotPage>& pages_;
};

Bytes serialize_directory(const Snapshot& snapshot, const std::vector<SnapshotPage>& pages) {
  json::Writer out;
  out.begin_object().key("format").number(kFormat).key("model").bytes(snapshot.model.str());
  out.key("through").number(snapshot.through).key("head_digest").text(snapshot.head_digest.hex());
  out.key("snapshot").number(snapshot.snapshot).key("pages").begin_array();
  for (const auto& page : pages) {
    out.begin_object().key("table").text(kTables[static_cast<std::size_t>(page.table)]);
    out.key("first").number(page.first).key("last").number(page.last).key("records").number(page.records);
    out.key("offset").number(page.range.offset).key("length").number(page.range.length);
    out.key("encoding").text(page.compressed ? "zstd" : "plain").key("plain_length").number(page.plain_length);
    out.key("digest").text(page.digest.hex()).end_object();
  }
  out.end_array().end_object();
  return out.take();
}

Status check_page_limits(const SnapshotPage& page, std::uint64_t directory_offset) {
  if (page.records == 0 || page.records > kSnapshotPageRecords) return corrupt("bad number of records");
  if (page.first > page.last) return corrupt("numbers are not in order");
  if (page.range.length == 0 || page.range.length > kMaxSnapshotPage || page.plain_length > kMaxSnapshotPage) {
    return corrupt("bad length");
  }
  if (page.range.offset > directory_offset || directory_offset - page.range.offset < page.range.length) {
    return corrupt("outside its object");
  }
  auto most = page.compressed ? page.range.length * kMaxExpansion : page.range.length;
  if (page.plain_length == 0 || page.plain_length > most) return corrupt("bad plain length");
  return {};
}

// A page of a table that is not known and marked as ignorable is nothing.
Result<std::optional<SnapshotPage>> read_page_ref(const json::Value& object, std::uint64_t directory_offset) {
  WFS_TRY(json::require_object(object, "page"));
  auto name = WFS_TRY(json::get_text(object, "table"));
  auto table = std::find(kTables.begin(), kTables.end(), name);
  if (table == kTables.end()) {
    const auto* ignorable = json::find(object, "ignorable");
    if (ignorable != nullptr && *ignorable == json::Value(true)) return std::optional<SnapshotPage>();
    return Status(Code::kUnsupported, "a table that this version does not know: update weightfs");
  }
  SnapshotPage page{.table = static_cast<Table>(table - kTables.begin())};
  page.first = WFS_TRY(json::get_number(object, "first"));
  page.last = WFS_TRY(json::get_number(object, "last"));
  page.records = WFS_TRY(json::get_number(object, "records"));
  page.range.offset = WFS_TRY(json::get_number(object, "offset"));
  page.range.length = WFS_TRY(json::get_number(object, "length"));
  auto encoding = WFS_TRY(json::get_text(object, "encoding"));
  if (encoding != "zstd" && encoding != "plain") return Status(Code::kUnsupported, "an encoding that is not known");
  page.compressed = encoding == "zstd";
  page.plain_length = WFS_TRY(json::get_number(object, "plain_length"));
  page.digest = WFS_TRY(json::get_sha256(object, "digest"));
  WFS_TRY(check_page_limits(page, directory_offset));
  return std::optional(page);
}

Status check_head(const Snapshot& head) {
  if (head.through == 0 || head.through > json::kMaxNumber) return corrupt("bad number of its last entry");
  return head.snapshot <= head.through ? Status() : corrupt("bad number of the snapshot before");
}

Result<SnapshotDirectory> read_directory(ByteSpan bytes, const ModelName& model, const SnapshotEntry& entry) {
  if (bytes.size() != directory_range(entry).length || bytes.size() > kMaxSnapshotDirectory) {
    return corrupt("another length than the log says");
  }
  if (Sha256::of(bytes) != entry.directory_digest) return corrupt("digest mismatch");
  SnapshotDirectory directory{Snapshot(model), {}};
  Status stopped;
  auto on_page = [&](json::Value&& object) -> Status {
    auto page = WFS_TRY(read_page_ref(object, entry.directory_offset));
    if (page) directory.pages.push_back(*page);
    return {};
  };
  auto root = WFS_TRY(json::parse_streaming(bytes, "pages", on_page, stopped));
  WFS_TRY(json::require_object(root, "directory"));
  WFS_TRY(json::check_format(root, kFormat));
  WFS_TRY(std::move(stopped));
  WFS_TRY(json::get_array(root, "pages"));
  auto named = WFS_TRY(json::get_name<ModelName>(root, "model"));
  if (named != model) return corrupt("belongs to another model");
  auto& head = directory.head;
  head.through = WFS_TRY(json::get_number(root, "through"));
  head.head_digest = WFS_TRY(json::get_sha256(root, "head_digest"));
  head.snapshot = WFS_TRY(json::get_number(root, "snapshot"));
  WFS_TRY(check_head(head));
  if (head.through != entry.through) return corrupt("another last entry than the log says");
  return directory;
}

Result<Bytes> decompress(ByteSpan bytes, std::uint64_t plain_length) {
  Bytes plain(plain_length);
  auto length = ZSTD_decompress(plain.data(), plain.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(length) != 0 || length != plain_length) return corrupt("does not decompress to its length");
  return plain;
}

template <typename Record>
Status read_records(ByteSpan plain, const SnapshotPage& page, Snapshot& into, std::vector<Record>& records) {
  auto count = records.size() + page.records;
  auto begin = records.size();
  auto on_record = [&](json::Value&& value) -> Status {
    auto record = WFS_TRY(read(value, std::type_identity<Record>()));
    WFS_TRY(check(into, record, records.empty() ? nullptr : &records.back()));
    if (records.size() == count) return corrupt("more records than announced");
    records.push_back(std::move(record));
    return {};
  };
  Status stopped;
  auto root = WFS_TRY(json::parse_streaming(plain, "records", on_record, stopped));
  WFS_TRY(json::require_object(root, "page"));
  WFS_TRY(std::move(stopped));
  if (records.size() != count) return corrupt("fewer records than announced");
  if (number_of(records[begin]) != page.first || number_of(records.back()) != page.last) {
    return corrupt("other numbers than announced");
  }
  return {};
}

Status read_page(ByteSpan bytes, const SnapshotPage& page, Snapshot& into) {
  if (bytes.size() != page.range.length) return corrupt("another length than announced");
  if (Sha256::of(bytes) != page.digest) return corrupt("digest mismatch");
  Bytes buffer;
  if (page.compressed) {
    buffer = WFS_TRY(decompress(bytes, page.plain_length));
    bytes = buffer;
  }
  switch (page.table) {
    case Table::kVersions:
      return read_records(bytes, page, into, into.versions);
    case Table::kEdges:
      return read_records(bytes, page, into, into.edges);
    case Table::kHolds:
      return read_records(bytes, page, into, into.holds);
    case Table::kCollects:
      return read_records(bytes, page, into, into.collects);
    case Table::kRetired:
      return read_records(bytes, page, into, into.retired);
  }
  return corrupt("no table");
}

template <typename Record>
Status check_all(const Snapshot& to, const std::vector<Record>& records) {
  for (std::size_t i = 0; i < records.size(); i++) {
    WFS_TRY(check(to, records[i], i == 0 ? nullptr : &records[i - 1]));
  }
  return {};
}

}  // namespace

Status check_snapshot(const Snapshot& snapshot) {
  WFS_TRY(check_head(snapshot));
  WFS_TRY(check_all(snapshot, snapshot.versions));
  WFS_TRY(check_all(snapshot, snapshot.edges));
  WFS_TRY(check_all(snapshot, snapshot.holds));
  WFS_TRY(check_all(snapshot, snapshot.collects));
  return check_all(snapshot, snapshot.retired);
}

SerializedSnapshot serialize_snapshot(const Snapshot& snapshot) {
  WFS_CHECK(check_snapshot(snapshot).is_ok());
  SerializedSnapshot out;
  std::vector<SnapshotPage> pages;
  PageWriter writer(out.object, pages);
  writer.table(Table::kVersions, snapshot.versions);
  writer.table(Table::kEdges, snapshot.edges);
  writer.table(Table::kHolds, snapshot.holds);
  writer.table(Table::kCollects, snapshot.collects);
  writer.table(Table::kRetired, snapshot.retired);
  auto directory = serialize_directory(snapshot, pages);
  out.entry.through = snapshot.through;
  out.entry.directory_offset = out.object.size();
  out.entry.directory_digest = Sha256::of(directory);
  out.object.insert(out.object.end(), directory.begin(), directory.end());
  out.entry.size = out.object.size();
  return out;
}

ByteRange directory_range(const SnapshotEntry& entry) {
  return {entry.directory_offset, entry.size - entry.directory_offset};
}

Result<SnapshotDirectory> parse_snapshot_directory(ByteSpan bytes, const ModelName& model, const SnapshotEntry& entry) {
  return read_directory(bytes, model, entry).with("snapshot directory");
}

Status parse_snapshot_page(ByteSpan bytes, const SnapshotPage& page, Snapshot& into) {
  return read_page(bytes, page, into)
      .with("snapshot page of " + std::string(kTables[static_cast<std::size_t>(page.table)]) + " from " +
            std::to_string(page.first));
}

Result<Snapshot> parse_snapshot(ByteSpan object, const ModelName& model, const SnapshotEntry& entry) {
  if (object.size() != entry.size || entry.directory_offset > entry.size) {
    return corrupt("snapshot: another size than the log says");
  }
  auto directory = WFS_TRY(parse_snapshot_directory(object.subspan(entry.directory_offset), model, entry));
  for (const auto& page : directory.pages) {
    WFS_TRY(parse_snapshot_page(object.subspan(page.range.offset, page.range.length), page, directory.head));
  }
  return std::move(directory.head);
}

}  // namespace weightfs
