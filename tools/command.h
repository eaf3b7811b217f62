// The subcommands and what they share. A subcommand is one file, cmd_NAME.cc, with one function that adds its options
// and returns what to run once they are parsed; main.cc has the table.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "store/base/names.h"
#include "store/base/status.h"
#include "store/store.h"

namespace weightfs::tools {

// Exit codes, a contract (docs: interface).
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kDamaged = 3;
inline constexpr int kInterruptedExit = 130;

// The exit code, or the error that main prints as one line.
using Run = std::function<Result<int>()>;

struct Command {
  const char* name;
  const char* summary;  // one line of `weightfs --help`
  Run (*add)(CLI::App& app);
};

Run add_mount(CLI::App& app);
Run add_umount(CLI::App& app);
Run add_publish(CLI::App& app);
Run add_commit(CLI::App& app);
Run add_get(CLI::App& app);
Run add_wait(CLI::App& app);
Run add_ls(CLI::App& app);
Run add_log(CLI::App& app);
Run add_diff(CLI::App& app);
Run add_verify(CLI::App& app);
Run add_rm(CLI::App& app);
Run add_gc(CLI::App& app);
Run add_compact(CLI::App& app);
Run add_status(CLI::App& app);
Run add_stats(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_warm(CLI::App& app);
Run add_pin(CLI::App& app);
Run add_unpin(CLI::App& app);
Run add_completion(CLI::App& app);

// Options whose text is parsed at once, so that a wrong one is wrong usage (exit 2) and names itself.
CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t* to, const std::string& help);
CLI::Option* add_duration(CLI::App& app, const std::string& name, Duration* to, const std::string& help);
CLI::Option* add_model(CLI::App& app, const std::string& name, std::optional<ModelName>* to, const std::string& help);
CLI::Option* add_version(CLI::App& app, const std::string& name, std::optional<VersionRef>* to,
                         const std::string& help);
// MODEL or MODEL/VERSION; VERSION may be "latest".
struct Scope {
  std::optional<ModelName> model;
  std::string version;  // "": the whole model
  std::string str() const { return version.empty() ? model->str() : model->str() + "/" + version; }
};
CLI::Option* add_scope(CLI::App& app, const std::string& name, Scope* to, const std::string& help);
// MODEL/VERSION or MODEL/latest, required.
void add_version_scope(CLI::App& app, const std::string& name, Scope* to, const std::string& help);
// The same for options that may be repeated. Throws CLI::ValidationError, which is wrong usage.
Scope parse_version_scope(const std::string& option, const std::string& text);
CLI::Option* add_json(CLI::App& app, bool* to);

// Examples below the help: pairs of a command line and what it does.
void set_examples(CLI::App& app, std::initializer_list<std::pair<const char*, const char*>> examples);

}  // namespace weightfs::tools
