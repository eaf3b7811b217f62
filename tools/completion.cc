#include "tools/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "tools/command.h"

namespace weightfs::tools {
namespace {

const CLI::App* described = nullptr;

struct Flag {
  std::string name;  // "--json"
  std::string help;
  bool takes_value = false;
};

std::vector<Flag> flags_of(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back({"--" + name, option->get_description(), option->get_items_expected_max() > 0});
    }
    for (const std::string& name : option->get_snames()) {
      flags.push_back({"-" + name, option->get_description(), option->get_items_expected_max() > 0});
    }
  }
  return flags;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) commands.push_back(command);
  }
  return commands;
}

std::string names(const std::vector<Flag>& flags) {
  std::string text;
  for (const Flag& flag : flags) text += (text.empty() ? "" : " ") + flag.name;
  return text;
}

// For a single-quoted string of a shell.
std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return text;
}

// As quoted(), with the characters that end a description in zsh's _arguments replaced.
std::string zsh_text(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ':') c = ' ';
  }
  return quoted(text);
}

std::string bash(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : commands_of(app)) {
    commands += (commands.empty() ? "" : " ") + command->get_name();
    cases += fmt::format("    {}) words='{}' ;;\n", command->get_name(), names(flags_of(*command)));
  }
  return fmt::format(
      R"(# bash completion of weightfs
_weightfs() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command='' words='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${{COMP_WORDS[i]}} != -* ]] && {{ command=${{COMP_WORDS[i]}}; break; }}
  done
  case $command in
    '') words='{0} {1}' ;;
{2}    *) ;;
  esac
  COMPREPLY=()
  if [[ -z $command || $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -F _weightfs weightfs
)",
      commands, names(flags_of(app)), cases);
}

std::string zsh(const CLI::App& app) {
  std::string commands, cases;
  auto arguments = [](const CLI::App& of) {
    std::string text;
    for (const Flag& flag : flags_of(of)) {
      text += fmt::format(" \\\n        '{}[{}]{}'", flag.name, zsh_text(flag.help),
                          flag.takes_value ? ":value:_files" : "");
    }
    return text;
  };
  for (const CLI::App* command : commands_of(app)) {
    commands += fmt::format("    '{}:{}'\n", command->get_name(), zsh_text(command->get_description()));
    cases += fmt::format("      {}) _arguments{} \\\n        '*:file:_files' ;;\n", command->get_name(),
                         arguments(*command));
  }
  return fmt::format(
      R"(#compdef weightfs
_weightfs() {{
  local -a commands
  commands=(
{}  )
  _arguments -C '1:command:->command' '*::argument:->argument'{}
  case $state in
    command) _describe 'command' commands ;;
    argument)
      case $words[1] in
{}      esac ;;
  esac
}}
_weightfs "$@"
)",
      commands, arguments(app), cases);
}

std::string fish(const CLI::App& app) {
  std::string text = "# fish completion of weightfs\n";
  auto option = [](const Flag& flag) {
    std::string name = flag.name.starts_with("--") ? "-l " + flag.name.substr(2) : "-s " + flag.name.substr(1);
    return fmt::format("{}{} -d '{}'", name, flag.takes_value ? " -r" : "", quoted(flag.help));
  };
  for (const Flag& flag : flags_of(app)) text += fmt::format("complete -c weightfs {}\n", option(flag));
  for (const CLI::App* command : commands_of(app)) {
    text += fmt::format("complete -c weightfs -f -n __fish_use_subcommand -a {} -d '{}'\n", command->get_name(),
                        quoted(command->get_description()));
    for (const Flag& flag : flags_of(*command)) {
      text += fmt::format("complete -c weightfs -n '__fish_seen_subcommand_from {}' {}\n", command->get_name(),
                          option(flag));
    }
  }
  return text;
}

}  // namespace

void register_completion(const CLI::App& app) { described = &app; }

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash(app);
  if (shell == "zsh") return zsh(app);
  return fish(app);
}

Run add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(std::vector<std::string>{"bash", "zsh", "fish"}));
  return [shell]() -> Result<int> {
    fmt::print("{}", completion_script(*described, *shell));
    return kDone;
  };
}

}  // namespace weightfs::tools
