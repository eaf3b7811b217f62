#include "fiber.h"

#include "store/base/status.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace weightfs::testing {
namespace {

constexpr std::size_t kStack = 512 << 10;
thread_local Fiber* current = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(new char[kStack]) {
  getcontext(&here_);
  here_.uc_stack.ss_sp = stack_.get();
  here_.uc_stack.ss_size = kStack;
  here_.uc_link = nullptr;
  makecontext(&here_, &Fiber::enter, 0);
#if defined(__SANITIZE_THREAD__)
  tsan_own_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(tsan_own_);
#endif
}

void Fiber::enter() {
  auto* self = current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_size_);
#endif
  self->body_();
  self->done_ = true;
  self->switch_out(true);
}

void Fiber::resume() {
  WFS_CHECK(!done_ && current == nullptr);
  current = this;
  switch_in();
  current = nullptr;
}

void Fiber::switch_in() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller_fake_, stack_.get(), kStack);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_own_, 0);
#endif
  swapcontext(&caller_, &here_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller_fake_, nullptr, nullptr);
#endif
}

void Fiber::switch_out([[maybe_unused]] bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &own_fake_, caller_stack_, caller_size_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_caller_, 0);
#endif
  swapcontext(&here_, &caller_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own_fake_, &caller_stack_, &caller_size_);
#endif
}

void Fiber::yield() {
  WFS_CHECK(current != nullptr);
  current->switch_out(false);
}

}  // namespace weightfs::testing
