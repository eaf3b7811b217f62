#include "tools/log_setup.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

namespace weightfs::tools {
namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %^%-5l%$ %v";

// True when standard error is the journal's socket: JOURNAL_STREAM is "device:inode" of it.
bool logs_to_journal() {
  const char* stream = ::getenv("JOURNAL_STREAM");
  struct stat info = {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return false;
  return fmt::format("{}:{}", info.st_dev, info.st_ino) == stream;
}

// "<3>": the syslog priority that journald takes off the front of a line.
class Priority : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string_view prefix = "<7>";
    if (message.level >= spdlog::level::err) {
      prefix = "<3>";
    } else if (message.level == spdlog::level::warn) {
      prefix = "<4>";
    } else if (message.level == spdlog::level::info) {
      prefix = "<6>";
    }
    out.append(prefix.data(), prefix.data() + prefix.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Priority>(); }
};

}  // namespace

void set_up_log(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  if (logs_to_journal()) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<Priority>('*').set_pattern("%*%v");
    logger->set_formatter(std::move(formatter));
  } else {
    logger->set_pattern(kPattern);
  }
  logger->set_level(level == "error" ? spdlog::level::err : spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void log_to_file(const std::string& path) {
  constexpr std::size_t kMost = 4 << 20;
  auto level = spdlog::default_logger()->level();
  std::shared_ptr<spdlog::logger> logger;
  try {
    logger = std::make_shared<spdlog::logger>("weightfs",
                                              std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, kMost, 1));
  } catch (const spdlog::spdlog_ex& error) {
    spdlog::warn("no log file: {}", error.what());  // a full disk is no reason not to mount
    return;
  }
  logger->set_pattern(kPattern);
  // A daemon nobody looks at tells what it did: level info, unless more or less was asked for.
  logger->set_level(level == spdlog::level::warn ? spdlog::level::info : level);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace weightfs::tools
