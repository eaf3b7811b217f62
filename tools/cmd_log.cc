// weightfs log BUCKET MODEL
#include <fmt/format.h>

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

std::vector<std::string> row(const VersionRecord& version, const ModelName& model) {
  std::string parent = "-";
  if (version.parent && version.parent_version) {
    parent = version.parent_version->str();
    if (version.parent->model != model) parent = version.parent->model.str() + "/" + parent;
  }
  auto plain = static_cast<double>(version.plain_bytes), stored = static_cast<double>(version.stored_bytes);
  std::string density = "-";
  if (version.parent && version.total_elements > 0) {
    density =
        format_percent(static_cast<double>(version.changed_elements) / static_cast<double>(version.total_elements));
  }
  return {printable(version.name.str()),    printable(parent),
          format_size(version.plain_bytes), format_size(version.stored_bytes),
          format_ratio(plain / stored),     density,
          to_rfc3339(version.time)};
}

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  ModelStatePtr state = WFS_TRY(session->refresh_model(*options.model, short_call()));
  if (options.json) {
    Json facts{{"model", options.model->str()}, {"versions", Json::array()}};
    for (const auto* version : state->live_versions()) {
      facts["versions"].push_back(version_facts(*version, *options.model));
    }
    print_json(facts);
  } else {
    std::vector<std::vector<std::string>> rows = {
        {"VERSION", "PARENT", ">SIZE", ">ADDED", ">RATIO", ">CHANGED", "PUBLISHED"}};
    for (const auto* version : state->live_versions()) rows.push_back(row(*version, *options.model));
    print_table(rows);
  }
  // What is listed is right, but there may be more behind the damage.
  if (state->broken) return *state->broken;
  return kDone;
}

}  // namespace

Run add_log(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_model(app, "MODEL", &options->model, "Whose history")->required();
  add_json(app, &options->json);
  set_examples(app, {{"weightfs log s3://weights/prod qwen3",
                      "oldest first: parent, plain size, bytes added to the bucket, ratio, changed elements, time"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
