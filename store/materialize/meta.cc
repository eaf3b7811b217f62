#include "store/materialize/meta.h"

namespace weightfs {
namespace {

// A pack whose pages and index together are at most this long is asked for them in one request.
constexpr std::uint64_t kWholeTail = 512 << 10;

template <typename T>
constexpr int kTypeTag = 0;
template <>
constexpr int kTypeTag<Manifest> = 1;
template <>
constexpr int kTypeTag<PackIndex> = 2;
template <>
constexpr int kTypeTag<EdgePage> = 3;
template <>
constexpr int kTypeTag<BlockList> = 4;

std::uint64_t cost_of(const BlockList& list) { return list.size() * sizeof(ListedBlock) + 64; }
std::uint64_t cost_of(const EdgePage& page) {
  std::uint64_t cost = cost_of(page.blocks) + page.frames.size() * sizeof(BlockFrame);
  for (const auto& frame : page.frames) cost += frame.base.capacity() * sizeof(BaseSegment);
  return cost;
}
std::uint64_t cost_of(const PackIndex& index) {
  std::uint64_t cost = 64 + index.object_sizes.size() * 8;
  for (const auto& pages : index.files) {
    cost += sizeof(pages);
    for (const auto& page : pages) cost += sizeof(page) + page.base_pages.size() * 8;
  }
  return cost;
}
std::uint64_t cost_of(const Manifest& manifest) {
  std::uint64_t cost = 64;
  for (const auto& file : manifest.files) cost += sizeof(file) + file.path.str().size() + file.pages.size() * 32;
  return cost;
}

ObjectKey tail_object(const PathEdge& edge) {
  return pack_object_key(edge.model, edge.edge.pack, edge.edge.objects - 1);
}

}  // namespace

void run_all(WorkerPool& pool, std::size_t count, const std::function<void(std::size_t)>& job) {
  if (count == 0) return;
  Mutex mutex;
  CondVar changed;
  std::size_t left = count;
  auto run = [&](std::size_t at) {
    job(at);
    MutexLock lock(mutex);
    if (--left == 0) changed.notify_all();
  };
  for (std::size_t at = 1; at < count; at++) {
    if (!pool.post([&run, at] { run(at); })) run(at);
  }
  run(0);
  MutexLock lock(mutex);
  while (left > 0) changed.wait(mutex);
}

Meta::Meta(Bucket& bucket, Cache& cache, WorkerPool& fetch_pool, std::uint64_t memory)
    : bucket_(bucket), cache_(cache), fetch_pool_(fetch_pool), limit_(memory) {}

template <typename T>
std::shared_ptr<const T> Meta::remembered(const Sha256& digest) {
  MutexLock lock(mutex_);
  auto found = entries_.find({digest, kTypeTag<T>});
  if (found == entries_.end()) return nullptr;
  order_.splice(order_.begin(), order_, found->second.used);
  return std::static_pointer_cast<const T>(found->second.value);
}

template <typename T>
void Meta::remember(const Sha256& digest, std::shared_ptr<const T> value) {
  std::vector<std::shared_ptr<const void>> evicted;  // destroyed without the lock
  auto cost = cost_of(*value);
  MutexLock lock(mutex_);
  Key key{digest, kTypeTag<T>};
  if (entries_.contains(key)) return;
  order_.push_front(key);
  entries_[key] = Entry{std::move(value), cost, order_.begin()};
  cost_ += cost;
  while (cost_ > limit_ && order_.size() > 1) {
    auto last = entries_.find(order_.back());
    cost_ -= last->second.cost;
    evicted.push_back(std::move(last->second.value));
    entries_.erase(last);
    order_.pop_back();
  }
}

Status Meta::fetch(std::vector<Wanted>& wanted, const CallOptions& options) {
  std::vector<Status> statuses(wanted.size());
  run_all(fetch_pool_, wanted.size(), [&](std::size_t at) {
    auto& one = wanted[at];
    one.bytes.resize(one.range.length);
    statuses[at] = bucket_.get(one.key, one.range, one.bytes, options).with(one.key.str());
  });
  for (auto& status : statuses) WFS_TRY(std::move(status));
  return {};
}

ManifestPtr Meta::known_manifest(const Sha256& digest) {
  if (auto known = remembered<Manifest>(digest)) return known;
  auto bytes = cache_.get_blob(digest);
  if (!bytes) return nullptr;
  auto parsed = parse_manifest(*bytes);
  if (!parsed.is_ok()) return nullptr;
  auto manifest = std::make_shared<const Manifest>(std::move(parsed).value());
  remember<Manifest>(digest, manifest);
  return manifest;
}

Result<ManifestPtr> Meta::manifest(const ModelName& model, const ManifestRef& ref, const CallOptions& options) {
  if (auto known = known_manifest(ref.digest)) return known;
  auto key = manifest_key(model, ref.digest);
  if (ref.size == 0 || ref.size > kMaxManifest) return Status(Code::kCorrupt, key.str() + ": impossible size");
  std::vector<Wanted> wanted{{key, {0, ref.size}, {}}};
  WFS_TRY(fetch(wanted, options));
  if (Sha256::of(wanted[0].bytes) != ref.digest) return Status(Code::kCorrupt, key.str() + ": digest mismatch");
  auto manifest = std::make_shared<const Manifest>(WFS_TRY(parse_manifest(wanted[0].bytes).with(key.str())));
  cache_.put_blob(ref.digest, wanted[0].bytes);
  remember<Manifest>(ref.digest, manifest);
  return manifest;
}

Result<std::vector<IndexPtr>> Meta::indexes(const std::vector<PathEdge>& edges, const CallOptions& options) {
  std::vector<IndexPtr> result(edges.size());
  std::vector<Wanted> wanted;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < edges.size(); i++) {
    const auto& edge = edges[i].edge;
    result[i] = remembered<PackIndex>(edge.index_digest);
    if (result[i]) continue;
    if (auto bytes = cache_.get_blob(edge.index_digest)) {
      auto parsed = parse_index(*bytes, edge);
      if (parsed.is_ok()) {
        result[i] = std::make_shared<const PackIndex>(std::move(parsed).value());
        remember<PackIndex>(edge.index_digest, result[i]);
        continue;
      }
    }
    missing.push_back(i);
    auto start = edge.last_size - edge.meta_offset <= kWholeTail ? edge.meta_offset : edge.index_offset;
    wanted.push_back({tail_object(edges[i]), {start, edge.last_size - start}, {}});
  }
  WFS_TRY(fetch(wanted, options));
  for (std::size_t at = 0; at < wanted.size(); at++) {
    const auto& edge = edges[missing[at]].edge;
    const auto start = wanted[at].range.offset;
    ByteSpan tail = wanted[at].bytes;
    ByteSpan bytes = tail.subspan(edge.index_offset - start);
    const auto name = wanted[at].key.str();
    if (Sha256::of(bytes) != edge.index_digest) return Status(Code::kCorrupt, name + ": digest mismatch of the index");
    auto index = std::make_shared<const PackIndex>(WFS_TRY(parse_index(bytes, edge).with(name)));
    cache_.put_blob(edge.index_digest, bytes);
    remember<PackIndex>(edge.index_digest, index);
    if (start < edge.index_offset) {  // the pages came along
      for (const auto& pages : index->files) {
        for (const auto& page : pages) {
          ByteSpan piece = tail.subspan(page.offset - start, page.length);
          if (Sha256::of(piece) == page.digest) cache_.put_blob(page.digest, piece);
        }
      }
    }
    result[missing[at]] = std::move(index);
  }
  return result;
}

