#include "store/store.h"

#include <spdlog/spdlog.h>

#include <thread>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/draft.h"
#include "store/drafts/drafts.h"
#include "store/get.h"
#include "store/models.h"
#include "store/publish/compactor.h"
#include "store/publish/publisher.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kWarmPiece = 4 << 20;
constexpr std::uint64_t kCompactRate = std::uint64_t{200} << 20;  // plain bytes a second, in the background of a mount

// Whoever listens, called without the lock; set() waits for calls under way, so that the listener may go.
class ListenerSlot {
 public:
  void set(StoreListener* listener) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    listener_ = listener;
    while (calls_ > 0) ended_.wait(mutex_);
  }
  template <typename Call>
  void call(Call&& call) EXCLUDES(mutex_) {
    StoreListener* listener = nullptr;
    {
      MutexLock lock(mutex_);
      if (listener_ == nullptr) return;
      listener = listener_;
      calls_++;
    }
    call(*listener);
    MutexLock lock(mutex_);
    if (--calls_ == 0) ended_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar ended_;
  StoreListener* listener_ GUARDED_BY(mutex_) = nullptr;
  int calls_ GUARDED_BY(mutex_) = 0;
};

class StoreImpl final : public Store {
 public:
  StoreImpl(StoreOptions options, std::unique_ptr<Bucket> bucket, std::unique_ptr<Cache> cache)
      : options_(std::move(options)),
        clock_(options_.clock != nullptr ? *options_.clock : Clock::system()),
        bucket_(std::move(bucket)),
        cache_(std::move(cache)),
        log_states_(*cache_),
        logs_(*bucket_, clock_, &log_states_),
        versions_(*bucket_, *cache_, logs_, clock_, versions_options()),
        publisher_(*bucket_, *cache_, logs_, versions_, cores(), options_.memory),
        compactor_(*bucket_, *cache_, logs_, versions_, 1, options_.memory),
        models_(*bucket_, *cache_, logs_, clock_, options_.poll),
        background_("background", 2),
        compacting_("compacting", 1) {}

  ~StoreImpl() override {
    // In the order of who calls whom: nothing is called after it is gone.
    cancel_->cancel();
    if (drafts_) drafts_->shut_down(std::chrono::steady_clock::now());
    models_.stop();
    background_.stop();
    compacting_.stop();
    drafts_.reset();
    compactor_.stop();
    publisher_.stop();
    versions_.stop();
  }

  Status start() {
    // What a killed process left on its way to the bucket. The cache has one owner.
    WFS_TRY(posix::remove_tree(spool_dir()));
    DraftsOptions drafts;
    drafts.cache = cache_.get();
    drafts.clock = &clock_;
    drafts.settle = options_.settle;
    drafts.settle_live = options_.settle_live;
    drafts.read_only = options_.read_only;
    drafts.automatic = options_.follow;
    drafts.publish = [this](const DraftSource& source, const std::string& commit_id, const Progress& progress,
                            const CallOptions& options) { return publish_draft(source, commit_id, progress, options); };
    drafts.close_waits = options_.close_waits;
    drafts.uploads = [this](const DraftSource& source, std::function<DraftWants()> wants) {
      StageSetup setup{source.id, source.root, source.spool_dir, source.model, [wants = std::move(wants)] {
                         auto now = wants();
                         return StageWants{now.parent, now.name, now.wait};
                       }};
      return std::static_pointer_cast<DraftUploads>(publisher_.stage(std::move(setup)));
    };
    drafts.take_over = [this](const std::string& root, const PublishResult& result) {
      publisher_.take_over(root, result.node, {std::chrono::minutes(1), cancel_});
    };
    drafts.newest = [this](const ModelName& model) -> std::optional<VersionRef> {
      auto state = models_.state(model);
      const auto* latest = state ? state->latest() : nullptr;
      if (latest == nullptr) return std::nullopt;
      return VersionRef{model, latest->name};
    };
    drafts.is_live = [this](const ModelName& model, std::string_view name) { return is_live(model, name); };
    drafts.changed = [this](const std::string& id) {
      listener_.call([&](StoreListener& listener) { listener.draft_changed(id); });
    };
    drafts_ = WFS_TRY(make_drafts(std::move(drafts)));
    if (options_.follow) {
      models_.follow({[this](const ModelName& name, const ModelStatePtr& before, const ModelStatePtr& after) {
                        listener_.call([&](StoreListener& l) { l.model_changed(name, before, after); });
                        warm_latest(name, before, after);
                      },
                      [this] { listener_.call([](StoreListener& l) { l.models_changed(); }); }});
      for (const auto& name : options_.warm_latest) models_.state(name);
      start_warming();
    }
    return {};
  }

