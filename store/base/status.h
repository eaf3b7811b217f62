// Errors as values. A foreign code (errno, HTTP, SQLite) becomes a Status once, where it enters (base/posix,
// bucket/http, cache/sqlite), and an errno once, where it leaves (fs/errno). No exception crosses a room's border.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace weightfs {

// What a caller can do about an error hangs on its code, never on its text.
enum class Code : std::uint8_t {
  kOk,
  kNotFound,     // the bucket or disk said: there is no such thing
  kExists,       // the name is taken; somebody else was first
  kInvalid,      // the caller's argument or input is malformed; retrying is pointless
  kCorrupt,      // bytes that fail their digest, or break their format
  kUnavailable,  // out of reach, timed out, overloaded: the same call may work later; a write may or may not be done
  kPermission,   // credentials or modes do not allow it
  kNoSpace,      // disk or quota full
  kBusy,         // in use now: a file open for writing, a cache owned by another process
  kReadOnly,     // a committed version, a read-only mount, a store without conditional writes
  kInterrupted,  // the caller cancelled, or a deadline set by the caller passed
  kUnsupported,  // a newer format, or an operation this store does not have
  kIo,           // the local disk failed
};

std::string_view to_string(Code code);

// A code and, when it is an error, a message that reads from the user's object inward:
// "qwen3/step-000101: manifest 9f3c…: digest mismatch". Cheap when OK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return is_ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // "corrupt: qwen3/packs/9f3c: digest mismatch"
  std::string to_string() const;

  // Adds what only this layer knows in front: "context: message". OK stays OK.
  Status with(std::string_view context) const&;
  Status with(std::string_view context) &&;
  // Drops the error on purpose; says why at the call.
  void ignore(std::string_view /*why*/) const {}

  friend bool operator==(const Status& a, const Status& b) { return a.code_ == b.code_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A T or an error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.is_ok()) std::abort();
  }
  template <typename U>
    requires(std::is_convertible_v<U &&, T> && !std::is_same_v<std::remove_cvref_t<U>, Status> &&
             !std::is_same_v<std::remove_cvref_t<U>, T> && !std::is_same_v<std::remove_cvref_t<U>, Result<T>>)
  Result(U&& value) : value_(std::forward<U>(value)) {}  // NOLINT(google-explicit-constructor)

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }
  Code code() const { return status_.code(); }

  // REQUIRES: is_ok()
  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T value_or(T other) && { return is_ok() ? std::move(*value_) : std::move(other); }

  Result with(std::string_view context) && {
    if (!is_ok()) status_ = std::move(status_).with(context);
    return std::move(*this);
  }

 private:
  void check() const {
    if (!value_.has_value()) std::abort();
  }
  Status status_;
  std::optional<T> value_;
};

namespace internal {
inline Status as_status(Status s) { return s; }
template <typename T>
Status as_status(Result<T>&& r) {
  return std::move(r).status();
}
struct Nothing {};
inline Nothing take(Status&&) { return {}; }
template <typename T>
T take(Result<T>&& r) {
  return std::move(r).value();
}
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace internal

// Unwraps a Result, or returns its error from the calling function. Stands alone right of '=' or alone as a statement.
#define WFS_TRY(expression)                                                             \
  ({                                                                                    \
    auto&& wfs_try_ = (expression);                                                     \
    if (!wfs_try_.is_ok()) return ::weightfs::internal::as_status(std::move(wfs_try_)); \
    ::weightfs::internal::take(std::move(wfs_try_));                                    \
  })

// A broken invariant of our own aborts. Bytes from outside never reach one.
#define WFS_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::weightfs::internal::check_failed(#condition, __FILE__, __LINE__))

}  // namespace weightfs
