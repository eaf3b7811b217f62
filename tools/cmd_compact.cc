// weightfs compact BUCKET [MODEL]
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "store/log/model_logs.h"
#include "store/publish/compactor.h"
#include "tools/output.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  std::optional<ModelName> model;
  bool json = false;
};

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  std::vector<ModelName> models;
  if (options.model) {
    models = {*options.model};
  } else {
    models = WFS_TRY(session->refresh_models(short_call()));
  }
  std::sort(models.begin(), models.end());
  Compactor compactor(session->bucket(), session->cache(), session->logs(), session->versions(),
                      std::max(1U, std::thread::hardware_concurrency()), session->options().memory);
  CompactResult sum;
  for (const ModelName& model : models) {
    auto step = [&](const WantedEdge& edge) {
      if (options.json) return;
      fmt::print("{}: {}\n", printable(model.str()), edge.why);
      std::fflush(stdout);
    };
    auto run = compactor.run(model, {}, step, long_call());
    // Its first version is on its way.
    if (run.code() == Code::kNotFound && !options.model && session->logs().is_empty(model)) continue;
    CompactResult result = WFS_TRY(std::move(run).with(model.str()));
    sum.skip_edges += result.skip_edges;
    sum.full_edges += result.full_edges;
    sum.declined += result.declined;
    sum.sent_bytes += result.sent_bytes;
  }
  compactor.stop();
  if (options.json) {
    print_json({{"skip_edges", sum.skip_edges},
                {"full_edges", sum.full_edges},
                {"declined", sum.declined},
                {"sent_bytes", sum.sent_bytes}});
  } else {
    fmt::print("{} skip edges and {} full edges made, {} sent; {} were no gain\n", sum.skip_edges, sum.full_edges,
               format_size(sum.sent_bytes), sum.declined);
  }
  return kDone;
}

}  // namespace

Run add_compact(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket, true);
  add_model(app, "MODEL", &options->model, "Only this model (default: all)");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs compact s3://weights/prod qwen3",
                      "makes the edges that shorten how its versions are rebuilt; may be stopped and run again"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
