// The `weightfs` command: parses, runs one subcommand, turns its Status into one line and an exit code.
#include <curl/curl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <exception>

#include "tools/command.h"
#include "tools/completion.h"
#include "tools/interrupt.h"
#include "tools/log_setup.h"
#include "tools/output.h"

namespace weightfs::tools {
namespace {

// In the order of a day's work, as --help shows them.
constexpr std::array kCommands = {
    Command{"mount", "Show a bucket as a directory", add_mount},
    Command{"umount", "End a mount; drafts are published or kept", add_umount},
    Command{"commit", "Make a draft in a mount a version now", add_commit},
    Command{"publish", "Publish a directory as a version, without a mount", add_publish},
    Command{"get", "Write a version into a directory, byte-exact", add_get},
    Command{"wait", "Wait until a version is there", add_wait},
    Command{"ls", "List models, or the versions of one", add_ls},
    Command{"log", "Show the history of a model: parents, sizes, what changed", add_log},
    Command{"diff", "Compare two versions tensor by tensor", add_diff},
    Command{"verify", "Check that everything in a bucket is there and sound", add_verify},
    Command{"rm", "Remove a version", add_rm},
    Command{"gc", "Delete what no version needs", add_gc},
    Command{"compact", "Shorten how versions are rebuilt", add_compact},
    Command{"status", "Show mounts, caches and drafts", add_status},
    Command{"stats", "Show the counters of a mount", add_stats},
    Command{"bench", "Say what a delta between two checkpoints costs and how fast it is", add_bench},
    Command{"warm", "Fetch versions into the cache of their mount", add_warm},
    Command{"pin", "Keep a version in the cache", add_pin},
    Command{"unpin", "Let a version be evicted again", add_unpin},
    Command{"completion", "", add_completion},
};

constexpr const char* kAbout =
    "weightfs: versioned model weights as a filesystem. A bucket keeps checkpoints as a base and small deltas; a "
    "mount\n"
    "shows each version as an ordinary directory of byte-exact files.";

// Of a command that ran: its exit code, and the line for what went wrong.
int finish(const char* command, Result<int> result) {
  Status written = flush_output();
  if (result && !written) result = written;
  if (result) return *result;
  if (result.code() == Code::kInterrupted && interrupted()) {
    print_error(command, Status(Code::kInterrupted, "interrupted; nothing half done is visible"));
    return kInterruptedExit;
  }
  print_error(command, result.status());
  return kFailed;
}

// CLI11 says only that a subcommand is required.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    std::string word = argv[i];
    if (word == "--log-level") i++;
    if (word.starts_with("-")) continue;
    auto commands = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == word; });
    return commands.empty() ? word : "";
  }
  return "";
}

int run(int argc, char** argv) {
  CLI::App app(kAbout, "weightfs");
  std::string level = "warn";
  app.set_version_flag("--version", "weightfs " WEIGHTFS_VERSION);
  app.add_option("--log-level", level, "Log lines shown on standard error: error, warn, info, debug (default: warn)")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kLogLevels), std::end(kLogLevels))))
      ->type_name("LEVEL")
      ->envname("WEIGHTFS_LOG_LEVEL");
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);

  const Command* chosen = nullptr;
  Run chosen_run;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->fallthrough();  // options of ours may follow the subcommand
    if (*command.summary == '\0') sub->group("");
    Run body = command.add(*sub);
    sub->callback([&chosen, &chosen_run, &command, body] {
      chosen = &command;
      chosen_run = body;
    });
  }
  register_completion(app);

  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    const CLI::App* named = failed;
    if (!failed->get_subcommands().empty()) named = failed->get_subcommands().front();
    std::string name = named->get_parent() == nullptr ? "weightfs" : "weightfs " + named->get_name();
    return fmt::format("{}: {}; see `{} --help`\n", name, error.what(), name);
  });
  if (std::string word = unknown_command(app, argc, argv); !word.empty()) {
    print_error("", Status(Code::kInvalid, fmt::format("no command '{}'; see `weightfs --help`", word)));
    return kWrongUsage;
  }
  try {
    app.parse(argc, argv);
    set_up_log(level);
    return finish(chosen->name, chosen_run());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kWrongUsage;
  }
}

}  // namespace
}  // namespace weightfs::tools

int main(int argc, char** argv) {
  weightfs::tools::install_interrupt_handlers();
  curl_global_init(CURL_GLOBAL_DEFAULT);
  int code = weightfs::tools::kFailed;
  try {
    code = weightfs::tools::run(argc, argv);
  } catch (const std::exception& error) {
    weightfs::tools::print_error("", weightfs::Status(weightfs::Code::kIo, error.what()));
  }
  curl_global_cleanup();
  return code;
}
