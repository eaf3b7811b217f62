// Completions of bash, zsh and fish, written from the tree of options itself, so that they cannot lag behind it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace weightfs::tools {

// The application that the hidden command `weightfs completion SHELL` describes. It outlives the command's run.
void register_completion(const CLI::App& app);

// A script for `shell`: "bash", "zsh" or "fish".
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace weightfs::tools
