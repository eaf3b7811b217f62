#include "store/log/parallel.h"

#include <algorithm>

#include "store/base/threads.h"

namespace weightfs {

void run_parallel(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& job) {
  threads = std::min(threads, count);
  std::atomic<std::size_t> next = 0;
  auto work = [&] {
    for (auto i = next.fetch_add(1); i < count; i = next.fetch_add(1)) job(i);
  };
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < threads; i++) {
    helpers.push_back(start_thread("log-get", [&](const std::stop_token&) { work(); }));
  }
  work();
}

Status Deadline::check() const {
  if (cancel_ && cancel_->cancelled()) return {Code::kInterrupted, "cancelled"};
  if (left() <= Duration(0)) return {Code::kUnavailable, "the deadline passed"};
  return {};
}

}  // namespace weightfs
