#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/units.h"

namespace weightfs::tools {
namespace {

constexpr auto kQuiet = std::chrono::seconds(1);  // shorter calls show nothing
constexpr auto kEvery = std::chrono::milliseconds(100);
constexpr int kWidth = 28;

std::string draw(const std::string& what, std::uint64_t done, std::uint64_t total, double seconds) {
  double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string speed = format_size(static_cast<std::uint64_t>(rate)) + "/s";
  if (total == 0) return fmt::format("{}: {}, {}", what, format_size(done), speed);
  double fraction = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  int full = static_cast<int>(fraction * kWidth);
  std::string left = rate > 0 && done < total
                         ? ", " + format_seconds(static_cast<double>(total - done) / rate) + " left"
                         : std::string();
  return fmt::format("{} [{:#<{}}{:.<{}}] {} of {}, {}{}", what, "", full, "", kWidth - full, format_size(done),
                     format_size(total), speed, left);
}

}  // namespace

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)),
      shown_(::isatty(STDERR_FILENO) == 1),
      started_(std::chrono::steady_clock::now()),
      drawn_(started_) {}

ProgressBar::~ProgressBar() { finish(); }

Progress ProgressBar::callback() {
  return [this](std::uint64_t done, std::uint64_t total) { update(done, total); };
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  if (!shown_) return;
  auto now = std::chrono::steady_clock::now();
  std::string line;
  {
    MutexLock lock(mutex_);
    if (now - started_ < kQuiet || now - drawn_ < kEvery) return;
    drawn_ = now;
    on_screen_ = true;
  }
  line = draw(what_, done, total, std::chrono::duration<double>(now - started_).count());
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
}

void ProgressBar::finish() {
  bool wipe = false;
  {
    MutexLock lock(mutex_);
    std::swap(wipe, on_screen_);
  }
  if (wipe) {
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
}

}  // namespace weightfs::tools
