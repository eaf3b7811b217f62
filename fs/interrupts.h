// Which waiting requests the kernel wants ended. The kernel says "interrupted" once, for any signal; a wait on a local
// disk notices only fatal ones, and a page fault that fails is a SIGBUS. So a request is ended when a fatal signal is
// pending (or, for a call that is no page fault, one a person sent), and else looked at again until it is answered. Of
// a thread that cannot be seen (another pid namespace) any signal counts as fatal, a few seconds late.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "fs/caller.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"

namespace weightfs {

class Interrupts {
 public:
  using Token = std::uintptr_t;  // never 0, never reused

  Interrupts();
  ~Interrupts();

  // A request of `tid` begins to wait. `cancel` is called with no lock held, on this object's thread or cancel_all's,
  // as late as after remove(), and again a little later when it returned false: there was nothing to cancel yet.
  // `page_fault`: only a fatal signal ends it.
  using Cancel = std::function<bool()>;
  Token add(pid_t tid, bool page_fault, Cancel cancel) EXCLUDES(mutex_);
  void remove(Token token) EXCLUDES(mutex_);
  // The kernel's INTERRUPT. Any thread, returns at once.
  void interrupted(Token token) EXCLUDES(mutex_);
  // Cancels every request that waits now (unmount).
  void cancel_all() EXCLUDES(mutex_);

 private:
  struct Waiting {
    pid_t tid;
    bool page_fault;
    bool interrupted = false;
    SteadyTime since{};  // of the interrupt
    std::shared_ptr<Cancel> cancel;
  };
  void end(Token token) EXCLUDES(mutex_);
  void run(const std::stop_token& stop) EXCLUDES(mutex_);
  Mutex mutex_;
  CondVar changed_;
  Token next_ GUARDED_BY(mutex_) = 1;
  std::size_t interrupted_ GUARDED_BY(mutex_) = 0;  // of the waiting ones
  bool fresh_ GUARDED_BY(mutex_) = false;           // one of them was not looked at yet
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::map<Token, Waiting> waiting_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace weightfs
