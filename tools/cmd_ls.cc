// weightfs ls BUCKET [MODEL]
#include <fmt/format.h>

#include <algorithm>

#include "store/log/model_logs.h"
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

Result<int> list_versions(Store& store, const Options& options) {
  ModelStatePtr state = WFS_TRY(store.refresh_model(*options.model, short_call()));
  Json facts{{"model", options.model->str()}, {"versions", Json::array()}};
  for (const auto* version : state->live_versions()) {
    if (options.json) {
      facts["versions"].push_back(version_facts(*version, *options.model));
    } else {
      fmt::print("{}\n", printable(version->name.str()));
    }
  }
  if (options.json) print_json(facts);
  if (state->broken) return *state->broken;
  return kDone;
}

// One damaged or unreadable model does not hide the others: it is shown with what is wrong, and the call fails.
Result<int> list_models(Store& store, const Options& options) {
  std::vector<ModelName> models = WFS_TRY(store.refresh_models(short_call()));
  std::sort(models.begin(), models.end());
  Json facts{{"models", Json::array()}};
  std::vector<std::vector<std::string>> rows = {{"MODEL", ">VERSIONS", "LATEST", ">SIZE", ">STORED", "PUBLISHED"}};
  Status first_error;
  for (const ModelName& model : models) {
    auto state = store.refresh_model(model, short_call());
    if (state.code() == Code::kNotFound && store.logs().is_empty(model)) continue;  // its first version is on its way
    Status status = !state ? state.status() : (*state)->broken.value_or(Status());
    if (!status && first_error) first_error = status.with(model.str());
    if (!state) continue;
    auto versions = (*state)->live_versions();
    const VersionRecord* latest = (*state)->latest();
    std::uint64_t plain = 0, stored = 0;
    for (const auto* version : versions) {
      plain += version->plain_bytes;
      stored += version->stored_bytes;
    }
    facts["models"].push_back({{"name", model.str()},
                               {"versions", versions.size()},
                               {"latest", latest != nullptr ? Json(latest->name.str()) : Json(nullptr)},
                               {"plain_bytes", plain},
                               {"stored_bytes", stored},
                               {"time", latest != nullptr ? Json(to_rfc3339(latest->time)) : Json(nullptr)}});
    rows.push_back({printable(model.str()), std::to_string(versions.size()),
                    latest != nullptr ? printable(latest->name.str()) : "-", format_size(plain), format_size(stored),
                    latest != nullptr ? to_rfc3339(latest->time) : "-"});
  }
  if (options.json) {
    print_json(facts);
  } else {
    print_table(rows);
  }
  WFS_TRY(std::move(first_error));
  return kDone;
}

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  return options.model ? list_versions(*session, options) : list_models(*session, options);
}

}  // namespace

Run add_ls(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_model(app, "MODEL", &options->model, "List this model's versions, oldest first (default: list the models)");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs ls s3://weights/prod", "the models, how many versions each has and the newest one"},
                     {"weightfs ls s3://weights/prod qwen3", "the versions of qwen3, one name a line"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
