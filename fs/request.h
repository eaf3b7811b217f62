// A question of the kernel that is answered exactly once, now or later, on any thread. The one place that replies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fs/caller.h"
#include "fs/errno.h"
#include "fs/fuse.h"
#include "fs/interrupts.h"
#include "fs/passthrough.h"
#include "store/base/bytes.h"

namespace weightfs {

// Requests that have no answer yet. The session may be destroyed only when there are none.
class InFlight {
 public:
  void begin() EXCLUDES(mutex_);
  void end() EXCLUDES(mutex_);
  std::uint64_t count() const EXCLUDES(mutex_);
  bool wait_for_none(SteadyTime deadline) EXCLUDES(mutex_);  // false: the deadline passed

 private:
  mutable Mutex mutex_;
  CondVar none_;
  std::uint64_t count_ GUARDED_BY(mutex_) = 0;
};

// Move-only. Destroyed without an answer, it answers EIO: a bug, and logged as one.
class Request {
 public:
  // `op` is a literal: "read". The userdata of the session is `in_flight`'s owner's business.
  Request(fuse_req_t req, const char* op, InFlight& in_flight) : req_(req), op_(op), in_flight_(&in_flight) {
    in_flight.begin();
  }
  ~Request();
  Request(Request&& other) noexcept
      : req_(std::exchange(other.req_, nullptr)), op_(other.op_), in_flight_(other.in_flight_) {}
  Request& operator=(Request&&) = delete;

  Caller caller() const;
  const char* op() const { return op_; }
  fuse_req_t raw() const { return req_; }
  // The kernel's interrupt of this request goes to `interrupts` under `token`.
  void interrupts_as(Interrupts::Token token);

  // Each of these answers. False: the kernel did not take it (the request was aborted), so what it would have held
  // (a lookup count, a handle) is still ours.
  void ok() { finish(fuse_reply_err(req_, 0)); }
  void fail(Errno error);
  // Logs what an operator should know (damage, a bucket out of reach); `what` names the user's object.
  void fail(const Status& status, std::string_view what);
  [[nodiscard]] bool entry(const fuse_entry_param& entry) { return finish(fuse_reply_entry(req_, &entry)); }
  void no_entry_for(double timeout);  // a name that is absent for so many seconds
  [[nodiscard]] bool create(const fuse_entry_param& entry, const fuse_file_info& info) {
    return finish(fuse_reply_create(req_, &entry, &info));
  }
  [[nodiscard]] bool open(const fuse_file_info& info) { return finish(fuse_reply_open(req_, &info)); }
  [[nodiscard]] bool open(const Passthrough::OpenAnswer& answer) {
    return finish(fuse_reply_buf(req_, reinterpret_cast<const char*>(&answer), sizeof(answer)));
  }
  void attr(const struct stat& st, double timeout) { finish(fuse_reply_attr(req_, &st, timeout)); }
  void readlink(const std::string& target) { finish(fuse_reply_readlink(req_, target.c_str())); }
  void written(std::size_t bytes) { finish(fuse_reply_write(req_, bytes)); }
  void bytes(ByteSpan bytes) {
    finish(fuse_reply_buf(req_, reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void statfs(const struct statvfs& st) { finish(fuse_reply_statfs(req_, &st)); }
  void lseek(off_t offset) { finish(fuse_reply_lseek(req_, offset)); }
  // An extended attribute or a list of them, by the rules of getxattr's size.
  void xattr(std::string_view value, std::size_t size);

 private:
  bool finish(int result);
  fuse_req_t req_;
  const char* op_;
  InFlight* in_flight_;
};

}  // namespace weightfs