  void set_listener(StoreListener* listener) override { listener_.set(listener); }

  std::vector<ModelName> models() const override { return models_.known(); }
  ModelStatePtr model(const ModelName& name) const override { return models_.state(name); }
  bool model_is_fresh(const ModelName& name) const override { return models_.is_fresh(name); }
  VersionPtr opened(const NodeRef& node) const override { return versions_.opened(node); }
  std::uint64_t cached_bytes(const NodeRef& node, std::uint32_t file) const override {
    return cache_->cached_bytes(FileId{node.model.str(), node.number, file});
  }

  Result<std::vector<ModelName>> refresh_models(const CallOptions& options) override {
    return models_.refresh_list(options);
  }
  Result<ModelStatePtr> refresh_model(const ModelName& name, const CallOptions& options) override {
    return models_.refresh(name, options);
  }
  Result<VersionPtr> open_version(const NodeRef& node, const CallOptions& options) override {
    return versions_.open(node, options);
  }
  Result<OpenFilePtr> open_file(const VersionPtr& version, std::uint32_t file, const CallOptions& options) override {
    return OpenFilePtr(WFS_TRY(versions_.open_file(version, file, options)));
  }

  Result<VersionPtr> find_version(const ModelName& model, std::string_view version,
                                  const CallOptions& options) override {
    bool remembered = logs_.get(model).has_saved();
    auto refreshed = models_.refresh(model, options);
    // A slow bucket is waited for here: nobody wants an old `latest` because of two seconds.
    if (remembered && refreshed.code() == Code::kUnavailable) refreshed = models_.refresh(model, options);
    auto state = models_.state(model);
    // Out of reach: what is known is still good to read.
    if (!refreshed.is_ok() && (refreshed.code() == Code::kNotFound || !state)) return std::move(refreshed).status();
    const VersionRecord* record = nullptr;
    if (version == "latest") {
      record = state->latest();
    } else {
      record = state->live(WFS_TRY(VersionName::parse(version)));
    }
    if (record == nullptr) {
      if (!refreshed.is_ok()) return std::move(refreshed).status();
      if (state->broken) return state->broken->with(model.str());  // it may be behind the damage
      return Status(Code::kNotFound, model.str() + "/" + std::string(version) + ": no such version");
    }
    return versions_.open({model, record->number}, options);
  }

  Result<PublishResult> publish(const std::string& source_dir, const VersionRef& version, const ParentChoice& parent,
                                const Progress& progress, const CallOptions& options) override {
    if (options_.read_only) return Status(Code::kReadOnly, version.str() + ": opened read-only");
    PublishJob job{.source_dir = source_dir, .model = version.model, .version = version.version, .parent = parent};
    job.commit_id = random_id();
    job.spool_dir = spool_dir();
    job.keep_copy = true;
    // Its outcome may be open after a lost answer: asking with the same id finds out, while there is time.
    const auto deadline = clock_.now() + options.deadline;
    while (true) {
      auto result = publisher_.run(job, progress, options);
      if (result.is_ok()) after_commit(version.model, options);
      if (result.code() != Code::kUnavailable || clock_.now() >= deadline) return result;
      clock_.sleep_for(std::chrono::seconds(1));
      if (options.cancel && options.cancel->cancelled()) return result;
    }
  }

  Status get(const VersionPtr& version, const std::string& dest_dir, const Progress& progress,
             const CallOptions& options) override {
    return get_version(versions_, version, dest_dir, progress, options);
  }