Result<Meta::Pages> Meta::pages(const std::vector<PathEdge>& edges, const std::vector<IndexPtr>& indexes,
                                const std::vector<PageKey>& keys, const CallOptions& options) {
  Pages result;
  std::vector<Wanted> wanted;
  std::vector<PageKey> missing;
  auto parse = [&](const PageKey& key, ByteSpan bytes) -> Result<PagePtr> {
    auto page = WFS_TRY(parse_page(bytes, frame_limits(*indexes[key.edge], edges[key.edge].edge))
                            .with(tail_object(edges[key.edge]).str() + ": page"));
    return std::make_shared<const EdgePage>(std::move(page));
  };
  for (const auto& key : keys) {
    if (result.contains(key)) continue;
    const auto& files = indexes[key.edge]->files;
    if (key.file >= files.size() || key.page >= files[key.file].size()) {
      return Status(Code::kCorrupt, tail_object(edges[key.edge]).str() + ": the index lacks page " +
                                        std::to_string(key.page) + " of file " + std::to_string(key.file));
    }
    const auto& ref = files[key.file][key.page];
    result[key] = remembered<EdgePage>(ref.digest);
    if (result[key]) continue;
    if (auto bytes = cache_.get_blob(ref.digest)) {
      auto page = parse(key, *bytes);
      if (page.is_ok()) {
        remember<EdgePage>(ref.digest, *page);
        result[key] = std::move(page).value();
        continue;
      }
    }
    wanted.push_back({tail_object(edges[key.edge]), {ref.offset, ref.length}, {}});
    missing.push_back(key);
  }
  WFS_TRY(fetch(wanted, options));
  for (std::size_t i = 0; i < wanted.size(); i++) {
    const auto& ref = indexes[missing[i].edge]->files[missing[i].file][missing[i].page];
    if (Sha256::of(wanted[i].bytes) != ref.digest) {
      return Status(Code::kCorrupt, wanted[i].key.str() + ": digest mismatch of a page");
    }
    auto page = WFS_TRY(parse(missing[i], wanted[i].bytes));
    cache_.put_blob(ref.digest, wanted[i].bytes);
    remember<EdgePage>(ref.digest, page);
    result[missing[i]] = std::move(page);
  }
  return result;
}

BlockListPtr Meta::known_block_list(const Sha256& digest) {
  if (auto known = remembered<BlockList>(digest)) return known;
  auto bytes = cache_.get_blob(digest);
  if (!bytes) return nullptr;
  auto parsed = parse_block_list(*bytes);
  if (!parsed.is_ok()) return nullptr;
  auto list = std::make_shared<const BlockList>(std::move(parsed).value());
  remember<BlockList>(digest, list);
  return list;
}

void Meta::keep_block_list(const Sha256& digest, const BlockList& list) {
  if (remembered<BlockList>(digest)) return;
  cache_.put_blob(digest, serialize_block_list(list));
  remember<BlockList>(digest, std::make_shared<const BlockList>(list));
}

}  // namespace weightfs
