// Runs the console blocks of fs/SEMANTICS.md in a real mount: the text itself, not a copy of it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "fs/errno.h"
#include "tests/support/fake_store.h"
#include "tests/support/mount_session.h"

namespace weightfs {
namespace {

struct Step {
  std::string command;
  std::vector<std::string> expected;
};
using Block = std::vector<Step>;

std::string document() {
  std::ifstream file(WEIGHTFS_SEMANTICS);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Block> console_blocks(const std::string& text) {
  std::vector<Block> blocks;
  std::istringstream lines(text);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "```console") {
      inside = true;
      blocks.emplace_back();
    } else if (line.starts_with("```")) {
      inside = false;
    } else if (inside && line.starts_with("$ ")) {
      blocks.back().push_back({line.substr(2), {}});
    } else if (inside && !blocks.back().empty()) {
      blocks.back().back().expected.push_back(line);
    }
  }
  return blocks;
}

// "…" in `expected` stands for any text.
bool matches(std::string_view expected, std::string_view actual) {
  constexpr std::string_view kAny = "…";
  auto any = expected.find(kAny);
  if (any == expected.npos) return expected == actual;
  if (!actual.starts_with(expected.substr(0, any))) return false;
  auto rest = expected.substr(any + kAny.size());
  for (auto at = any; at <= actual.size(); at++) {
    if (matches(rest, actual.substr(at))) return true;
  }
  return false;
}

TEST(SemanticsTest, EveryConsoleBlockDoesWhatItSays) {
  FakeStore store;
  std::string weights(3'000'000, '\0');
  for (std::size_t i = 0; i < weights.size(); i++) weights[i] = static_cast<char>(i == 3 ? 1 : i < 4 ? 0 : i % 251);
  std::vector<FakeFile> files = {{"config.json", "{}"},
                                 {"model.safetensors", weights},
                                 {"run.sh", "#!/bin/sh\necho ok\n", FileKind::kFile, 0755},
                                 {"tokenizer/vocab.txt", "a b c"},
                                 {"tokenizer/link", "", FileKind::kSymlink, 0777, "vocab.txt"}};
  store.publish_files("qwen3", "step-100", files);
  store.publish_files("qwen3", "step-101", files);
  MountSession session(store);
  auto blocks = console_blocks(document());
  ASSERT_GT(blocks.size(), 3u);
  for (const auto& block : blocks) {
    std::string script = "export LC_ALL=C.UTF-8\n";
    const std::string mark = "--- end of step ---";
    for (const auto& step : block) script += step.command + "\necho '" + mark + "'\n";
    auto file = store.cache().dir() + "/script";
    std::ofstream(file) << script;
    auto output = run_shell("timeout 120 bash " + file, nullptr, session.path());
    std::istringstream lines(output);
    for (const auto& step : block) {
      std::vector<std::string> actual;
      for (std::string line; std::getline(lines, line) && line != mark;) {
        bool last = line.ends_with(mark);  // the command's own last line has no end
        if (last) line.resize(line.size() - mark.size());
        actual.push_back(line);
        if (last) break;
      }
      bool same = actual.size() == step.expected.size();
      for (std::size_t i = 0; same && i < actual.size(); i++) same = matches(step.expected[i], actual[i]);
      std::string shown;
      for (const auto& line : actual) shown += line + "\n";
      EXPECT_TRUE(same) << "$ " << step.command << "\n" << shown;
    }
  }
}

TEST(SemanticsTest, TheTableOfErrorsIsTheOneInUse) {
  auto text = document();
  for (const auto& row : errno_table()) {
    auto line = "| " + std::string(to_string(row.code)) + " | " + std::string(row.name) + " | " +
                std::string(row.meaning) + " |";
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace weightfs
