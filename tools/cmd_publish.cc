// weightfs publish SRC_DIR BUCKET MODEL/VERSION
#include "store/base/posix.h"
#include "tools/beside.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  std::string source;
  std::optional<VersionRef> version;
  ParentChoice parent;
  bool json = false;
};

Result<PublishResult> through_daemon(const Options& options, ControlClient daemon, const Progress& progress) {
  control::Json request{{"op", "publish"},
                        {"source", posix::absolute(options.source)},
                        {"version", percent_encode(options.version->str())},
                        {"no_parent", options.parent.none}};
  if (options.parent.named) request["parent"] = percent_encode(options.parent.named->str());
  return publish_result(WFS_TRY(daemon.call(request, progress)));
}

Result<PublishResult> publish(const Options& options, const Progress& progress) {
  CacheAccess cache = WFS_TRY(open_cache(options.bucket));
  if (cache.daemon) return through_daemon(options, std::move(*cache.daemon), progress);
  return (*cache.session)->publish(options.source, *options.version, options.parent, progress, long_call());
}

Result<int> run(const Options& options) {
  ProgressBar bar("publish " + printable(options.version->str()));
  auto published = publish(options, bar.callback());
  bar.finish();
  PublishResult result = WFS_TRY(std::move(published));
  if (options.json) {
    print_json(publish_facts(result));
  } else {
    print_publish_text(result);
  }
  return kDone;
}

}  // namespace

Run add_publish(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->bucket.create = true;
  app.add_option("SRC_DIR", options->source, "The checkpoint: everything in this directory becomes the version")
      ->required()
      ->check(CLI::ExistingDirectory);
  add_bucket_args(app, &options->bucket, true);
  add_version(app, "MODEL/VERSION", &options->version, "The name it gets; must be free")->required();
  auto* none = app.add_flag("--no-parent", options->parent.none, "Store it whole, not as a delta");
  add_version(app, "--parent", &options->parent.named,
              "Store it as a delta to this version, of any model in the bucket (default: the newest version of MODEL)")
      ->excludes(none);
  add_json(app, &options->json);
  set_examples(app, {{"weightfs publish out/checkpoint-101 s3://weights/prod qwen3/step-000101",
                      "sends what changed since the newest version of qwen3"},
                     {"weightfs publish tuned s3://weights/prod qwen3-math/v1 --parent qwen3/step-000101",
                      "forks another model"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
