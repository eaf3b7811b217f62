// weightfs warm PATH..., pin PATH, unpin PATH
#include <fmt/format.h>

#include "tools/beside.h"
#include "tools/progress.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  std::vector<std::string> paths;
  bool json = false;
};

Result<InMount> version_in_mount(const std::string& path) {
  InMount found = WFS_TRY(in_mount(path));
  std::string below = decoded(found.path);
  if (below.find('/') != std::string::npos) return found;
  return Status(Code::kInvalid, path + " is no version; name DIR/MODEL/VERSION, or DIR/MODEL/latest");
}

Result<int> warm(const Options& options) {
  std::uint64_t bytes = 0;
  for (const std::string& path : options.paths) {
    InMount found = WFS_TRY(version_in_mount(path));
    ProgressBar bar("warm " + printable(path));
    auto answer = found.daemon.call({{"op", "warm"}, {"paths", {found.path}}}, bar.callback());
    bar.finish();
    bytes += WFS_TRY(std::move(answer).with(path))
    .value("plain_bytes", std::uint64_t{0});
  }
  if (options.json) {
    print_json({{"plain_bytes", bytes}});
  } else {
    fmt::print("{} are in the cache\n", format_size(bytes));
  }
  return kDone;
}

Result<int> pin(const Options& options, const char* op) {
  InMount found = WFS_TRY(version_in_mount(options.paths.front()));
  control::Json answer = WFS_TRY(found.daemon.call({{"op", op}, {"paths", {found.path}}}));
  Json names = Json::array();
  for (const auto& name : answer.value("versions", std::vector<std::string>())) names.push_back(decoded(name));
  if (options.json) {
    print_json({{"versions", names}});
  } else {
    for (const auto& name : names) fmt::print("{} {}ned\n", printable(name.get<std::string>()), op);
  }
  return kDone;
}

Run add_pin_command(CLI::App& app, const char* op, const char* help) {
  auto options = std::make_shared<Options>();
  options->paths.resize(1);
  app.add_option("PATH", options->paths.front(), help)->required();
  add_json(app, &options->json);
  return [options, op] { return pin(*options, op); };
}

}  // namespace

Run add_warm(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("PATH", options->paths, "Versions, or files of them, in a mount")->required()->expected(1, 1 << 20);
  add_json(app, &options->json);
  set_examples(app, {{"weightfs warm /mnt/models/qwen3/latest",
                      "fetches all of it into the cache, so that reads wait for nothing"},
                     {"weightfs warm /mnt/models/qwen3/step-000101/model-00001-of-00002.safetensors", "one file"}});
  return [options] { return warm(*options); };
}

Run add_pin(CLI::App& app) {
  set_examples(app, {{"weightfs pin /mnt/models/qwen3/step-000100", "what is cached of it stays, whatever the quota"}});
  return add_pin_command(app, "pin", "The version that stays in the cache, in a mount");
}

Run add_unpin(CLI::App& app) {
  set_examples(app, {{"weightfs unpin /mnt/models/qwen3/step-000100", "it may be evicted again"}});
  return add_pin_command(app, "unpin", "The version that may go, in a mount");
}

}  // namespace weightfs::tools
