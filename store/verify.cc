#include "store/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "store/log/model_logs.h"
#include "store/log/state_snapshot.h"
#include "store/verify_edge.h"

namespace weightfs {
namespace {

constexpr std::size_t kThreads = 8;
constexpr std::uint64_t kLogEntriesAtOnce = 256;

class Walk {
 public:
  Walk(Store& store, const VerifyScope& scope, const Progress& progress, const CallOptions& options)
      : store_(store), scope_(scope), options_(options), findings_(store.bucket(), progress, options_) {}

  Result<VerifyReport> run() {
    std::vector<ModelName> models;
    if (scope_.model) {
      models.push_back(*scope_.model);
    } else {
      models = WFS_TRY(store_.refresh_models(options_));
    }
    std::sort(models.begin(), models.end());
    for (const ModelName& model : models) {
      auto status = one_model(model);
      if (status.code() == Code::kNotFound && !scope_.model && store_.logs().is_empty(model))
        continue;  // its first version is on its way
      WFS_TRY(std::move(status));
      if (findings_.stopped()) break;
    }
    return findings_.finish(report_);
  }

 private:
  Status one_model(const ModelName& model) {
    Status refreshed = store_.logs().refresh_with_bases(model, options_);
    ModelStatePtr state = store_.logs().get(model).state();
    if (!refreshed && (refreshed.code() != Code::kCorrupt || state->head == 0)) {
      if (refreshed.code() == Code::kCorrupt) findings_.take(log_entry_key(model, state->head + 1).str(), refreshed);
      return refreshed.code() == Code::kCorrupt ? Status() : refreshed;
    }
    report_.models++;
    if (state->broken) findings_.take(log_entry_key(model, state->head + 1).str(), *state->broken);

    std::vector<const VersionRecord*> versions = state->live_versions();
    if (!scope_.version.empty()) {
      const VersionRecord* one =
          scope_.version == "latest" ? state->latest() : state->live(WFS_TRY(VersionName::parse(scope_.version)));
      if (one == nullptr) return Status(Code::kNotFound, model.str() + "/" + scope_.version + ": no such version");
      versions = {one};
    } else {
      check_log(model, *state);
    }
    report_.versions += versions.size();
    std::vector<PathEdge> edges = edges_of(model, *state, versions);
    for (const PathEdge& edge : edges) findings_.expect_bytes(edge.edge.total_bytes);
    Manifests manifests;
    for (const auto* version : versions) check_manifest(manifests, model, version);
    // Steps between may be versions that were removed, or of other models: gc keeps their manifests, too.
    for (const NodeRef& node : steps_) {
      ModelStatePtr other = store_.logs().get(node.model).state();
      check_manifest(manifests, node.model, other->version(node.number));
    }
    for (const PathEdge& edge : edges) {
      if (findings_.stopped()) break;
      auto target = manifests.find({edge.model, edge.edge.to});
      verify_edge(edge, target == manifests.end() ? nullptr : target->second,
                  scope_.deep ? &store_.versions() : nullptr, pool_, findings_);
      report_.edges++;
    }
    return {};
  }

  // Entries 1 … head: each parses, has the right number, and the digest of the one before it.
  void check_log(const ModelName& model, const ModelState& state) {
    std::optional<Sha256> before;
    for (std::uint64_t first = 1; first <= state.head && !findings_.stopped(); first += kLogEntriesAtOnce) {
      auto count = static_cast<std::size_t>(std::min(kLogEntriesAtOnce, state.head + 1 - first));
      std::vector<std::optional<Bytes>> entries(count);
      run_all(pool_, count,
              [&](std::size_t i) { entries[i] = findings_.read_all(log_entry_key(model, first + i), kMaxLogEntry); });
      for (std::size_t i = 0; i < count; i++) before = check_entry(model, state, first + i, entries[i], before);
    }
  }

  // The entry's digest, where it could be read.
  std::optional<Sha256> check_entry(const ModelName& model, const ModelState& state, std::uint64_t number,
                                    const std::optional<Bytes>& bytes, const std::optional<Sha256>& before) {
    if (!bytes) return std::nullopt;
    std::string key = log_entry_key(model, number).str();
    auto entry = parse_log_entry(*bytes, model, number);
    if (!entry) {
      findings_.take(key, entry.status());
    } else if (number > 1 && before && entry->previous != before) {
      findings_.damage(key, "does not follow the entry before it");
    } else if (number == state.snapshot) {
      if (const auto* snapshot = std::get_if<SnapshotEntry>(&entry->body)) check_snapshot(model, *snapshot);
    }
    return Sha256::of(*bytes);
  }

  void check_snapshot(const ModelName& model, const SnapshotEntry& entry) {
    auto snapshot = read_snapshot(store_.bucket(), model, entry, options_);
    if (!snapshot) findings_.take(entry.object.str(), snapshot.status());
  }

  using Manifests = std::map<NodeRef, ManifestPtr>;
  void check_manifest(Manifests& manifests, const ModelName& model, const VersionRecord* version) {
    if (version == nullptr) return;
    auto [entry, is_new] = manifests.try_emplace({model, version->number});
    if (is_new) entry->second = read_manifest(model, *version);
  }

