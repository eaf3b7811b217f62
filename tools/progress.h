// One line on stderr that says how far a long call is; nothing when stderr is no terminal or the call is short.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "store/base/mutex.h"
#include "store/store.h"

namespace weightfs::tools {

class ProgressBar {
 public:
  // Draws on a thread of its own, so that the line is there also while the call says nothing.
  explicit ProgressBar(std::string what);
  ~ProgressBar();  // as finish()
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // To be handed to the store; any thread may call it while this lives.
  Progress callback();
  void update(std::uint64_t done, std::uint64_t total) EXCLUDES(mutex_);
  void finish() EXCLUDES(mutex_);  // wipes the line, for good

 private:
  void draw_until_finished() EXCLUDES(mutex_);

  const std::string what_;
  const std::chrono::steady_clock::time_point started_;
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t done_ GUARDED_BY(mutex_) = 0, total_ GUARDED_BY(mutex_) = 0;
  bool finished_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // only when there is a terminal
};

}  // namespace weightfs::tools
