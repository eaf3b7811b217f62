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
    Command{"publish", "Publish a directory as a version, without a mount", add_publish},
    Command{"get", "Write a version into a directory, byte-exact", add_get},
    Command{"wait", "Wait until a version is there", add_wait},
    Command{"ls", "List models, or the versions of one", add_ls},
    Command{"log", "Show the history of a model: parents, sizes, what changed", add_log},
    Command{"completion", "", add_completion},
};

constexpr const char* kAbout =
    "weightfs: versioned model weights as a filesystem. A bucket keeps checkpoints as a base and small deltas; a "
    "mount\n"
    "shows each version as an ordinary directory of byte-exact files.";

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kWrongUsage;
  }

  set_up_log(level);
  Result<int> result = chosen_run();
  Status written = flush_output();
  if (result && !written) result = written;
  if (result) return *result;
  if (result.code() == Code::kInterrupted && interrupted()) {
    print_error(chosen->name, Status(Code::kInterrupted, "interrupted; nothing half done is visible"));
    return kInterruptedExit;
  }
  print_error(chosen->name, result.status());
  return kFailed;
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
