// Makes skip edges and full edges in the background and announces them in the log. Crash-safe: until its log entry is
// there an edge is garbage that gc collects; lost or late edges do no harm.
#pragma once

#include <set>

#include "store/base/threads.h"
#include "store/materialize/versions.h"
#include "store/publish/compaction_policy.h"

namespace weightfs {

class Compactor {
 public:
  // All outlive this.
  Compactor(Bucket& bucket, Cache& cache, ModelLogs& logs, Versions& versions, std::size_t threads,
            std::uint64_t memory);
  void stop();

  struct Options {
    CompactionRules rules;
    bool only_cached = false;            // only edges whose ends are whole in the cache: nothing is fetched for it
    std::uint64_t bytes_per_second = 0;  // of plain bytes encoded; 0: no limit
    std::uint64_t max_edges = 0;         // 0: until nothing is wanted
  };
  // Blocking; not from a job of its pools. `step` (may be null) is told of each edge before it is made. Edges that were
  // no gain are remembered in the cache and not tried again.
  Result<CompactResult> run(const ModelName& model, const Options& options,
                            const std::function<void(const WantedEdge&)>& step, const CallOptions& call);

 private:
  Result<std::optional<EdgeRef>> make(const ModelName& model, const WantedEdge& wanted, const Options& options,
                                      const CallOptions& call);
  std::set<std::pair<std::uint64_t, std::uint64_t>> load_declined(const ModelName& model);
  void save_declined(const ModelName& model, const std::set<std::pair<std::uint64_t, std::uint64_t>>& declined);

  Bucket& bucket_;
  Cache& cache_;
  ModelLogs& logs_;
  Versions& versions_;
  const std::uint64_t window_;
  WorkerPool encode_pool_;
  WorkerPool upload_pool_;
};

}  // namespace weightfs
