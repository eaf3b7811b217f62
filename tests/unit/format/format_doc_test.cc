// The examples of store/FORMAT.md are what the code writes, and the code reads them.
#include <gtest/gtest.h>

#include <map>

#include "store/base/posix.h"
#include "store/format/log_entry.h"
#include "store/format/manifest.h"
#include "store/format/pack.h"
#include "store/format/snapshot.h"

namespace weightfs {
namespace {

// A fenced block "```json NAME" is the JSON, broken into lines with spaces in front; "```hex NAME" is bytes, and "#"
// begins a remark.
std::map<std::string, std::string> examples() {
  auto document = posix::read_file(std::string(WEIGHTFS_SOURCE_DIR) + "/store/FORMAT.md", 1 << 20);
  EXPECT_TRUE(document.is_ok());
  std::map<std::string, std::string> found;
  std::string kind, name, content;
  std::string_view left = as_text(*document);
  while (!left.empty()) {
    auto line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    if (line.starts_with("```")) {
      if (!name.empty()) found[name] = content;
      auto space = line.find(' ');
      kind = name.empty() && space != line.npos ? line.substr(3, space - 3) : "";
      name = kind.empty() ? "" : line.substr(space + 1);
      content.clear();
    } else if (kind == "json") {
      content += line.substr(std::min(line.size(), line.find_first_not_of(' ')));
    } else if (kind == "hex") {
      for (char c : line.substr(0, line.find('#'))) {
        if (c != ' ') content += c;
      }
    }
  }
  return found;
}

Sha256 sha(char c) { return *Sha256::parse(std::string(64, c)); }
std::string id(char c) { return std::string(32, c); }
const ModelName kModel = *ModelName::parse("qwen3 wordle");

LogEntry entry(std::uint64_t number, decltype(LogEntry::body) body) {
  auto time = *parse_rfc3339("2026-12-01T13:29:05.123Z");
  return {number, id('1'), sha('2'), 32, time, kModel, std::move(body)};
}

// Three blocks of a file: the header is patched, a megabyte of bf16 has changed here and there, the rest has not.
EdgePage page() {
  EdgePage page;
  Xxh128 a, b, c;
  a.bytes.fill(std::byte{0xaa});
  b.bytes.fill(std::byte{0xbb});
  c.bytes.fill(std::byte{0xcc});
  page.blocks = {{2048, 0, a}, {1'048'576, 1, b}, {1024, 1, c}};
  page.frames.resize(3);
  page.frames[0] = {.codec = 7, .object = 0, .offset = 0, .length = 600, .digest = sha('7'), .base = {{2, 0, 2040}}};
  page.frames[1] = {.codec = 4, .object = 0, .offset = 600, .length = 8400, .digest = sha('8')};
  page.frames[1].base = {{2, 2040, 1'048'576}};
  page.frames[2] = {.codec = 0, .base = {{2, 1'050'616, 1024}}};
  return page;
}

PackIndex index() {
  auto bytes = serialize_page(page());
  PackIndex index{.object_sizes = {9191}, .files = {{}, {}, {}}};
  index.files[2].push_back({.offset = 9000,
                            .length = static_cast<std::uint32_t>(bytes.size()),
                            .digest = Sha256::of(bytes),
                            .plain_bytes = 1'051'648,
                            .base_pages = {{2, 0}}});
  return index;
}

Manifest manifest() {
  Manifest manifest{*ModelName::parse("qwen3 wordle"), *VersionName::parse("step-000101"), {}, id('6')};
  FileEntry file{.path = *FilePath::parse("model.safetensors"), .mode = 0644, .mtime_ns = 1'764'595'745'123'000'000};
  file.size = 1'051'648;
  file.pages = {Sha256::of(serialize_block_list(page().blocks))};
  FileEntry dir{.path = *FilePath::parse("extra"), .kind = FileKind::kDirectory, .mode = 0755, .mtime_ns = 0};
  FileEntry link{.path = *FilePath::parse("extra/weights"), .kind = FileKind::kSymlink, .mode = 0777, .mtime_ns = 0};
  link.target = "../model.safetensors";
  manifest.files = {dir, link, file};
  return manifest;
}

EdgeRef delta(std::uint64_t from, std::uint64_t to) {
  return {.from = NodeRef{kModel, from},
          .to = to,
          .pack = id('3'),
          .objects = 1,
          .last_size = 9191,
          .meta_offset = 9000,
          .index_offset = 9139,
          .index_digest = Sha256::of(serialize_index(index())),
          .total_bytes = 9191,
          .frames = 2};
}

PublishEntry publish() {
  PublishEntry body{.version = *VersionName::parse("step-000101")};
  auto bytes = serialize(manifest());
  body.manifest = {Sha256::of(bytes), bytes.size()};
  body.parent = NodeRef{kModel, 40};
  body.parent_version = *VersionName::parse("step-000100");
  body.edge = delta(40, 42);
  body.plain_bytes = 1'051'648;
  body.stored_bytes = body.edge.total_bytes + body.manifest.size;
  body.changed_elements = 10'431;
  body.total_elements = 525'312;
  return body;
}

Snapshot snapshot() {
  Snapshot snapshot(kModel);
  snapshot.through = 42;
  snapshot.head_digest = sha('9');
  snapshot.snapshot = 32;
  auto body = publish();
  snapshot.versions.push_back({42, id('1'), body.version, body.manifest, body.parent, body.parent_version,
                               body.plain_bytes, body.stored_bytes, body.changed_elements, body.total_elements,
                               *parse_rfc3339("2026-12-01T13:29:05.123Z"), 0});
  snapshot.edges.push_back({42, body.edge, 0});
  snapshot.holds.push_back({41, {40, *ModelName::parse("sweep-a"), id('a')}});
  snapshot.collects.push_back({39, {pack_object_key(kModel, id('b'), 0)}});
  snapshot.retired.push_back(manifest_key(kModel, sha('c')));
  return snapshot;
}

std::map<std::string, std::string> written() {
  std::map<std::string, std::string> out;
  auto text = [](const Bytes& bytes) { return std::string(as_text(bytes)); };
  auto add = [&](const LogEntry& e, const std::string& name) { out[name] = text(serialize(e)); };
  add(entry(42, publish()), "publish");
  add(entry(43, RemoveEntry{.target = 12, .version = *VersionName::parse("step-000012")}), "remove");
  add(entry(44, EdgeEntry{.edge = delta(12, 40)}), "edge");
  add(entry(45, HoldEntry{.target = 40, .child = *ModelName::parse("sweep-a"), .child_commit = id('a')}), "hold");
  CollectEntry collect{.objects = {pack_object_key(kModel, id('b'), 0)}, .edges = {12}, .finished = {39}};
  add(entry(46, collect), "collect");
  auto object = serialize_snapshot(snapshot());
  object.entry.object = snapshot_key(kModel, id('d'));
  // The digest and places in the text are made up: they would change with the version of zstd.
  object.entry.directory_digest = sha('e');
  object.entry.size = 3210;
  object.entry.directory_offset = 1200;
  add(entry(47, object.entry), "snapshot");
  add(entry(48, IgnoredEntry{.kind = "later-kind"}), "ignorable");
  out["hint"] = text(serialize_hint(48));
  out["manifest"] = text(serialize(manifest()));
  out["page"] = to_hex(serialize_page(page()));
  out["index"] = to_hex(serialize_index(index()));
  return out;
}

TEST(FormatDocumentTest, ItsExamplesAreWhatIsWritten) {
  auto documented = examples();
  for (const auto& [name, bytes] : written()) EXPECT_EQ(documented[name], bytes) << name;
}

TEST(FormatDocumentTest, ItsExamplesFitTogether) {
  auto bytes = serialize_index(index());
  auto edge = delta(40, 42);
  auto parsed = parse_index(bytes, edge);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().to_string() << ": index of " << bytes.size()
                              << " bytes after a page of " << serialize_page(page()).size();
  EXPECT_TRUE(parse_page(serialize_page(page()), frame_limits(*parsed, edge)).is_ok());
  EXPECT_EQ(parsed->files[2][0].offset + parsed->files[2][0].length, edge.index_offset);
}

// Compression may change from one release of zstd to the next, so the pages of a snapshot are compared when plain.
TEST(FormatDocumentTest, ItsSnapshotIsRead) {
  auto documented = examples();
  Snapshot read(kModel);
  read.through = 42;
  auto add = [&](const std::string& name, SnapshotPage::Table table, std::uint64_t number) {
    auto bytes = as_bytes(documented[name]);
    SnapshotPage page{.table = table, .first = number, .last = number, .records = 1, .range = {0, bytes.size()}};
    page.plain_length = bytes.size();
    page.compressed = false;
    page.digest = Sha256::of(bytes);
    auto status = parse_snapshot_page(bytes, page, read);
    EXPECT_TRUE(status.is_ok()) << name << ": " << status.to_string();
  };
  add("versions page", SnapshotPage::Table::kVersions, 42);
  add("edges page", SnapshotPage::Table::kEdges, 42);
  add("holds page", SnapshotPage::Table::kHolds, 41);
  add("collects page", SnapshotPage::Table::kCollects, 39);
  add("retired page", SnapshotPage::Table::kRetired, 0);
  SnapshotEntry entry{.through = 42, .object = snapshot_key(kModel, id('d')), .directory_offset = 1200};
  auto bytes = as_bytes(documented["directory"]);
  entry.size = entry.directory_offset + bytes.size();
  entry.directory_digest = Sha256::of(bytes);
  auto directory = parse_snapshot_directory(bytes, kModel, entry);
  ASSERT_TRUE(directory.is_ok()) << directory.status().to_string();
  EXPECT_EQ(directory->pages.size(), 2u);
  read.head_digest = directory->head.head_digest;
  read.snapshot = directory->head.snapshot;
  EXPECT_TRUE(read == snapshot());
}

}  // namespace
}  // namespace weightfs
