// Metadata of versions and edges: manifests, pack indexes, pages, block lists. Each is fetched once, checked against
// the digest that names it, and kept: in memory within a bound, and by digest in the cache's index, so that it is there
// after a restart and without a network.
//
// Calls may block on the bucket. Any thread may call but those of the fetch pool.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/threads.h"
#include "store/bucket/bucket.h"
#include "store/cache/cache.h"
#include "store/format/log_entry.h"
#include "store/format/manifest.h"
#include "store/format/pack.h"

namespace weightfs {

// An edge and the model whose log announced it (its objects lie there).
struct PathEdge {
  ModelName model;
  EdgeRef edge;
};

using ManifestPtr = std::shared_ptr<const Manifest>;
using IndexPtr = std::shared_ptr<const PackIndex>;
using PagePtr = std::shared_ptr<const EdgePage>;
using BlockListPtr = std::shared_ptr<const BlockList>;

// Runs job(0) … job(count - 1) on `pool` and this thread, and waits for all.   REQUIRES: not called from a job of
// `pool`
void run_all(WorkerPool& pool, std::size_t count, const std::function<void(std::size_t)>& job);

class Meta {
 public:
  // All outlive this. `memory` bounds the bytes of parsed metadata kept.
  Meta(Bucket& bucket, Cache& cache, WorkerPool& fetch_pool, std::uint64_t memory);

  Result<ManifestPtr> manifest(const ModelName& model, const ManifestRef& ref, const CallOptions& options = {});
  // Fetches what is missing of several edges at once: one round trip.
  Result<std::vector<IndexPtr>> indexes(const std::vector<PathEdge>& edges, const CallOptions& options = {});

  struct PageKey {
    std::size_t edge = 0;    // index in `edges`
    std::uint32_t file = 0;  // of the target manifest
    std::uint32_t page = 0;
    friend auto operator<=>(const PageKey&, const PageKey&) = default;
  };
  using Pages = std::map<PageKey, PagePtr>;
  // Fetches what is missing of several pages at once: one round trip.
  Result<Pages> pages(const std::vector<PathEdge>& edges, const std::vector<IndexPtr>& indexes,
                      const std::vector<PageKey>& keys, const CallOptions& options = {});

  // What is here already, by the digest in the manifest or the log; null: not here.
  BlockListPtr known_block_list(const Sha256& digest);
  ManifestPtr known_manifest(const Sha256& digest);
  void keep_block_list(const Sha256& digest, const BlockList& list);

 private:
  struct Wanted {
    ObjectKey key;
    ByteRange range;
    Bytes bytes;
  };
  Status fetch(std::vector<Wanted>& wanted, const CallOptions& options);

  template <typename T>
  std::shared_ptr<const T> remembered(const Sha256& digest) EXCLUDES(mutex_);
  template <typename T>
  void remember(const Sha256& digest, std::shared_ptr<const T> value) EXCLUDES(mutex_);

  Bucket& bucket_;
  Cache& cache_;
  WorkerPool& fetch_pool_;
  const std::uint64_t limit_;

  using Key = std::pair<Sha256, int>;  // the int tells types apart
  struct Entry {
    std::shared_ptr<const void> value;
    std::uint64_t cost = 0;
    std::list<Key>::iterator used;
  };
  Mutex mutex_;
  std::map<Key, Entry> entries_ GUARDED_BY(mutex_);
  std::list<Key> order_ GUARDED_BY(mutex_);  // most recently used first
  std::uint64_t cost_ GUARDED_BY(mutex_) = 0;
};

}  // namespace weightfs
