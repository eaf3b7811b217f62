// weightfs rm BUCKET MODEL/VERSION
#include <fmt/format.h>

#include "store/gc.h"
#include "tools/output.h"
#include "tools/session.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  std::optional<VersionRef> version;
  bool json = false;
};

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  WFS_TRY(remove_version(*session, *options.version, short_call()));
  if (options.json) {
    print_json({{"removed", options.version->str()}});
  } else {
    fmt::print("{} removed; `weightfs gc` frees what no other version needs\n", printable(options.version->str()));
  }
  return kDone;
}

}  // namespace

Run add_rm(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_version(app, "MODEL/VERSION", &options->version, "The version that goes, for all hosts")->required();
  add_json(app, &options->json);
  set_examples(app, {{"weightfs rm s3://weights/prod qwen3/step-000100",
                      "takes it out of the log; versions that were built from it stay whole"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
