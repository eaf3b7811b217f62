// A Store in memory with working drafts on local disk: what the filesystem sees, without network, codec or cache. A
// test holds its answers, takes the bucket away, and asks what it was told.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/threads.h"
#include "store/draft.h"
#include "store/base/mutex.h"
#include "store/store.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

// A file of a version to be: path → bytes.
struct FakeFile {
  std::string path;
  std::string bytes;
  FileKind kind = FileKind::kFile;
  std::uint32_t mode = 0644;
  std::string target;
};

class FakeStore final : public Store {
 public:
  FakeStore();
  ~FakeStore() override;

  // "Somebody else" publishes or removes; parents of paths are made. The listener is told.
  std::uint64_t publish_files(const std::string& model, const std::string& version, std::vector<FakeFile> files)
      EXCLUDES(mutex_);
  void remove_version(const std::string& model, const std::string& version) EXCLUDES(mutex_);

  // Reads that are not warm wait until released.
  void hold_reads(bool hold) EXCLUDES(mutex_);
  std::size_t held_reads() const EXCLUDES(mutex_);
  void set_warm(bool warm) { warm_ = warm; }      // everything is on the local disk
  void set_down(bool down) EXCLUDES(mutex_);      // the bucket is out of reach: kUnavailable; page faults wait
  void set_fresh(bool fresh) { fresh_ = fresh; }  // models need not be asked for
  void hold_refresh(bool hold) EXCLUDES(mutex_);  // refresh_model waits (until cancelled or let go)
  void hide_manifests() EXCLUDES(mutex_);         // opened() knows none until open_version
  std::uint64_t refreshes() const { return refreshes_; }
  std::uint64_t faults_read() const { return faults_read_; }  // reads said to be page faults
  void set_quota(std::uint64_t bytes) EXCLUDES(mutex_);       // of drafts: charge() beyond it is kNoSpace
  std::int64_t charged() const EXCLUDES(mutex_);
  void hold_commits(bool hold) EXCLUDES(mutex_);  // they stay kPublishing
  // What drafts were told, in order: "create m/d", "opened", "flushed exiting", "released", "failed", …
  std::vector<std::string> told() const EXCLUDES(mutex_);
  void tell(std::string what) EXCLUDES(mutex_);

  void set_listener(StoreListener* listener) override { listener_ = listener; }
  std::vector<ModelName> models() const override EXCLUDES(mutex_);
  ModelStatePtr model(const ModelName& name) const override EXCLUDES(mutex_);
  bool model_is_fresh(const ModelName& /*name*/) const override { return fresh_; }
  VersionPtr opened(const NodeRef& node) const override EXCLUDES(mutex_);
  std::uint64_t cached_bytes(const NodeRef& node, std::uint32_t file) const override;
  Result<std::vector<ModelName>> refresh_models(const CallOptions& options) override;
  Result<ModelStatePtr> refresh_model(const ModelName& name, const CallOptions& options) override;
  Result<VersionPtr> open_version(const NodeRef& node, const CallOptions& options) override;
  Result<OpenFilePtr> open_file(const VersionPtr& version, std::uint32_t file, const CallOptions& options) override;
  Result<VersionPtr> find_version(const ModelName& model, std::string_view version,
                                  const CallOptions& options) override;
  Result<PublishResult> publish(const std::string& source_dir, const VersionRef& version, const ParentChoice& parent,
                                const Progress& progress, const CallOptions& options) override;
  Status get(const VersionPtr& version, const std::string& dest_dir, const Progress& progress,
             const CallOptions& options) override;
  Status warm(const VersionPtr& version, const std::vector<std::uint32_t>& files, const Progress& progress,
              const CallOptions& options) override;
  Status set_pinned(const NodeRef& node, bool pinned) override;
  Drafts& drafts() override;
  Bucket& bucket() override;
  Cache& cache() override;
  Clock& clock() override { return Clock::system(); }
  const StoreOptions& options() const override { return options_; }
  std::map<std::string, std::uint64_t> counters() const override { return {{"bucket_requests", refreshes_.load()}}; }

 private:
  friend class FakeDrafts;
  friend class FakeDraft;
  friend class FakeOpenFile;
  struct Content;
  struct Read;
  Status charge(std::int64_t bytes) EXCLUDES(mutex_);
  void start(std::shared_ptr<Read> read) EXCLUDES(mutex_);
  void finish(const std::shared_ptr<Read>& read, Status error) EXCLUDES(mutex_);
  void pump() EXCLUDES(mutex_);

  StoreOptions options_;
  TempDir dir_;
  std::atomic<bool> warm_ = true, fresh_ = true;
  std::atomic<StoreListener*> listener_ = nullptr;
  std::atomic<std::uint64_t> refreshes_ = 0, faults_read_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  bool down_ GUARDED_BY(mutex_) = false, hold_reads_ GUARDED_BY(mutex_) = false;
  bool hold_refresh_ GUARDED_BY(mutex_) = false, hold_commits_ GUARDED_BY(mutex_) = false;
  std::uint64_t quota_ GUARDED_BY(mutex_) = ~std::uint64_t{0};
  std::int64_t charged_ GUARDED_BY(mutex_) = 0;
  std::map<ModelName, ModelStatePtr> models_ GUARDED_BY(mutex_);
  std::map<NodeRef, std::shared_ptr<const Content>> contents_ GUARDED_BY(mutex_);
  std::set<NodeRef> hidden_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Read>> reads_ GUARDED_BY(mutex_);
  std::vector<std::string> told_ GUARDED_BY(mutex_);
  std::unique_ptr<Bucket> bucket_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Drafts> drafts_;
  std::unique_ptr<WorkerPool> pool_;
};

}  // namespace weightfs
