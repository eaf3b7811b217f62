// A function that can be stopped where it calls yield() and gone on with later, on the same thread.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

namespace weightfs::testing {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // REQUIRES: done, or never resumed
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  // until it yields or ends.   REQUIRES: not done()
  bool done() const { return done_; }
  static void yield();  // from inside a fiber

 private:
  static void enter();
  void switch_in();
  void switch_out(bool for_ever);
  std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t here_{}, caller_{};
  bool done_ = false;
  // What sanitizers want to be told about stacks.
  void* own_fake_ = nullptr;
  void* caller_fake_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_size_ = 0;
  void* tsan_own_ = nullptr;
  void* tsan_caller_ = nullptr;
};

}  // namespace weightfs::testing