  ManifestPtr read_manifest(const ModelName& model, const VersionRecord& version) {
    ObjectKey key = manifest_key(model, version.manifest.digest);
    auto bytes = findings_.read_all(key, kMaxManifest);
    if (!bytes) return nullptr;
    if (Sha256::of(*bytes) != version.manifest.digest) {
      findings_.damage(key.str(), "digest mismatch");
      return nullptr;
    }
    auto manifest = parse_manifest(*bytes);
    if (manifest) return std::make_shared<const Manifest>(std::move(manifest).value());
    findings_.take(key.str(), manifest.status());
    return nullptr;
  }

  // The edges that a reader of these versions may use: of a whole model all that are not collected; of one version the
  // cheapest path from nothing and what leads to it from its live parent. By number, so that deep decoding finds the
  // base of the next in the cache.
  std::vector<PathEdge> edges_of(const ModelName& model, const ModelState& state,
                                 const std::vector<const VersionRecord*>& versions) {
    PathTree tree({model}, store_.logs().known());
    std::vector<PathEdge> edges;
    std::set<std::string> seen;
    steps_.clear();
    auto add = [&](const ModelName& of, const EdgeRef& edge) {
      if (seen.insert(of.str() + "/" + edge.pack).second) edges.push_back({of, edge});
    };
    for (const auto* version : versions) {
      auto path = tree.path({model, version->number});
      if (!path) {
        findings_.damage(model.str() + "/" + version->name.str(), "no path of edges builds it");
        continue;
      }
      for (const PathStep& step : path->steps) {
        add(step.model, step.edge);
        steps_.insert(step.to());
      }
    }
    for (const EdgeRecord& edge : state.edges) {
      bool wanted = scope_.version.empty() || edge.edge.to == versions.front()->number;
      if (edge.collected == 0 && wanted) add(model, edge.edge);
    }
    std::sort(edges.begin(), edges.end(), [](const PathEdge& a, const PathEdge& b) {
      return std::tie(a.model, a.edge.to, a.edge.from) < std::tie(b.model, b.edge.to, b.edge.from);
    });
    return edges;
  }

  Store& store_;
  const VerifyScope& scope_;
  const CallOptions options_;
  Findings findings_;
  VerifyReport report_;
  std::set<NodeRef> steps_;  // versions on the paths
  WorkerPool pool_{"verify", kThreads};
};

// One file of the cache, block by block.
void check_cached_file(const LocalFile& local, const std::string& name, Findings& findings) {
  Bytes bytes;
  for (std::size_t block = 0; block < local.map->blocks.size() && !findings.stopped(); block++) {
    if (local.flat->presence(block) == FlatFile::Presence::kAbsent) continue;
    ByteRange range = local.map->range(block);
    bytes.resize(range.length);
    Status read = local.flat->read(range.offset, bytes);
    if (read && Xxh128::of(bytes) == local.map->blocks[block].digest) {
      local.flat->verified(block, range.length);
      findings.add_plain(range.length);
      continue;
    }
    local.flat->damaged(block, range.length);
    findings.damage("cache: " + name, fmt::format("block {}: {}; dropped, and fetched again when it is wanted", block,
                                                  read ? "digest mismatch" : read.message()));
  }
}

}  // namespace

Result<VerifyReport> verify(Store& store, const VerifyScope& scope, const Progress& progress,
                            const CallOptions& options) {
  return Walk(store, scope, progress, options).run();
}

Result<VerifyReport> verify_cache(Store& store, const VerifyScope& scope, const Progress& progress,
                                  const CallOptions& options) {
  Findings findings(store.bucket(), progress, options);
  LocalFiles locals(store.cache(), store.versions().meta());
  VerifyReport report;
  for (const ModelName& model : scope.model ? std::vector{*scope.model} : store.models()) {
    ModelStatePtr state = store.model(model);
    if (!state) {
      // Not asked for yet. Without the bucket what is remembered of it is shown then.
      store.refresh_model(model, options).status().ignore("a model that nobody knows has no files to check");
      state = store.model(model);
    }
    if (!state) continue;
    for (const VersionRecord* version : state->live_versions()) {
      if (findings.stopped()) break;
      const VersionRecord* only = scope.version == "latest" ? state->latest() : nullptr;
      bool in_scope = scope.version.empty() || version == only || version->name.str() == scope.version;
      if (!in_scope || store.cache().cached_bytes(model.str(), version->number) == 0) continue;
      // Its manifest is in the cache with its blocks; where it is not, nothing of the version can be used.
      ManifestPtr manifest = store.versions().meta().known_manifest(version->manifest.digest);
      if (!manifest) continue;
      report.versions++;
      for (std::uint32_t file = 0; file < manifest->files.size(); file++) {
        LocalFile local = locals.find({model, version->number}, file, version->manifest.digest);
        std::string name = model.str() + "/" + version->name.str() + "/" + manifest->files[file].path.str();
        if (local.map && local.flat) check_cached_file(local, name, findings);
      }
    }
  }
  return findings.finish(std::move(report));
}

}  // namespace weightfs