  Status warm(const VersionPtr& version, const std::vector<std::uint32_t>& files, const Progress& progress,
              const CallOptions& options) override {
    const auto& entries = version->manifest().files;
    std::vector<std::uint32_t> wanted = files;
    std::uint64_t total = 0, done = 0;
    if (wanted.empty()) {
      for (std::uint32_t i = 0; i < entries.size(); i++) wanted.push_back(i);
    }
    std::erase_if(wanted, [&](std::uint32_t i) { return i >= entries.size() || entries[i].kind != FileKind::kFile; });
    for (auto i : wanted) total += entries[i].size;
    Bytes buffer;
    for (auto i : wanted) {
      auto file = WFS_TRY(versions_.open_file(version, i, options));
      for (std::uint64_t at = 0; at < entries[i].size; at += kWarmPiece) {
        ByteRange range{at, std::min(kWarmPiece, entries[i].size - at)};
        buffer.resize(range.length);
        WFS_TRY(file->read_now(range, buffer, options));
        done += range.length;
        if (progress) progress(done, total);
      }
      if (entries[i].size > 0 && !file->complete()) {
        return {Code::kNoSpace, file->target()->name + ": the cache has no room for all of it; see --cache-size"};
      }
    }
    return {};
  }

  Result<CompactResult> compact(const ModelName& model, const std::function<void(const WantedEdge&)>& step,
                                const CallOptions& options) override {
    if (options_.read_only) return Status(Code::kReadOnly, model.str() + ": opened read-only");
    return compactor_.run(model, {}, step, options);
  }

  Status set_pinned(const NodeRef& node, bool pinned) override {
    return cache_->set_pinned(node.model.str(), node.number, pinned);
  }

  Drafts& drafts() override { return *drafts_; }
  Bucket& bucket() override { return *bucket_; }
  Cache& cache() override { return *cache_; }
  Clock& clock() override { return clock_; }
  ModelLogs& logs() override { return logs_; }
  Versions& versions() override { return versions_; }
  const StoreOptions& options() const override { return options_; }

  std::map<std::string, std::uint64_t> counters() const override {
    const auto& bucket = bucket_->counters();
    const auto& made = versions_.materializer().counters();
    auto usage = cache_->usage();
    return {{"bucket_requests", bucket.requests},
            {"bucket_get_bytes", bucket.get_bytes},
            {"bucket_put_bytes", bucket.put_bytes},
            {"bucket_retries", bucket.retries},
            {"blocks_decoded", made.blocks_decoded},
            {"frames_decoded", made.frames_decoded},
            {"bytes_decoded", made.bytes_decoded},
            {"blocks_failed", made.blocks_failed},
            {"prefetches_dropped", made.prefetches_dropped},
            {"cache_bytes", usage.flat_bytes},
            {"cache_quota", usage.quota},
            {"cache_metadata_bytes", usage.blob_bytes},
            {"draft_bytes", usage.draft_bytes},
            {"drafts", drafts_ ? drafts_->list().size() : 0}};
  }

 private:
  std::string spool_dir() const { return cache_->dir() + "/spool"; }
  static std::size_t cores() { return std::max(1U, std::thread::hardware_concurrency()); }
  Versions::Options versions_options() const {
    Versions::Options versions{.memory = options_.memory, .decode_threads = cores()};
    versions.reads.fault_patience = options_.fault_patience;
    versions.reads.readahead = std::min<std::uint64_t>(64 << 20, options_.memory / 8);
    return versions;
  }

  bool is_live(const ModelName& model, std::string_view name) {
    auto state = models_.state(model);
    auto version = VersionName::parse(name);
    return state && version.is_ok() && state->live(*version) != nullptr;
  }

  Result<PublishResult> publish_draft(const DraftSource& source, const std::string& commit_id, const Progress& progress,
                                      const CallOptions& options) {
    PublishJob job {
      .source_dir = source.root, .model = source.model, .version = WFS_TRY(VersionName::parse(source.name))
    };
    job.parent = source.parent;
    job.commit_id = commit_id;
    job.spool_dir = source.spool_dir;
    job.stage = std::static_pointer_cast<Stage>(source.uploads);  // made above
    job.not_committed = source.not_committed;
    job.before_commit = source.before_commit;
    auto result = publisher_.run(job, progress, options);
    if (result.is_ok()) {
      spdlog::info("commit {} parent={} sent={} of={} took={:.1f}s", result->version.str(),
                   result->parent ? result->parent->str() : "none", result->sent_bytes, result->plain_bytes,
                   result->seconds);
      after_commit(source.model, options);
    }
    return result;
  }

