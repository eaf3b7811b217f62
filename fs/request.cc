#include "fs/request.h"

#include <spdlog/spdlog.h>

#include "fs/session_data.h"

namespace weightfs {

void InFlight::begin() {
  MutexLock lock(mutex_);
  count_++;
}

void InFlight::end() {
  MutexLock lock(mutex_);
  if (--count_ == 0) none_.notify_all();
}

std::uint64_t InFlight::count() const {
  MutexLock lock(mutex_);
  return count_;
}

bool InFlight::wait_for_none(SteadyTime deadline) {
  MutexLock lock(mutex_);
  while (count_ != 0) {
    if (!none_.wait_until(mutex_, deadline)) return count_ == 0;
  }
  return true;
}

Request::~Request() {
  if (req_ == nullptr) return;
  spdlog::error("{}: left without an answer, EIO", op_);
  fail(answer::kIo);
}

bool Request::finish(int result) {
  req_ = nullptr;
  in_flight_->end();
  return result == 0;
}

Caller Request::caller() const {
  const auto* context = fuse_req_ctx(req_);
  return {context->pid, context->uid, context->gid};
}

void Request::interrupts_as(Interrupts::Token token) {
  // libfuse may call this at any time, also when the answer is on its way: so it gets a number, no pointer of ours.
  fuse_req_interrupt_func(
      req_,
      [](fuse_req_t req, void* data) {
        static_cast<SessionData*>(fuse_req_userdata(req))
            ->interrupts.interrupted(reinterpret_cast<Interrupts::Token>(data));
      },
      reinterpret_cast<void*>(token));
}

void Request::fail(Errno error) { finish(fuse_reply_err(req_, error.value())); }

void Request::fail(const Status& status, std::string_view what) {
  auto error = Errno::from(status);
  switch (status.code()) {
    case Code::kCorrupt:
    case Code::kUnavailable:
    case Code::kIo:
    case Code::kNoSpace:
    case Code::kUnsupported:
      spdlog::error("{} {} {}: {}", op_, error.name(), what, status.message());
      break;
    case Code::kPermission:
    case Code::kInvalid:
      spdlog::warn("{} {} {}: {}", op_, error.name(), what, status.message());
      break;
    default:
      spdlog::debug("{} {} {}: {}", op_, error.name(), what, status.message());
  }
  fail(error);
}

void Request::no_entry_for(double timeout) {
  fuse_entry_param none{};
  none.entry_timeout = timeout;
  finish(fuse_reply_entry(req_, &none));
}

void Request::xattr(std::string_view value, std::size_t size) {
  if (size == 0) {
    finish(fuse_reply_xattr(req_, value.size()));
  } else if (size < value.size()) {
    fail(answer::kTooSmall);
  } else {
    bytes(as_bytes(value));
  }
}

}  // namespace weightfs
