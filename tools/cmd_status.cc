// weightfs status [DIR], stats DIR
#include <fmt/format.h>

#include "fs/mount_table.h"
#include "tools/beside.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  std::string dir;
  bool json = false;
};

Json facts_of(const control::Json& answer) {
  Json facts;
  for (const char* field :
       {"mountpoint", "bucket", "pid", "weightfs", "read_only", "models", "passthrough", "cache_dir", "cache"}) {
    if (answer.contains(field)) facts[field] = answer[field];
  }
  facts["drafts"] = Json::array();
  for (const auto& draft : answer.value("drafts", control::Json::array())) {
    facts["drafts"].push_back({{"name", decoded(draft.value("version", std::string()))},
                               {"state", draft.value("state", std::string())},
                               {"text", draft.value("text", std::string())},
                               {"writers", draft.value("writers", 0)}});
  }
  return facts;
}

void print_text(const Json& facts) {
  const Json cache = facts.value("cache", Json::object());
  std::uint64_t quota = cache.value("quota", std::uint64_t{0});
  fmt::print("{} on {}: pid {}, {} models{}\n", printable(facts.value("bucket", std::string())),
             printable(facts.value("mountpoint", std::string())), facts.value("pid", 0), facts.value("models", 0),
             facts.value("read_only", false) ? ", read-only" : "");
  if (facts.contains("passthrough")) {
    fmt::print("  passthrough of complete files: {}\n", printable(facts.value("passthrough", std::string())));
  }
  fmt::print("  cache {}: {} of {}, drafts {}, {} free on the disk\n",
             printable(facts.value("cache_dir", std::string())),
             format_size(cache.value("flat_bytes", std::uint64_t{0})), quota == 0 ? "no limit" : format_size(quota),
             format_size(cache.value("draft_bytes", std::uint64_t{0})),
             format_size(cache.value("disk_free", std::uint64_t{0})));
  for (const Json& draft : facts["drafts"]) {
    fmt::print("  {}: {}\n", printable(draft.value("name", std::string())),
               printable(draft.value("text", std::string())));
  }
}

Result<Json> ask(const std::string& dir) {
  ControlClient daemon = WFS_TRY(daemon_of_mount(dir));
  return facts_of(WFS_TRY(daemon.call({{"op", "status"}})));
}

Result<int> one(const Options& options) {
  Json facts = WFS_TRY(ask(options.dir));
  if (options.json) {
    print_json(facts);
  } else {
    print_text(facts);
  }
  return kDone;
}

// A mount that does not answer (another user's, or one whose daemon is gone) is shown with the reason.
Result<int> all(const Options& options) {
  Json mounts = Json::array();
  for (const MountEntry& mount : WFS_TRY(mounted())) {
    if (mount.type != "fuse.weightfs") continue;
    auto facts = ask(mount.mountpoint);
    if (facts) {
      mounts.push_back(*facts);
    } else {
      mounts.push_back(
          {{"mountpoint", mount.mountpoint}, {"bucket", mount.source}, {"error", facts.status().message()}});
    }
  }
  if (options.json) {
    print_json({{"mounts", std::move(mounts)}});
    return kDone;
  }
  for (const Json& facts : mounts) {
    if (facts.contains("error")) {
      fmt::print("{} on {}: {}\n", printable(facts.value("bucket", std::string())),
                 printable(facts.value("mountpoint", std::string())), printable(facts.value("error", std::string())));
    } else {
      print_text(facts);
    }
  }
  if (mounts.empty()) fmt::print("no mounts\n");
  return kDone;
}

Result<int> stats(const Options& options) {
  ControlClient daemon = WFS_TRY(daemon_of_mount(options.dir));
  control::Json answer = WFS_TRY(daemon.call({{"op", "stats"}}));
  answer.erase("ok");
  if (options.json) {
    print_json(Json(answer));
  } else {
    std::vector<std::vector<std::string>> rows = {{"COUNTER", ">VALUE"}};
    for (const auto& [name, value] : answer.items()) rows.push_back({name, value.dump()});
    print_table(rows);
  }
  return kDone;
}

}  // namespace

Run add_status(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("DIR", options->dir, "Only this mount (default: all)");
  add_json(app, &options->json);
  set_examples(app,
               {{"weightfs status", "each mount: bucket, cache use, and drafts with why they are not yet published"},
                {"weightfs status /mnt/models --json", "one mount, for a script"}});
  return [options] { return options->dir.empty() ? all(*options) : one(*options); };
}

Run add_stats(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("DIR", options->dir, "Where the bucket is mounted")->required();
  add_json(app, &options->json);
  set_examples(app,
               {{"weightfs stats /mnt/models --json", "requests and bytes to and from the bucket, cache, memory …"}});
  return [options] { return stats(*options); };
}

}  // namespace weightfs::tools
