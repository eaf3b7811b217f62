// Versions as the library reads them: opening one (its manifest), opening its files, and finding paths to it through
// the logs.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>

#include "store/log/model_logs.h"
#include "store/materialize/version_file.h"

namespace weightfs {

class Versions final : public PathSource, public NextFiles {
 public:
  struct Options {
    std::uint64_t memory = std::uint64_t{512} << 20;
    std::size_t fetch_threads = 24;
    std::size_t decode_threads = 2;
    ReadPolicy reads;
  };
  // All outlive this.
  Versions(Bucket& bucket, Cache& cache, ModelLogs& logs, Clock& clock, Options options);
  ~Versions() override;
  void stop();

  // Blocking. kNotFound: no such commit in the log as it is known (refresh it first).
  Result<VersionPtr> open(const NodeRef& node, const CallOptions& options) EXCLUDES(mutex_);
  VersionPtr opened(const NodeRef& node) EXCLUDES(mutex_);
  // Blocking. One object per file while anybody has it open. kInvalid: not a regular file.
  Result<std::shared_ptr<VersionFile>> open_file(const VersionPtr& version, std::uint32_t file,
                                                 const CallOptions& options) EXCLUDES(mutex_);
  // Blocking. The block map of a file, without opening it.
  Result<FileMapPtr> file_map(const VersionPtr& version, std::uint32_t file, const CallOptions& options);

  Meta& meta() { return meta_; }
  Materializer& materializer() { return materializer_; }
  WorkerPool& fetch_pool() { return fetch_pool_; }

  // NextFiles
  void reader_leaves(const VersionPtr& version, std::uint32_t file, std::uint64_t trust, std::uint64_t window) override;

  // PathSource
  Result<std::vector<PathEdge>> path(const NodeRef& target, const std::set<NodeRef>& sources) override;
  std::vector<ModelName> related_models(const ModelName& model) override;
  Status refresh(const NodeRef& target, const CallOptions& options) override;
  std::optional<Sha256> manifest_digest(const NodeRef& node) override;

 private:
  Cache& cache_;
  ModelLogs& logs_;
  Clock& clock_;
  const Options options_;
  WorkerPool fetch_pool_;
  Meta meta_;
  Materializer materializer_;
  WorkerPool next_pool_;  // opens what a reader comes to next
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();

  Mutex mutex_;
  std::map<NodeRef, std::weak_ptr<const Version>> versions_ GUARDED_BY(mutex_);
  std::deque<VersionPtr> recent_ GUARDED_BY(mutex_);  // kept open for a while
  std::map<FileId, std::weak_ptr<VersionFile>> files_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<VersionFile>> next_ GUARDED_BY(mutex_);  // expected to be read soon, so kept open
};

}  // namespace weightfs
