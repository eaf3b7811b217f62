// One line on stderr that says how far a long call is; nothing when stderr is no terminal or the call is short.
#pragma once

#include <chrono>
#include <string>

#include "store/base/mutex.h"
#include "store/store.h"

namespace weightfs::tools {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();  // wipes the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // To be handed to the store; any thread may call it while this lives.
  Progress callback();
  void update(std::uint64_t done, std::uint64_t total) EXCLUDES(mutex_);
  void finish() EXCLUDES(mutex_);

 private:
  const std::string what_;
  const bool shown_;
  const std::chrono::steady_clock::time_point started_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point drawn_ GUARDED_BY(mutex_);
  bool on_screen_ GUARDED_BY(mutex_) = false;
};

}  // namespace weightfs::tools
