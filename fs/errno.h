// What a system call answers. A Status becomes an errno here, by one table (SEMANTICS.md prints it, a test walks it);
// the errno of a local system call that a draft was passed through to goes on as it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/base/status.h"

namespace weightfs {

class Errno {
 public:
  static Errno from(Code code);  // REQUIRES: code != kOk
  static Errno from(const Status& status) { return from(status.code()); }
  static Errno last();  // of the local system call that just failed
  static constexpr Errno raw(int value) { return Errno(value); }
  int value() const { return value_; }
  std::string name() const;  // "ENOENT", or the number
  friend bool operator==(Errno, Errno) = default;

 private:
  explicit constexpr Errno(int value) : value_(value) {}
  int value_;
};

// Answers that are the filesystem's own and come from no Status.
namespace answer {
extern const Errno kNoEntry;         // ENOENT
extern const Errno kExists;          // EEXIST
extern const Errno kReadOnly;        // EROFS: every change in a committed version
extern const Errno kNotPermitted;    // EPERM: what no directory of this kind may hold
extern const Errno kAccess;          // EACCES
extern const Errno kInvalid;         // EINVAL
extern const Errno kNotEmpty;        // ENOTEMPTY
extern const Errno kNotDirectory;    // ENOTDIR
extern const Errno kIsDirectory;     // EISDIR
extern const Errno kOtherDevice;     // EXDEV: makes mv and cp copy
extern const Errno kNoData;          // ENODATA: no such extended attribute
extern const Errno kTooSmall;        // ERANGE: buffer for an extended attribute
extern const Errno kUnsupported;     // EOPNOTSUPP
extern const Errno kNotImplemented;  // ENOSYS: the kernel stops asking
extern const Errno kStale;           // ESTALE: an inode this mount does not know
extern const Errno kNoOffset;        // ENXIO: lseek past the end
extern const Errno kIo;              // EIO
extern const Errno kInterrupted;     // EINTR
extern const Errno kNameTooLong;     // ENAMETOOLONG
extern const Errno kNoMemory;        // ENOMEM
}  // namespace answer

// The table, for the test and for documents.
struct ErrnoRow {
  Code code;
  int value;
  std::string_view name;
  std::string_view meaning;
};
const std::vector<ErrnoRow>& errno_table();

}  // namespace weightfs
