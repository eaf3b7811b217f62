#include "store/base/status.h"

namespace weightfs {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kNotFound:
      return "not found";
    case Code::kExists:
      return "exists";
    case Code::kInvalid:
      return "invalid";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kPermission:
      return "permission denied";
    case Code::kNoSpace:
      return "no space";
    case Code::kBusy:
      return "busy";
    case Code::kReadOnly:
      return "read-only";
    case Code::kInterrupted:
      return "interrupted";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIo:
      return "I/O error";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (is_ok()) return "ok";
  return std::string(weightfs::to_string(code_)) + ": " + message_;
}

Status Status::with(std::string_view context) const& { return Status(*this).with(context); }

Status Status::with(std::string_view context) && {
  if (is_ok()) return {};
  if (!context.empty() && message_.starts_with(std::string(context) + ": ")) return std::move(*this);  // said already
  return {code_, message_.empty() ? std::string(context) : std::string(context) + ": " + message_};
}

namespace internal {
void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}
}  // namespace internal

}  // namespace weightfs
