// A directory becomes a version: scan, diff against the parent, encode, upload, commit, and (for a draft) become the
// materialized copy.
#pragma once

#include <string>

#include "store/base/timer.h"
#include "store/materialize/versions.h"
#include "store/publish/source_tree.h"
#include "store/publish/stage.h"

namespace weightfs {

struct PublishJob {
  std::string source_dir;
  ModelName model;
  VersionName version;
  ParentChoice parent;
  std::string commit_id;  // random_id(), kept by the caller: the same job may be run again after a failure or a restart
  std::string spool_dir;
  // Whether a copy of the files stays in the cache, if it fits, as the base of the next version. A draft's files are
  // moved there instead, by take_over().
  bool keep_copy = false;
  std::shared_ptr<Stage> stage;  // of the draft: what was uploaded behind its writers; may be null
  // Called when the log has been read and does not have commit_id.
  std::function<void()> not_committed;
  // Called right before the first request that can make the version exist. False: give up (kInterrupted).
  std::function<bool()> before_commit;
  // Publisher's own: what comes is work on the local disk, however long it takes.
  std::function<void(bool)> local_work;
  std::function<void()> moved;  // and this: it gets on
};

// Any thread may call; runs of several jobs share the pools.
class Publisher {
 public:
  // All outlive this.
  Publisher(Bucket& bucket, Cache& cache, ModelLogs& logs, Versions& versions, std::size_t threads,
            std::uint64_t memory);
  void stop();

  // What is to be encoded and uploaded behind the writers of a draft.
  std::shared_ptr<Stage> stage(StageSetup setup);

  // Blocking. It ends when nothing has moved for kStallPatience. Errors:
  //   kExists       the name belongs to a live version (of another commit id)
  //   kNotFound     a named parent is not there
  //   kInvalid      something in the directory cannot be stored
  //   kUnavailable  out of reach; run it again. When before_commit was called the outcome is open: it must be run again
  //   with the
  //                 same commit id, which finds out
  Result<PublishResult> run(const PublishJob& job, const Progress& progress, const CallOptions& options);

  // Blocking (disk). Moves the files of a draft that was committed as `node` into the cache, one by one: nobody may
  // look at the draft's folder for them any more.
  void take_over(const std::string& dir, const NodeRef& node, const CallOptions& options) {
    keep_files(dir, node, true, options);
  }

 private:
  // What a version is to build on.
  struct Wanted {
    ParentChoice parent;
    std::string name;
    std::optional<NodeRef> staged;  // what was uploaded builds on it
  };
  Status probe_once(const CallOptions& options);
  Result<bool> refresh(const ModelName& model, const CallOptions& options);
  Result<PublishResult> try_run(const PublishJob& job, const Progress& progress, const CallOptions& options);
  Result<PublishResult> try_once(const PublishJob& job, const ModelState& state, const Progress& progress,
                                 const CallOptions& options);
  Result<std::optional<NodeRef>> choose_parent(const Wanted& wanted, const SourceTree& tree, const ModelState& state,
                                               const CallOptions& options);
  Result<NodeRef> cheapest_parent(const Wanted& wanted, const SourceTree& tree, const ModelState& state,
                                  const CallOptions& options);
  Result<std::optional<NodeRef>> stage_base(const StageSetup& setup, const StageWants& wants, const SourceTree& sample,
                                            const CallOptions& options);
  Result<PublishResult> committed(const PublishJob& job, const VersionRecord& record, const CallOptions& options);
  Status adopt(const std::string& dir, const NodeRef& node, bool move, const CallOptions& options);
  void keep_files(const std::string& dir, const NodeRef& node, bool move, const CallOptions& options);
  Result<PublishResult> attempt(const PublishJob& job, const SourceTree& tree, const ModelState& state,
                                Stage::Loan& loan, const Progress& progress, const CallOptions& options);

  Bucket& bucket_;
  Cache& cache_;
  ModelLogs& logs_;
  Versions& versions_;
  const std::uint64_t window_;
  WorkerPool encode_pool_;
  WorkerPool behind_pool_;  // of low priority: writers come first
  WorkerPool upload_pool_;
  WorkerPool stage_pool_;
  Timer stage_timer_;
  StageTools stage_tools_;
  Mutex mutex_;
  bool probed_ GUARDED_BY(mutex_) = false;
};

}  // namespace weightfs
