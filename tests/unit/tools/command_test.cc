#include "tools/command.h"

#include <gtest/gtest.h>

#include "tools/completion.h"

namespace weightfs::tools {
namespace {

void parse(CLI::App& app, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());
  app.parse(words);
}

TEST(Command, AWrongSizeIsWrongUsageAndNamesItsOption) {
  CLI::App app;
  std::uint64_t size = 0;
  add_size(app, "--cache-size", &size, "");
  try {
    parse(app, {"--cache-size", "many"});
    FAIL();
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(std::string(error.what()).find("--cache-size"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("200G"), std::string::npos);
  }
}

TEST(Command, AScopeIsAModelOrAVersionOrLatest) {
  CLI::App app;
  Scope scope;
  add_scope(app, "WHAT", &scope, "");
  parse(app, {"qwen3"});
  EXPECT_EQ(scope.str(), "qwen3");
  parse(app, {"qwen3/latest"});
  EXPECT_EQ(scope.str(), "qwen3/latest");
  parse(app, {"qwen3/step-1"});
  EXPECT_EQ(scope.version, "step-1");
  for (const char* bad : {"/x", "a/b/c", "..", "a/.x", ""}) {
    EXPECT_THROW(parse(app, {bad}), CLI::ParseError) << bad;
  }
}

TEST(Command, CompletionsNameEveryOptionOfEveryCommand) {
  CLI::App app("", "weightfs");
  add_ls(*app.add_subcommand("ls", "List it's models"));
  for (const char* shell : {"bash", "zsh", "fish"}) {
    std::string script = completion_script(app, shell);
    EXPECT_NE(script.find("json"), std::string::npos) << shell;
    EXPECT_NE(script.find("cache-dir"), std::string::npos) << shell;
  }
}

}  // namespace
}  // namespace weightfs::tools
