// A bucket and its local cache: list versions, read them, publish new ones. The library behind the command and the
// filesystem. Everything here may be called by any thread. Calls named "blocking" wait for network or disk until their
// options' deadline; the others look at memory and return at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/base/names.h"
#include "store/base/status.h"
#include "store/bucket/open.h"
#include "store/cache/cache.h"
#include "store/format/manifest.h"
#include "store/log/model_state.h"
#include "store/publish/compaction_policy.h"

namespace weightfs {

struct StoreOptions {
  std::string bucket_url;
  BucketOptions bucket;
  std::string cache_dir;         // "": default_cache_dir(bucket_url)
  std::uint64_t cache_size = 0;  // bytes, 0: no limit but the disk
  // Bound of resident memory: buffers, queues, tables. Store::open refuses less than the program itself may need.
  std::uint64_t memory = std::uint64_t{512} << 20;
  static constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;
  bool read_only = false;
  Duration poll = std::chrono::seconds(5);
  Duration settle = std::chrono::seconds(1);        // writer ended
  Duration settle_live = std::chrono::seconds(30);  // writer lives, or cannot be told
  bool close_waits = true;                          // close() of a file of a draft waits for its upload
  bool follow = false;                              // poll the bucket in the background (mounts)
  bool compact = false;                             // make skip and full edges in the background (mounts that publish)
  Duration fault_patience = std::chrono::minutes(10);
  std::vector<VersionRef> warm;  // MODEL/latest as {model, "latest"} is given by `warm_latest`
  std::vector<ModelName> warm_latest;
  Clock* clock = nullptr;              // null: the system's
  std::unique_ptr<Bucket> use_bucket;  // tests: instead of bucket_url's
};

// An opened version: its manifest is here. Immutable.
class Version {
 public:
  Version(NodeRef node, VersionRecord version_record, Manifest version_manifest)
      : node_(std::move(node)), record_(std::move(version_record)), manifest_(std::move(version_manifest)) {}
  const NodeRef& node() const { return node_; }
  const VersionRecord& record() const { return record_; }
  const Manifest& manifest() const { return manifest_; }

 private:
  NodeRef node_;
  VersionRecord record_;
  Manifest manifest_;
};
using VersionPtr = std::shared_ptr<const Version>;

// Cancels a read: its callback comes soon, with kInterrupted, if it has not come yet. Copies share the read.
class Ticket {
 public:
  Ticket() = default;
  explicit Ticket(std::function<void()> cancel) : cancel_(std::make_shared<std::function<void()>>(std::move(cancel))) {}
  void cancel() const {
    if (cancel_ && *cancel_) (*cancel_)();
  }

 private:
  std::shared_ptr<std::function<void()>> cancel_;
};

// One file of a version, open for reading. While it lives, its cached bytes are not evicted.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  virtual const FileEntry& entry() const = 0;
  // Reads from the local disk when all of `range` is there and verified (or can be verified from disk alone); nothing
  // else is waited for. nullopt: not all is here, use read(). `range` lies inside the file. out.size() == range.length.
  virtual std::optional<Status> try_read(ByteRange range, MutableByteSpan out) = 0;
  // After try_read() (which also notices who reads in order): calls `done` exactly once, on a thread of the store with
  // no lock held, with the bytes of `range` (clipped to the
  // file) or an error. Never blocks. `is_page_fault`: the reader dies of an error (SIGBUS), so retry for
  // fault_patience.
  virtual Ticket read(ByteRange range, bool is_page_fault, std::function<void(Result<Bytes>)> done) = 0;
  // Fetches what is missing of `range`, at low priority; drops the wish when memory is short.
  virtual void prefetch(ByteRange range) = 0;
  virtual bool complete() const = 0;  // everything is here and verified
  virtual std::uint64_t cached_bytes() const = 0;
  virtual int fd() const = 0;  // of the flat file, -1 where there is none; for passthrough and splice
};
using OpenFilePtr = std::shared_ptr<OpenFile>;

// Told on a thread of the store, no lock held. Must return soon.
class StoreListener {
 public:
  virtual ~StoreListener() = default;
  virtual void model_changed(const ModelName& model, const ModelStatePtr& before, const ModelStatePtr& after) = 0;
  virtual void models_changed() = 0;
  // A draft became a version (its name is the same), failed, or went away.
  virtual void draft_changed(const std::string& draft_id) = 0;
};

