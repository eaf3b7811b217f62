// weightfs get BUCKET MODEL/VERSION DEST_DIR
#include <fmt/format.h>

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

Result<int> run(const Options& options) {
  auto started = std::chrono::steady_clock::now();
  Session session = WFS_TRY(Session::open(options.bucket));
  VersionPtr version = WFS_TRY(session->find_version(*options.version.model, options.version.version, short_call()));
  std::string name = version->node().model.str() + "/" + version->record().name.str();
  ProgressBar bar("get " + printable(name));
  Status got = session->get(version, options.dest, bar.callback(), long_call());
  bar.finish();
  WFS_TRY(std::move(got));
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  std::uint64_t fetched = session->counters()["bucket_get_bytes"];
  if (options.json) {
    print_json({{"version", name},
                {"plain_bytes", version->record().plain_bytes},
                {"fetched_bytes", fetched},
                {"seconds", seconds}});
  } else {
    fmt::print("{} is in {}: {}, {} fetched, {}\n", printable(name), options.dest,
               format_size(version->record().plain_bytes), format_size(fetched), format_seconds(seconds));
  }
  return kDone;
}

}  // namespace

Run add_get(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket, true);
  add_scope(app, "MODEL/VERSION", &options->version, "Which version; VERSION may be latest")
      ->required()
      ->check([](const std::string& text) {
        return text.find('/') == std::string::npos ? "name a version too: MODEL/VERSION or MODEL/latest" : "";
      });
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
