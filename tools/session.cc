#include "tools/session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "store/base/digest.h"
#include "store/base/posix.h"
#include "tools/interrupt.h"

namespace weightfs::tools {

void add_cache_dir(CLI::App& app, std::string* to) {
  app.add_option("--cache-dir", *to,
                 "Directory of the local cache (default: a subfolder per bucket of $WEIGHTFS_CACHE, else "
                 "$XDG_CACHE_HOME/weightfs, else ~/.cache/weightfs, for root /var/cache/weightfs)")
      ->type_name("DIR");
}

void add_bucket_args(CLI::App& app, BucketArgs* args, bool bandwidth) {
  app.add_option("BUCKET", args->bucket, kBucketHelp)->required();
  add_cache_dir(app, &args->cache_dir);
  app.add_option("--endpoint", args->endpoint, "URL of the S3 server (default: $AWS_ENDPOINT_URL, else Amazon's)")
      ->type_name("URL");
  if (bandwidth) add_size(app, "--bandwidth", &args->bandwidth, "Bytes a second over all connections, e.g. 100M");
}

StoreOptions store_options(const BucketArgs& args) {
  StoreOptions options;
  options.bucket_url = args.bucket;
  options.bucket.endpoint = args.endpoint;
  options.bucket.bandwidth = args.bandwidth;
  options.bucket.create = args.create;
  options.cache_dir = args.cache_dir;
  return options;
}

std::string cache_dir_of(const BucketArgs& args) {
  return args.cache_dir.empty() ? default_cache_dir(args.bucket) : posix::absolute(args.cache_dir);
}

Session::TemporaryDir::~TemporaryDir() {
  Status removed = posix::remove_tree(path);
  if (!removed) spdlog::warn("{}; remove it by hand", removed.message());
}

Result<std::unique_ptr<Store>> Session::open_store(const BucketArgs& args, const std::string& cache_dir,
                                                   std::uint64_t cache_size) {
  StoreOptions options = store_options(args);
  options.cache_dir = cache_dir;
  options.cache_size = cache_size;
  return Store::open(std::move(options));
}

Result<Session> Session::open(const BucketArgs& args) {
  return Session(nullptr, WFS_TRY(open_store(args, args.cache_dir)));
}

Result<Session> Session::open_beside_mount(const BucketArgs& args) {
  auto store = open_store(args, args.cache_dir);
  if (store) return Session(nullptr, std::move(store).value());
  if (store.code() != Code::kBusy) return std::move(store).status();
  return open_without_cache(args);
}

Result<Session> Session::open_without_cache(const BucketArgs& args, std::uint64_t cache_size) {
  std::string beside = cache_dir_of(args);
  WFS_TRY(posix::make_dirs(beside.substr(0, beside.rfind('/'))));
  std::string dir = beside + ".tmp-" + random_id();
  WFS_TRY(posix::mkdir(dir));
  auto temporary = std::make_unique<TemporaryDir>(TemporaryDir{dir});
  auto store = WFS_TRY(open_store(args, dir, cache_size));
  return Session(std::move(temporary), std::move(store));
}

CallOptions long_call() { return {.deadline = std::chrono::hours(24 * 30), .cancel = interrupt_token()}; }

CallOptions short_call() { return {.deadline = std::chrono::minutes(2), .cancel = interrupt_token()}; }

}  // namespace weightfs::tools