  // The publisher has both ends of new skip edges in its cache: it makes them behind the trainer's back, slowly.
  void compact_later(const ModelName& model) {
    if (!options_.compact || options_.read_only) return;
    compacting_.post([this, model] {
      Compactor::Options how;
      how.only_cached = true;
      how.bytes_per_second = kCompactRate;
      auto result = compactor_.run(model, how, {}, {std::chrono::hours(24), cancel_});
      if (result.is_ok() && result->sent_bytes > 0) {
        spdlog::info("compact {}: {} skip edges, {} full edges, {} bytes sent", model.str(), result->skip_edges,
                     result->full_edges, result->sent_bytes);
      } else if (!result.is_ok() && !cancel_->cancelled()) {
        spdlog::warn("compact {}: {}: it is tried again after the next commit", model.str(),
                     result.status().to_string());
      }
    });
  }

  void after_commit(const ModelName& model, const CallOptions& options) {
    models_.note(model);
    compact_later(model);
    if (options.cancel && options.cancel->cancelled()) return;
    auto job = [this, model] {
      auto status = logs_.get(model).snapshot_if_due({std::chrono::seconds(30), cancel_});
      if (!status.is_ok() && !cancel_->cancelled())
        spdlog::warn("snapshot of {}: {}: tried again later", model.str(), status.to_string());
    };
    if (options_.follow) {
      background_.post(job);
    } else {
      job();
    }
  }

  // mount --warm MODEL/latest: each new version is rebuilt as soon as it is committed.
  void warm_latest(const ModelName& name, const ModelStatePtr& before, const ModelStatePtr& after) {
    if (std::find(options_.warm_latest.begin(), options_.warm_latest.end(), name) == options_.warm_latest.end()) return;
    const auto* latest = after->latest();
    if (latest == nullptr || (before && before->latest() != nullptr && before->latest()->number == latest->number))
      return;
    warm_later({name, latest->number}, name.str() + "/" + latest->name.str());
  }

  void warm_later(const NodeRef& node, const std::string& name) {
    background_.post([this, node, name] {
      CallOptions options{std::chrono::hours(24), cancel_};
      auto version = versions_.open(node, options);
      auto status = version.is_ok() ? warm(*version, {}, {}, options) : std::move(version).status();
      if (status.is_ok()) {
        spdlog::info("warm {}", name);
      } else if (!cancel_->cancelled()) {
        spdlog::warn("warm {}: {}", name, status.to_string());
      }
    });
  }

  void start_warming() {
    for (const auto& wanted : options_.warm) {
      background_.post([this, wanted] {
        auto version = find_version(wanted.model, wanted.version.str(), {std::chrono::minutes(2), cancel_});
        if (version.is_ok()) {
          warm_later((*version)->node(), wanted.str());
        } else {
          spdlog::warn("warm {}: {}", wanted.str(), version.status().to_string());
        }
      });
    }
    for (const auto& name : options_.warm_latest) {
      background_.post([this, name] {
        auto refreshed = models_.refresh(name, {std::chrono::minutes(2), cancel_});
        if (!refreshed.is_ok()) spdlog::warn("warm {}/latest: {}", name.str(), refreshed.status().to_string());
      });
    }
  }

  const StoreOptions options_;
  Clock& clock_;
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
  ListenerSlot listener_;
  const std::unique_ptr<Bucket> bucket_;
  const std::unique_ptr<Cache> cache_;
  CachedLogStates log_states_;
  ModelLogs logs_;
  mutable Versions versions_;
  Publisher publisher_;
  Compactor compactor_;
  mutable Models models_;
  WorkerPool background_;
  WorkerPool compacting_;
  std::unique_ptr<Drafts> drafts_;
};

}  // namespace

Result<std::unique_ptr<Store>> Store::open(StoreOptions options) {
  if (options.memory < StoreOptions::kLeastMemory) {
    return Status(Code::kInvalid, "a memory bound of " + std::to_string(options.memory) +
                                      " bytes is too small: give at least " +
                                      std::to_string(StoreOptions::kLeastMemory >> 20) + "M (--memory)");
  }
  auto bucket = std::move(options.use_bucket);
  if (!bucket) bucket = WFS_TRY(open_bucket(options.bucket_url, options.bucket));
  if (options.cache_dir.empty()) options.cache_dir = default_cache_dir(options.bucket_url);
  auto cache = WFS_TRY(Cache::open({options.cache_dir, options.cache_size}));
  auto store = std::make_unique<StoreImpl>(std::move(options), std::move(bucket), std::move(cache));
  WFS_TRY(store->start());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace weightfs
