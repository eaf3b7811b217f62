// weightfs commit PATH
#include <fmt/format.h>

#include "tools/beside.h"
#include "tools/progress.h"

namespace weightfs::tools {
namespace {

struct Options {
  std::string path;
  bool json = false;
};

Result<int> run(const Options& options) {
  InMount draft = WFS_TRY(in_mount(options.path));
  if (draft.path.empty()) {
    return Status(Code::kInvalid, options.path + " is the top of a mount; name a draft's directory, DIR/MODEL/VERSION");
  }
  if (decoded(draft.path).find('/') == std::string::npos) {
    return Status(Code::kInvalid, options.path + " is a model; name a draft's directory, DIR/MODEL/VERSION");
  }
  ProgressBar bar("commit " + printable(options.path));
  auto answer = draft.daemon.call({{"op", "commit"}, {"version", draft.path}}, bar.callback());
  bar.finish();
  control::Json facts = WFS_TRY(std::move(answer));
  if (facts.value("already", false)) {
    std::string name = decoded(facts.value("version", std::string()));
    if (options.json) {
      print_json({{"version", name}, {"already", true}});
    } else {
      fmt::print("{} is committed already\n", printable(name));
    }
    return kDone;
  }
  PublishResult result = publish_result(facts);
  if (options.json) {
    print_json(publish_facts(result));
  } else {
    print_publish_text(result);
  }
  return kDone;
}

}  // namespace

Run add_commit(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("PATH", options->path, "The draft: DIR/MODEL/VERSION in a mount")->required();
  add_json(app, &options->json);
  set_examples(app,
               {{"weightfs commit /mnt/models/qwen3/step-000101",
                 "publishes it as it is, and returns when it is durable in the bucket; 0 at once if it is committed"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
