// weightfs gc BUCKET
#include "store/gc.h"

#include <fmt/format.h>

#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  Duration grace = std::chrono::hours(24);
  bool dry_run = false;
  bool json = false;
};

const char* word(GcItem::What what) {
  switch (what) {
    case GcItem::What::kCollected:
      return "collected";
    case GcItem::What::kWaiting:
      return "waiting";
    case GcItem::What::kDeleted:
      return "deleted";
  }
  return "";
}

struct Sums {
  std::uint64_t objects[3] = {}, bytes[3] = {};
  std::uint64_t kept_objects = 0, kept_bytes = 0;
  std::optional<WallTime> ready;
  void add(const GcResult& result) {
    for (const GcItem& item : result.items) {
      objects[static_cast<int>(item.what)]++;
      bytes[static_cast<int>(item.what)] += item.bytes;
    }
    kept_objects += result.kept_objects;
    kept_bytes += result.kept_bytes;
    if (result.ready && (!ready || *result.ready > *ready)) ready = result.ready;
  }
};

void print_sums(const Sums& sums, bool dry_run) {
  auto part = [&](GcItem::What what, const char* text) {
    auto i = static_cast<int>(what);
    return fmt::format("{} {} ({})", sums.objects[i], text, format_size(sums.bytes[i]));
  };
  fmt::print("{}{}, {}, {}; {} kept ({})\n", dry_run ? "would be: " : "", part(GcItem::What::kDeleted, "deleted"),
             part(GcItem::What::kCollected, "newly marked"), part(GcItem::What::kWaiting, "waiting"), sums.kept_objects,
             format_size(sums.kept_bytes));
  if (sums.ready) fmt::print("marked objects can be deleted from {} on: run gc again then\n", to_rfc3339(*sums.ready));
}

Json facts_of(const std::vector<ModelGc>& models, const Sums& sums, bool dry_run) {
  Json facts{{"dry_run", dry_run},
             {"deleted_objects", sums.objects[2]},
             {"deleted_bytes", sums.bytes[2]},
             {"collected_objects", sums.objects[0]},
             {"collected_bytes", sums.bytes[0]},
             {"waiting_objects", sums.objects[1]},
             {"waiting_bytes", sums.bytes[1]},
             {"kept_objects", sums.kept_objects},
             {"kept_bytes", sums.kept_bytes},
             {"ready", sums.ready ? Json(to_rfc3339(*sums.ready)) : Json(nullptr)},
             {"items", Json::array()}};
  for (const ModelGc& model : models) {
    if (!model.result) continue;
    for (const GcItem& item : model.result->items) {
      facts["items"].push_back(
          {{"object", item.key.str()}, {"what", word(item.what)}, {"bytes", item.bytes}, {"why", item.why}});
    }
  }
  return facts;
}

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  GcOptions how;
  how.grace = options.grace;
  how.dry_run = options.dry_run;
  how.call = short_call();
  std::vector<ModelGc> models = WFS_TRY(gc_bucket(*session, how));
  Sums sums;
  Status first_error;
  for (const ModelGc& model : models) {
    if (model.result) {
      sums.add(*model.result);
    } else if (first_error) {
      first_error = model.result.status().with(model.model.str());
    }
  }
  if (options.json) {
    print_json(facts_of(models, sums, options.dry_run));
  } else {
    for (const ModelGc& model : models) {
      if (!options.dry_run || !model.result) continue;
      for (const GcItem& item : model.result->items) {
        fmt::print("{} {} ({}): {}\n", word(item.what), item.key.str(), format_size(item.bytes), item.why);
      }
    }
    print_sums(sums, options.dry_run);
  }
  WFS_TRY(std::move(first_error));
  return kDone;
}

}  // namespace

Run add_gc(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_duration(app, "--grace", &options->grace,
               "How long marked objects stay, so that readers and uploads under way are done with them (default: 24h)");
  app.add_flag("--dry-run", options->dry_run, "Only say what would be done, object by object");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs gc s3://weights/prod --dry-run", "what no version needs, and why"},
                     {"weightfs gc s3://weights/prod",
                      "marks it in the logs, and deletes what an earlier run marked over 24 hours ago: run it daily"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
