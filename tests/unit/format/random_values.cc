#include "random_values.h"

namespace weightfs::testing {

LogEntry Random::entry() {
  auto model = name<ModelName>();
  auto number = 1 + sized(std::uint64_t{1} << 60);
  bool first = number == 1;
  auto earlier = [&] { return between(1, number - 1); };
  decltype(LogEntry::body) body = IgnoredEntry{"later-kind"};
  switch (first ? 0 : below(7)) {
    case 0: {
      PublishEntry publish{.version = name<VersionName>()};
      publish.manifest = {digest<Sha256>(), between(1, kMaxManifest)};
      publish.edge = edge(number);
      if (chance(2)) {
        publish.parent = node(model, number);
        publish.parent_version = name<VersionName>();
        if (chance(2)) publish.edge.from = publish.parent;
      }
      publish.plain_bytes = sized(std::uint64_t{1} << 62);
      publish.stored_bytes = sized(std::uint64_t{1} << 62);
      publish.total_elements = sized(std::uint64_t{1} << 62);
      publish.changed_elements = below(publish.total_elements + 1);
      body = publish;
      break;
    }
    case 1:
      body = RemoveEntry{.target = earlier(), .version = name<VersionName>()};
      break;
    case 2: {
      EdgeEntry skip{.edge = edge(earlier())};
      if (auto from = node(model, number); from != NodeRef{model, skip.edge.to}) skip.edge.from = from;
      body = skip;
      break;
    }
    case 3: {
      auto child = name<ModelName>();
      while (child == model) child = name<ModelName>();
      body = HoldEntry{.target = earlier(), .child = child, .child_commit = id()};
      break;
    }
    case 4: {
      CollectEntry collect;
      for (auto n = below(4); n > 0; n--) collect.objects.push_back(pack_object_key(model, id(), 0));
      for (auto n = below(4); n > 0; n--) collect.edges.push_back(earlier());
      for (auto n = below(3); n > 0; n--) collect.finished.push_back(earlier());
      body = collect;
      break;
    }
    case 5: {
      SnapshotEntry snapshot{.through = earlier(), .object = snapshot_key(model, id())};
      snapshot.size = 1 + sized(std::uint64_t{1} << 60);
      snapshot.directory_offset = below(snapshot.size);
      snapshot.directory_digest = digest<Sha256>();
      body = snapshot;
      break;
    }
    default:
      break;
  }
  auto previous = first ? std::nullopt : std::optional(digest<Sha256>());
  WallTime time(std::chrono::milliseconds(sized(std::uint64_t{4'000'000'000'000})));
  return LogEntry{number, id(), previous, below(number), time, model, body};
}

Manifest Random::manifest() {
  Manifest manifest{name<ModelName>(), name<VersionName>(), {}, chance(2) ? id() : std::string()};
  std::set<std::string> directories, others;
  for (auto n = below(8); n > 0; n--) {
    auto path = name<VersionName>().str();
    if (!directories.empty() && chance(2)) path = *directories.begin() + "/" + path;
    if (chance(3)) {
      directories.insert(path);
    } else {
      others.insert(path);
    }
  }
  auto all = others;
  all.insert(directories.begin(), directories.end());
  for (const auto& path : all) {
    FileEntry file{.path = *FilePath::parse(path)};
    file.mode = static_cast<std::uint32_t>(below(010000));
    file.mtime_ns = static_cast<std::int64_t>(sized(std::uint64_t{1} << 62)) * (chance(4) ? -1 : 1);
    if (directories.contains(path)) {
      file.kind = FileKind::kDirectory;
    } else if (chance(3)) {
      file.kind = FileKind::kSymlink;
      file.target = "../" + name<ModelName>().str();
    } else {
      file.size = chance(4) ? 0 : sized(std::uint64_t{1} << 34);
      for (std::uint64_t at = 0; at < file.size; at += kPageBlocks * codec::kMaxBlock) {
        file.pages.push_back(digest<Sha256>());
      }
    }
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

BlockList Random::block_list(std::size_t blocks) {
  BlockList list(blocks);
  for (auto& block : list) {
    block.length = static_cast<std::uint32_t>(chance(2) ? codec::kMaxBlock : 1 + below(codec::kMaxBlock));
    block.type = static_cast<std::uint8_t>(chance(8) ? below(256) : below(codec::kElementTypes));
    block.digest = digest<Xxh128>();
  }
  return list;
}

std::vector<BaseSegment> Random::base(std::uint32_t length, BaseSegment& last) {
  if (last.length != 0 && chance(2)) {
    last = {last.file, last.offset + last.length, length};
    return {last};
  }
  std::vector<BaseSegment> base;
  while (length > 0) {
    auto piece = static_cast<std::uint32_t>(chance(2) ? length : between(1, length));
    if (chance(4)) {
      base.push_back({BaseSegment::kNone, 0, piece});
    } else {
      last = {static_cast<std::uint32_t>(sized(kMaxFiles - 1)), sized(std::uint64_t{1} << 45), piece};
      base.push_back(last);
    }
    length -= piece;
  }
  return base;
}

BlockFrame Random::frame(const ListedBlock& block, std::span<const std::uint64_t> limits, BaseSegment& last,
                         BlockFrame& last_frame) {
  using codec::CodecId;
  BlockFrame frame;
  frame.codec = static_cast<std::uint8_t>(chance(8) ? between(9, 255) : below(9));
  auto id = static_cast<CodecId>(frame.codec);
  bool unknown = frame.codec > 8;
  bool full = id == CodecId::kRaw || id == CodecId::kZstd || id == CodecId::kPlanes || id == CodecId::kZero;
  if (!full && !(unknown && chance(2))) frame.base = base(block.length, last);
  if (id == CodecId::kZstdPatch && chance(2)) {
    last = {7, 9, static_cast<std::uint32_t>(between(1, codec::kMaxBlock))};
    frame.base = {last};
  }
  if (id == CodecId::kSame || id == CodecId::kZero || (unknown && chance(2))) return frame;
  frame.length = static_cast<std::uint32_t>(id == CodecId::kRaw ? block.length : 1 + sized(codec::kMaxFrame - 1));
  frame.object = last_frame.object;
  frame.offset = last_frame.offset + last_frame.length;
  if (chance(4) || frame.offset + frame.length > limits[frame.object]) {
    frame.object = static_cast<std::uint32_t>(below(limits.size()));
    frame.offset = below(limits[frame.object] - frame.length + 1);
  }
  frame.digest = digest<Sha256>();
  last_frame = frame;
  return frame;
}

EdgePage Random::page(std::size_t blocks, std::span<const std::uint64_t> limits) {
  EdgePage page;
  page.blocks = block_list(blocks);
  BaseSegment last;
  BlockFrame last_frame;
  for (const auto& block : page.blocks) page.frames.push_back(frame(block, limits, last, last_frame));
  return page;
}

PackIndex Random::index(const EdgeRef& edge) {
  PackIndex index;
  auto each = edge.objects == 1 ? 0 : (edge.total_bytes - edge.last_size) / (edge.objects - 1);
  index.object_sizes.assign(edge.objects - 1, each);
  index.object_sizes.push_back(edge.last_size);
  index.files.resize(below(5));
  for (auto& pages : index.files) {
    pages.resize(edge.index_offset > edge.meta_offset ? below(4) : 0);
    for (auto& page : pages) {
      auto space = edge.index_offset - edge.meta_offset;
      page.length = static_cast<std::uint32_t>(between(1, std::min(space, kMaxPage)));
      page.offset = edge.meta_offset + below(space - page.length + 1);
      page.plain_bytes = between(1, kPageBlocks * codec::kMaxBlock);
      page.digest = digest<Sha256>();
      std::set<std::pair<std::uint32_t, std::uint32_t>> bases;
      for (auto n = edge.from ? below(6) : 0; n > 0; n--) bases.emplace(sized(5), sized(1'000'000));
      page.base_pages.assign(bases.begin(), bases.end());
    }
  }
  return index;
}

Snapshot Random::snapshot(std::size_t records) {
  Snapshot snapshot(name<ModelName>());
  snapshot.through = 10 * records + 10;
  snapshot.head_digest = digest<Sha256>();
  snapshot.snapshot = below(snapshot.through);
  auto later = [&](std::uint64_t number) { return chance(3) ? between(number + 1, snapshot.through) : 0; };
  std::set<ObjectKey> keys;
  for (std::uint64_t number = 1; number <= 10 * records; number += between(1, 20)) {
    VersionRecord version{.number = number, .id = id(), .name = name<VersionName>()};
    version.manifest = {digest<Sha256>(), between(1, kMaxManifest)};
    if (chance(2)) {
      version.parent = node(snapshot.model, number);
      version.parent_version = name<VersionName>();
    }
    version.plain_bytes = sized(std::uint64_t{1} << 50);
    version.time = WallTime(std::chrono::milliseconds(sized(4'000'000'000'000)));
    version.removed = later(number);
    snapshot.versions.push_back(std::move(version));
    EdgeRecord edge_record{.entry = number, .edge = edge(number)};
    if (chance(2)) edge_record.edge.from = node(snapshot.model, number);
    edge_record.collected = later(number);
    snapshot.edges.push_back(std::move(edge_record));
    if (number > 1 && chance(4)) snapshot.holds.push_back({number, {between(1, number - 1), name<ModelName>(), id()}});
    if (chance(4)) snapshot.collects.push_back({number, {pack_object_key(snapshot.model, id(), 1)}});
    if (chance(4)) keys.insert(manifest_key(snapshot.model, digest<Sha256>()));
  }
  snapshot.retired.assign(keys.begin(), keys.end());
  return snapshot;
}

}  // namespace weightfs::testing
