// The objects of one edge, read from the bucket and checked frame by frame. Part of verify.
#pragma once

#include <functional>

#include "store/materialize/versions.h"
#include "store/verify.h"

namespace weightfs {

// What the parts of a walk add to. Any thread may call.
class Findings {
 public:
  Findings(Bucket& bucket, const Progress& progress, const CallOptions& options)
      : bucket_(bucket), progress_(progress), options_(options) {}

  // Reads a range of an object. Nothing: it is damaged (noted), or the walk cannot go on (stopped() tells).
  std::optional<Bytes> read(const ObjectKey& key, ByteRange range) EXCLUDES(mutex_);
  std::optional<Bytes> read_all(const ObjectKey& key, std::uint64_t limit) EXCLUDES(mutex_);
  void damage(const std::string& object, const std::string& problem) EXCLUDES(mutex_);
  // Takes an error: damage of `object`, or the end of the walk.
  void take(const std::string& object, const Status& status) EXCLUDES(mutex_);
  void expect_bytes(std::uint64_t more) EXCLUDES(mutex_);  // for the progress
  void add_plain(std::uint64_t bytes) EXCLUDES(mutex_);
  bool stopped() const EXCLUDES(mutex_);
  const CallOptions& options() const { return options_; }

  // REQUIRES: nothing else uses this any more
  Result<VerifyReport> finish(VerifyReport report) EXCLUDES(mutex_);

 private:
  std::optional<Bytes> note(const ObjectKey& key, Result<Bytes> bytes) EXCLUDES(mutex_);

  Bucket& bucket_;
  const Progress& progress_;
  const CallOptions& options_;
  mutable Mutex mutex_;
  Status stopped_ GUARDED_BY(mutex_);
  std::vector<Damage> damaged_ GUARDED_BY(mutex_);
  std::set<std::string> objects_ GUARDED_BY(mutex_);
  std::uint64_t bytes_ GUARDED_BY(mutex_) = 0, total_ GUARDED_BY(mutex_) = 0, plain_ GUARDED_BY(mutex_) = 0;
};

// Checks `edge`. `target`: the manifest of the version it builds, null where that is not kept. `base`: set for a deep
// check of an edge from another version. Work goes to `pool`; this thread waits.
void verify_edge(const PathEdge& edge, const ManifestPtr& target, Versions* versions_for_deep, WorkerPool& pool,
                 Findings& findings);

}  // namespace weightfs
