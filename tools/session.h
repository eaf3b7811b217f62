// How a command gets at a bucket and its cache.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/command.h"

namespace weightfs::tools {

struct BucketArgs {
  std::string bucket;
  std::string cache_dir;
  std::optional<std::string> endpoint;
  std::uint64_t bandwidth = 0;
  bool create = false;  // a directory bucket that is not there, for what publishes
};
// The positional BUCKET, --cache-dir, --endpoint; `bandwidth`: also --bandwidth.
void add_bucket_args(CLI::App& app, BucketArgs* args, bool bandwidth = false);
void add_cache_dir(CLI::App& app, std::string* to);
inline constexpr const char* kBucketHelp =
    "Where the versions are: /some/dir, s3://bucket/prefix or hf://buckets/NAMESPACE/BUCKET";

StoreOptions store_options(const BucketArgs& args);
std::string cache_dir_of(const BucketArgs& args);

// A store together with what has to go when it does.
class Session {
 public:
  // Opens bucket and cache. kBusy where another process owns the cache.
  static Result<Session> open(const BucketArgs& args);
  // The same for commands that only read logs and objects: where a mount owns the cache, an empty one of our own in its
  // place, removed at the end.
  static Result<Session> open_beside_mount(const BucketArgs& args);
  // A store that has nothing cached, so that all it reads comes from the bucket.
  // It lies beside the cache, of at most `cache_size` bytes (0: no limit), and is removed at the end.
  static Result<Session> open_without_cache(const BucketArgs& args, std::uint64_t cache_size = 0);

  Store& operator*() const { return *store_; }
  Store* operator->() const { return store_.get(); }

 private:
  struct TemporaryDir {
    std::string path;
    ~TemporaryDir();
  };
  Session(std::unique_ptr<TemporaryDir> dir, std::unique_ptr<Store> store)
      : dir_(std::move(dir)), store_(std::move(store)) {}
  static Result<std::unique_ptr<Store>> open_store(const BucketArgs& args, const std::string& cache_dir,
                                                   std::uint64_t cache_size = 0);

  std::unique_ptr<TemporaryDir> dir_;  // may be null; goes after the store
  std::unique_ptr<Store> store_;
};

// For calls as long as a model is large: no deadline of their own (a stall of 30 s fails them), ended by Ctrl-C.
CallOptions long_call();
// For single questions to the bucket.
CallOptions short_call();

}  // namespace weightfs::tools