struct PublishResult {
  VersionRef version;
  std::optional<VersionRef> parent;
  NodeRef node;
  std::uint64_t plain_bytes = 0, sent_bytes = 0, changed_elements = 0, total_elements = 0;
  double seconds = 0;
};

struct ParentChoice {
  bool none = false;                // --no-parent
  std::optional<VersionRef> named;  // --parent
};

// How far a long call is. Called from any thread of the store, not too often.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

class Drafts;     // store/draft.h
class ModelLogs;  // store/log/model_logs.h
class Versions;   // store/materialize/versions.h

class Store {
 public:
  // Opens cache and bucket. Makes no request but for a mount that follows (list of models). Blocking.
  static Result<std::unique_ptr<Store>> open(StoreOptions options);
  virtual ~Store() = default;  // stops and joins everything, in bounded time

  // Once, before drafts or reads start; null: none. Returns when no call of an earlier one is under way, so not from
  // one.
  virtual void set_listener(StoreListener* listener) = 0;

  // What is known now.
  virtual std::vector<ModelName> models() const = 0;
  virtual ModelStatePtr model(const ModelName& name) const = 0;  // null: not known
  virtual bool model_is_fresh(const ModelName& name) const = 0;  // asked within the poll interval
  virtual VersionPtr opened(const NodeRef& node) const = 0;      // null: not in memory
  // What of a file is on the local disk (`du`).
  virtual std::uint64_t cached_bytes(const NodeRef& node, std::uint32_t file) const = 0;

  // Blocking.
  virtual Result<std::vector<ModelName>> refresh_models(const CallOptions& options = {}) = 0;
  // kNotFound: no such model (the bucket said so).
  virtual Result<ModelStatePtr> refresh_model(const ModelName& name, const CallOptions& options = {}) = 0;
  virtual Result<VersionPtr> open_version(const NodeRef& node, const CallOptions& options = {}) = 0;
  virtual Result<OpenFilePtr> open_file(const VersionPtr& version, std::uint32_t file,
                                        const CallOptions& options = {}) = 0;
  // By name: the newest live version, "latest" included. kNotFound when the bucket says so.
  virtual Result<VersionPtr> find_version(const ModelName& model, std::string_view version,
                                          const CallOptions& options = {}) = 0;

  // Blocking. Publishes a directory. Symlinks are stored, never followed.
  virtual Result<PublishResult> publish(const std::string& source_dir, const VersionRef& version,
                                        const ParentChoice& parent, const Progress& progress = {},
                                        const CallOptions& options = {}) = 0;
  // Blocking. Writes the version below `dest_dir`; resumable: files already right are kept, partial ones go on.
  virtual Status get(const VersionPtr& version, const std::string& dest_dir, const Progress& progress = {},
                     const CallOptions& options = {}) = 0;
  // Blocking. Everything of these files (all when empty) into the cache.
  virtual Status warm(const VersionPtr& version, const std::vector<std::uint32_t>& files, const Progress& progress = {},
                      const CallOptions& options = {}) = 0;
  // Blocking. Makes the skip edges and full edges that `model` lacks; `step` (may be null) is told of each before it is
  // made.
  virtual Result<CompactResult> compact(const ModelName& model, const std::function<void(const WantedEdge&)>& step = {},
                                        const CallOptions& options = {}) = 0;
  virtual Status set_pinned(const NodeRef& node, bool pinned) = 0;

  virtual Drafts& drafts() = 0;
  virtual Bucket& bucket() = 0;
  virtual Cache& cache() = 0;
  virtual Clock& clock() = 0;
  // For the library's own operations (verify, gc, diff, compact); the filesystem has no use for them.
  virtual ModelLogs& logs() = 0;
  virtual Versions& versions() = 0;
  virtual const StoreOptions& options() const = 0;
  // Flat counters for `stats`: bucket_get_bytes, bucket_put_bytes, bucket_requests, cache_bytes, blocks_decoded, …
  virtual std::map<std::string, std::uint64_t> counters() const = 0;
};

}  // namespace weightfs
