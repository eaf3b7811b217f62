#include "store/materialize/versions.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/materialize/shards.h"

namespace weightfs {
namespace {

constexpr std::size_t kRecentVersions = 64;
constexpr std::size_t kNextFiles = 4;
constexpr auto kNextPatience = std::chrono::seconds(30);

// Of what the daemon may hold, the bytes of frames and blocks under way. The rest is for the program itself, answers
// that are being given, metadata, and what the allocator keeps.
std::uint64_t under_way(std::uint64_t memory) {
  constexpr std::uint64_t kProgram = 32 << 20, kLeast = 8 << 20;
  return std::max(kLeast, (memory - std::min(memory, kProgram)) * 3 / 8);
}

std::string describe(const NodeRef& node) { return node.model.str() + " commit " + std::to_string(node.number); }

}  // namespace

Versions::Versions(Bucket& bucket, Cache& cache, ModelLogs& logs, Clock& clock, Options options)
    : cache_(cache),
      logs_(logs),
      clock_(clock),
      options_(options),
      fetch_pool_("fetch", options.fetch_threads),
      meta_(bucket, cache, fetch_pool_, options.memory / 8),
      materializer_(bucket, cache, meta_, *this, fetch_pool_,
                    {.memory = under_way(options.memory), .decode_threads = options.decode_threads}),
      next_pool_("next", 1) {}

Versions::~Versions() { stop(); }

void Versions::stop() {
  cancel_->cancel();
  next_pool_.stop();
  materializer_.stop();
  std::deque<std::shared_ptr<VersionFile>> dropped;
  MutexLock lock(mutex_);
  dropped.swap(next_);
}

void Versions::reader_leaves(const VersionPtr& version, std::uint32_t file, std::uint64_t trust, std::uint64_t window) {
  next_pool_.post([this, version, file, trust, window] {
    CallOptions options{kNextPatience, cancel_};
    auto next = next_shard(*this, version, file, options);
    if (!next) return;
    auto opened = open_file(version, *next, options);
    if (!opened.is_ok()) {
      spdlog::debug("read-ahead: {}", opened.status().message());
      return;
    }
    (*opened)->expect_reader(trust, window);
    std::shared_ptr<VersionFile> dropped;
    MutexLock lock(mutex_);
    next_.push_back(std::move(opened).value());
    if (next_.size() > kNextFiles) {
      dropped = std::move(next_.front());
      next_.pop_front();
    }
  });
}

VersionPtr Versions::opened(const NodeRef& node) {
  MutexLock lock(mutex_);
  auto found = versions_.find(node);
  return found == versions_.end() ? nullptr : found->second.lock();
}

Result<VersionPtr> Versions::open(const NodeRef& node, const CallOptions& options) {
  if (auto known = opened(node)) return known;
  auto state = logs_.get(node.model).state();
  const auto* record = state->version(node.number);
  if (record == nullptr) return Status(Code::kNotFound, describe(node) + ": no such version");
  auto manifest =
      WFS_TRY(meta_.manifest(node.model, record->manifest, options).with(node.model.str() + "/" + record->name.str()));
  if (manifest->model != node.model || manifest->version != record->name) {
    return Status(Code::kCorrupt, manifest_key(node.model, record->manifest.digest).str() + ": is of " +
                                      manifest->model.str() + "/" + manifest->version.str() + ", not of " +
                                      node.model.str() + "/" + record->name.str());
  }
  auto version = std::make_shared<const Version>(node, *record, *manifest);
  std::deque<VersionPtr> dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  auto& entry = versions_[node];
  if (auto other = entry.lock()) return other;
  entry = version;
  recent_.push_back(version);
  if (recent_.size() > kRecentVersions) {
    dropped.push_back(std::move(recent_.front()));
    recent_.pop_front();
    std::erase_if(versions_, [](const auto& one) { return one.second.expired(); });
  }
  return version;
}

Result<FileMapPtr> Versions::file_map(const VersionPtr& version, std::uint32_t file, const CallOptions& options) {
  const auto& manifest = version->manifest();
  if (file >= manifest.files.size() || manifest.files[file].kind != FileKind::kFile) {
    return Status(Code::kInvalid, describe(version->node()) + ": entry " + std::to_string(file) + " is not a file");
  }
  auto map = materializer_.planner().file_map(version->node(), manifest, file, options);
  if (map.code() == Code::kNotFound || map.code() == Code::kCorrupt) {
    // gc may have taken the edge that the log had named: look again.
    WFS_TRY(refresh(version->node(), options));
    map = materializer_.planner().file_map(version->node(), manifest, file, options);
  }
  return std::move(map).with(version->node().model.str() + "/" + version->record().name.str() + "/" +
                             manifest.files[file].path.str());
}

Result<std::shared_ptr<VersionFile>> Versions::open_file(const VersionPtr& version, std::uint32_t file,
                                                         const CallOptions& options) {
  const auto& node = version->node();
  FileId id{node.model.str(), node.number, file};
  {
    MutexLock lock(mutex_);
    auto found = files_.find(id);
    if (found != files_.end()) {
      if (auto known = found->second.lock()) return known;
    }
  }
  auto map = WFS_TRY(file_map(version, file, options));
  auto target = std::make_shared<TargetFile>(TargetFile{
      node, ManifestPtr(version, &version->manifest()), file,
      node.model.str() + "/" + version->record().name.str() + "/" + version->manifest().files[file].path.str(), map,
      nullptr});
  if (!map->blocks.empty()) {
    auto sizes = map->sizes();
    auto flat = cache_.open_file(id, sizes);
    if (flat.is_ok()) {
      target->flat = std::move(flat).value();
    } else {
      spdlog::warn("cache: {}: {}: reading from memory", target->name, flat.status().to_string());
    }
  }
  auto opened = std::make_shared<VersionFile>(materializer_, cache_, clock_, *this, version, target, options_.reads);
  MutexLock lock(mutex_);
  auto& entry = files_[id];
  if (auto other = entry.lock()) return other;
  entry = opened;
  if (files_.size() % 1024 == 0) std::erase_if(files_, [](const auto& one) { return one.second.expired(); });
  return opened;
}

Result<std::vector<PathEdge>> Versions::path(const NodeRef& target, const std::set<NodeRef>& sources) {
  auto found = cheapest_path(target, sources, logs_.known());
  if (!found || found->steps.empty()) {
    // Its parent may be in a model whose log was never read here.
    WFS_TRY(refresh(target, {}));
    found = cheapest_path(target, sources, logs_.known());
  }
  if (!found || found->steps.empty())
    return Status(Code::kNotFound, describe(target) + ": no edges in the log build it");
  std::vector<PathEdge> edges;
  for (auto step = found->steps.rbegin(); step != found->steps.rend(); ++step)
    edges.push_back({step->model, step->edge});
  return edges;
}

std::vector<ModelName> Versions::related_models(const ModelName& model) {
  std::set<ModelName> seen{model};
  std::vector<ModelName> all{model};
  auto known = logs_.known();
  for (std::size_t i = 0; i < all.size(); i++) {
    auto state = known(all[i]);
    if (!state) continue;
    for (const auto& base : bases_of(*state)) {
      if (seen.insert(base).second) all.push_back(base);
    }
  }
  return all;
}

Status Versions::refresh(const NodeRef& target, const CallOptions& options) {
  return logs_.refresh_with_bases(target.model, options);
}

std::optional<Sha256> Versions::manifest_digest(const NodeRef& node) {
  auto state = logs_.get(node.model).state();
  const auto* record = state->version(node.number);
  if (record == nullptr) return std::nullopt;
  return record->manifest.digest;
}

}  // namespace weightfs
