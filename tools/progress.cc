#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "store/base/threads.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

constexpr auto kQuiet = std::chrono::seconds(1);  // shorter calls show nothing
constexpr auto kEvery = std::chrono::milliseconds(200);
constexpr int kWidth = 28;

std::string draw(const std::string& what, std::uint64_t done, std::uint64_t total, double seconds) {
  double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string speed = format_size(static_cast<std::uint64_t>(rate)) + "/s";
  if (done == 0) return fmt::format("{}: {}", what, format_seconds(seconds));
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

ProgressBar::ProgressBar(std::string what) : what_(std::move(what)), started_(std::chrono::steady_clock::now()) {
  if (::isatty(STDERR_FILENO) != 1) return;
  thread_ = start_thread("progress", [this](const std::stop_token&) { draw_until_finished(); });
}

ProgressBar::~ProgressBar() { finish(); }

Progress ProgressBar::callback() {
  return [this](std::uint64_t done, std::uint64_t total) { update(done, total); };
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  MutexLock lock(mutex_);
  done_ = done;
  total_ = total;
}

void ProgressBar::finish() {
  {
    MutexLock lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ProgressBar::draw_until_finished() {
  auto next = started_ + kQuiet;
  bool on_screen = false;
  for (;;) {
    std::uint64_t done = 0, total = 0;
    {
      MutexLock lock(mutex_);
      while (!finished_ && changed_.wait_until(mutex_, next)) {
      }
      if (finished_) break;
      done = done_;
      total = total_;
    }
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    fmt::print(stderr, "\r\033[K{}", draw(what_, done, total, seconds));
    std::fflush(stderr);
    on_screen = true;
    next += kEvery;
  }
  if (!on_screen) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace weightfs::tools
