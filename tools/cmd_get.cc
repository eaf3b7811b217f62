// weightfs get BUCKET MODEL/VERSION DEST_DIR
#include <fmt/format.h>

#include "store/base/posix.h"
#include "tools/beside.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  Scope version;
  std::string dest;
  bool json = false;
};

struct Got {
  std::string name;
  std::uint64_t plain_bytes = 0;
  std::optional<std::uint64_t> fetched_bytes;  // not known of a daemon, which fetches for others, too
};

Result<Got> through_daemon(const Options& options, ControlClient daemon, const Progress& progress) {
  control::Json request{
      {"op", "get"}, {"version", percent_encode(options.version.str())}, {"dest", posix::absolute(options.dest)}};
  control::Json answer = WFS_TRY(daemon.call(request, progress));
  return Got{decoded(answer.value("version", std::string())), answer.value("plain_bytes", std::uint64_t{0}), {}};
}

Result<Got> get(const Options& options, const Progress& progress) {
  CacheAccess cache = WFS_TRY(open_cache(options.bucket));
  if (cache.daemon) return through_daemon(options, std::move(*cache.daemon), progress);
  Store& store = **cache.session;
  VersionPtr version = WFS_TRY(store.find_version(*options.version.model, options.version.version, short_call()));
  WFS_TRY(store.get(version, options.dest, progress, long_call()));
  return Got{version->node().model.str() + "/" + version->record().name.str(), version->record().plain_bytes,
             store.counters()["bucket_get_bytes"]};
}

Result<int> run(const Options& options) {
  auto started = std::chrono::steady_clock::now();
  ProgressBar bar("get " + printable(options.version.str()));
  auto result = get(options, bar.callback());
  bar.finish();
  Got got = WFS_TRY(std::move(result));
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (options.json) {
    print_json({{"version", got.name},
                {"plain_bytes", got.plain_bytes},
                {"fetched_bytes", got.fetched_bytes ? Json(*got.fetched_bytes) : Json(nullptr)},
                {"seconds", seconds}});
  } else {
    fmt::print("{} is in {}: {}{}, {}\n", printable(got.name), printable(options.dest), format_size(got.plain_bytes),
               got.fetched_bytes ? ", " + format_size(*got.fetched_bytes) + " fetched" : std::string(),
               format_seconds(seconds));
  }
  return kDone;
}

}  // namespace

Run add_get(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket, true);
  add_version_scope(app, "MODEL/VERSION", &options->version, "Which version; VERSION may be latest");
  app.add_option("DEST_DIR", options->dest,
                 "Where its files go; made when it is not there. Files that are right "
                 "already are kept, so an interrupted get goes on where it was")
      ->required();
  add_json(app, &options->json);
  set_examples(app, {{"weightfs get s3://weights/prod qwen3/step-000101 /data/qwen3-101",
                      "writes that version's files, fetching only what the cache lacks"},
                     {"weightfs get s3://weights/prod qwen3/latest out", "the newest one"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
