// weightfs wait BUCKET_OR_DIR MODEL[/VERSION]
#include <fmt/format.h>

#include "fs/mount_table.h"
#include "store/base/posix.h"
#include "tools/beside.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  Scope what;
  std::optional<VersionName> newer_than;
  Duration timeout{-1};
  Duration poll = std::chrono::seconds(1);
  bool json = false;
};

// The name of the version waited for, when it is there.
using Look = std::function<Result<std::optional<std::string>>()>;

// In the log: by number, for names may be removed and used again.
Result<std::optional<std::string>> look_in_log(Store& store, const Options& options) {
  auto state = store.refresh_model(*options.what.model, short_call());
  if (!state) {
    // No such model yet, or a short outage: waiting is for that.
    if (state.code() == Code::kNotFound || state.code() == Code::kUnavailable) return std::optional<std::string>();
    return std::move(state).status();
  }
  const VersionRecord* found = (*state)->latest();
  if (!options.what.version.empty() && options.what.version != "latest") {
    found = (*state)->live(WFS_TRY(VersionName::parse(options.what.version)));
  }
  if (found == nullptr) return std::optional<std::string>();
  if (options.newer_than) {
    // It may have been removed meanwhile; while the log remembers it, its number still counts.
    for (const auto& [number, version] : (*state)->versions) {
      if (version.name == *options.newer_than && number >= found->number) return std::optional<std::string>();
    }
  }
  return std::optional(found->name.str());
}

// Does the log that the mount's daemon reads have the live version `name` after all that were called newer_than?
Result<bool> is_newer(const Options& options, const std::string& name) {
  ControlClient daemon = WFS_TRY(daemon_of_mount(options.bucket.bucket));
  auto asked = daemon.call({{"op", "log"}, {"model", percent_encode(options.what.model->str())}});
  if (asked.code() == Code::kUnavailable || asked.code() == Code::kNotFound) return false;  // as look_in_log
  control::Json log = WFS_TRY(std::move(asked));
  auto newest = [&](const char* field, const std::string& wanted) {
    std::uint64_t number = 0;
    for (const auto& version : log.value(field, control::Json::array())) {
      if (decoded(version.value("name", std::string())) != wanted) continue;
      number = std::max(number, version.value("number", std::uint64_t{0}));
    }
    return number;
  };
  std::string than = options.newer_than->str();
  return newest("versions", name) > std::max(newest("versions", than), newest("removed", than));
}

// In a mount: `latest`, and the state of the version's directory.
Result<std::optional<std::string>> look_in_mount(const Options& options) {
  std::string model = options.bucket.bucket + "/" + options.what.model->str();
  std::string name = options.what.version;
  if (name.empty() || name == "latest") {
    auto latest = posix::read_link(model + "/latest");
    if (!latest && latest.code() == Code::kNotFound) return std::optional<std::string>();
    name = WFS_TRY(std::move(latest));
  }
  auto state = version_state(model + "/" + name);
  if (!state && state.code() == Code::kNotFound) return std::optional<std::string>();
  if (WFS_TRY(std::move(state)) != "committed") return std::optional<std::string>();
  if (options.newer_than && !WFS_TRY(is_newer(options, name))) return std::optional<std::string>();
  return std::optional(name);
}

Result<int> wait(const Options& options, const Look& look) {
  auto started = std::chrono::steady_clock::now();
  for (;;) {
    auto found = WFS_TRY(look());
    if (found) {
      std::string name = options.what.model->str() + "/" + *found;
      if (options.json) {
        print_json({{"version", name}});
      } else {
        fmt::print("{}\n", printable(name));
      }
      return kDone;
    }
    if (interrupted()) return Status(Code::kInterrupted, "interrupted");
    auto waited = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - started);
    if (options.timeout.count() >= 0 && waited >= options.timeout) {
      return Status(Code::kUnavailable,
                    fmt::format("{}{} is not there after {}; see `weightfs log`, or wait longer with --timeout",
                                options.what.str(),
                                options.newer_than ? " newer than " + options.newer_than->str() : std::string(),
                                format_seconds(static_cast<double>(waited.count()) / 1e3)));
    }
    Duration pause = options.timeout.count() >= 0 ? std::min(options.poll, options.timeout - waited) : options.poll;
    Clock::system().sleep_for(pause);
  }
}

// Does not touch the filesystem there, which may hang.
bool is_mount(const std::string& path) {
  auto mount = mount_of(posix::absolute(path));
  return mount && mount->second.empty();
}

Result<int> run(const Options& options) {
  if (is_mount(options.bucket.bucket)) return wait(options, [&] { return look_in_mount(options); });
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  return wait(options, [&] { return look_in_log(*session, options); });
}

}  // namespace

Run add_wait(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("BUCKET_OR_DIR", options->bucket.bucket, "A bucket, or a directory where one is mounted")->required();
  add_scope(app, "MODEL[/VERSION]", &options->what, "What to wait for: that version, or any of the model")->required();
  app.add_option_function<std::string>(
         "--newer-than",
         [options](const std::string& text) {
           auto name = VersionName::parse(text);
           if (!name) throw CLI::ValidationError("--newer-than", name.status().message());
           options->newer_than = std::move(name).value();
         },
         "Only a version published after this one")
      ->type_name("VERSION");
  add_duration(app, "--timeout", &options->timeout, "Give up after so long, with exit code 1 (default: never)");
  add_duration(app, "--poll", &options->poll, "How often to ask (default: 1s)");
  add_cache_dir(app, &options->bucket.cache_dir);
  app.add_option("--endpoint", options->bucket.endpoint, "URL of the S3 server")->type_name("URL");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs wait s3://weights/prod qwen3 --newer-than step-000100",
                      "returns when there is a newer version and prints its name"},
                     {"weightfs wait /mnt/models qwen3/step-000200 --timeout 10m", "waits for that one, in a mount"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
