// weightfs verify BUCKET [MODEL[/VERSION]]
#include "store/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  Scope scope;
  bool deep = false;
  bool json = false;
};

// A deep check replays deltas in a cache of its own, which has to hold a version and its base.
Result<std::uint64_t> cache_for_replay(Store& store, const VerifyScope& scope) {
  std::uint64_t largest = 0;
  for (const ModelName& model : scope.model ? std::vector{*scope.model} : WFS_TRY(store.refresh_models(short_call()))) {
    auto state = store.refresh_model(model, short_call());
    if (!state) continue;  // the walk finds out why
    for (const auto& [number, version] : (*state)->versions) largest = std::max(largest, version.plain_bytes);
  }
  return 3 * largest + (std::uint64_t{1} << 30);
}

void add(VerifyReport& to, VerifyReport&& more) {
  to.damaged.insert(to.damaged.end(), more.damaged.begin(), more.damaged.end());
}

Json facts_of(const VerifyReport& report, bool deep) {
  Json facts{{"deep", deep},
             {"models", report.models},
             {"versions", report.versions},
             {"edges", report.edges},
             {"objects", report.objects},
             {"bytes", report.bytes},
             {"plain_bytes", report.plain_bytes},
             {"damaged", Json::array()}};
  for (const Damage& damage : report.damaged) {
    facts["damaged"].push_back({{"object", damage.object}, {"problem", damage.problem}});
  }
  return facts;
}

Result<int> run(const Options& options) {
  VerifyScope scope{options.scope.model, options.scope.version, options.deep};
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  ProgressBar cache_bar("verify cache");
  VerifyReport cached = WFS_TRY(verify_cache(*session, scope, cache_bar.callback(), long_call()));
  cache_bar.finish();

  ProgressBar bar("verify");
  VerifyReport report;
  if (options.deep) {
    BucketArgs args = options.bucket;
    std::uint64_t cache_size = WFS_TRY(cache_for_replay(*session, scope));
    Session empty = WFS_TRY(Session::open_without_cache(args, cache_size));
    report = WFS_TRY(verify(*empty, scope, bar.callback(), long_call()));
  } else {
    report = WFS_TRY(verify(*session, scope, bar.callback(), long_call()));
  }
  bar.finish();
  add(report, std::move(cached));

  if (options.json) {
    print_json(facts_of(report, options.deep));
  } else {
    for (const Damage& damage : report.damaged) {
      fmt::print("damaged {}: {}\n", printable(damage.object), printable(damage.problem));
    }
    fmt::print("{} versions, {} edges, {} objects, {} checked{}: {}\n", report.versions, report.edges, report.objects,
               format_size(report.bytes),
               options.deep ? fmt::format(", {} decoded", format_size(report.plain_bytes)) : std::string(),
               report.damaged.empty() ? "sound" : fmt::format("{} damaged", report.damaged.size()));
  }
  if (report.damaged.empty()) return kDone;
  print_error("verify",
              Status(Code::kCorrupt, fmt::format("{} is damaged: {}; publish what is lost again from a host that "
                                                 "has it, or restore the object{}",
                                                 report.damaged.front().object, report.damaged.front().problem,
                                                 report.damaged.size() > 1 ? " (and more, listed above)" : "")));
  return kDamaged;
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_scope(app, "MODEL[/VERSION]", &options->scope, "Only this model, or this version (default: the whole bucket)");
  app.add_flag("--deep", options->deep, "Also decode everything and check the digests of the plain bytes");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs verify s3://weights/prod",
                      "reads every object that a version needs and checks its digest; exit code 3 when one is damaged"},
                     {"weightfs verify s3://weights/prod qwen3/latest --deep", "rebuilds that version, too"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
