#include "fs/interrupts.h"

#include <vector>

#include "store/base/threads.h"

namespace weightfs {
namespace {
constexpr auto kLookAgain = std::chrono::milliseconds(250);
constexpr auto kUnseen = std::chrono::seconds(3);
}  // namespace

Interrupts::Interrupts() : thread_(start_thread("fs-interrupts", [this](const std::stop_token& stop) { run(stop); })) {}

Interrupts::~Interrupts() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

Interrupts::Token Interrupts::add(pid_t tid, bool page_fault, Cancel cancel) {
  MutexLock lock(mutex_);
  auto token = next_++;
  waiting_.emplace(token, Waiting{tid, page_fault, false, {}, std::make_shared<Cancel>(std::move(cancel))});
  return token;
}

void Interrupts::remove(Token token) {
  MutexLock lock(mutex_);
  auto found = waiting_.find(token);
  if (found == waiting_.end()) return;
  if (found->second.interrupted) interrupted_--;
  waiting_.erase(found);
}

void Interrupts::interrupted(Token token) {
  {
    MutexLock lock(mutex_);
    auto found = waiting_.find(token);
    if (found == waiting_.end() || found->second.interrupted) return;
    found->second.interrupted = true;
    found->second.since = std::chrono::steady_clock::now();
    interrupted_++;
    fresh_ = true;
  }
  changed_.notify_all();
}

void Interrupts::cancel_all() {
  std::vector<Token> tokens;
  {
    MutexLock lock(mutex_);
    for (auto& [token, waiting] : waiting_) tokens.push_back(token);
  }
  for (auto token : tokens) end(token);
}

void Interrupts::end(Token token) {
  std::shared_ptr<Cancel> cancel;
  {
    MutexLock lock(mutex_);
    auto found = waiting_.find(token);
    if (found == waiting_.end()) return;
    cancel = found->second.cancel;
  }
  if ((*cancel)()) remove(token);
}

void Interrupts::run(const std::stop_token& /*stop*/) {
  while (true) {
    struct Look {
      Token token;
      pid_t tid;
      bool page_fault;
      SteadyTime since;
    };
    std::vector<Look> looks;
    {
      MutexLock lock(mutex_);
      if (!stopping_ && !fresh_) {
        if (interrupted_ == 0) {
          changed_.wait(mutex_);
        } else {
          changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kLookAgain);
        }
      }
      if (stopping_) return;
      fresh_ = false;
      for (auto& [token, waiting] : waiting_) {
        if (waiting.interrupted) looks.push_back({token, waiting.tid, waiting.page_fault, waiting.since});
      }
    }
    for (const auto& look : looks) {
      if (look.tid == 0 && std::chrono::steady_clock::now() - look.since < kUnseen) continue;
      auto pending = pending_signal(look.tid);
      if (pending == PendingSignal::kNone || (pending == PendingSignal::kPerson && look.page_fault)) continue;
      end(look.token);
    }
  }
}

}  // namespace weightfs
