#include "fs/errno.h"

#include <cerrno>

namespace weightfs {

namespace answer {
const Errno kNoEntry = Errno::raw(ENOENT);
const Errno kExists = Errno::raw(EEXIST);
const Errno kReadOnly = Errno::raw(EROFS);
const Errno kNotPermitted = Errno::raw(EPERM);
const Errno kAccess = Errno::raw(EACCES);
const Errno kInvalid = Errno::raw(EINVAL);
const Errno kNotEmpty = Errno::raw(ENOTEMPTY);
const Errno kNotDirectory = Errno::raw(ENOTDIR);
const Errno kIsDirectory = Errno::raw(EISDIR);
const Errno kOtherDevice = Errno::raw(EXDEV);
const Errno kNoData = Errno::raw(ENODATA);
const Errno kTooSmall = Errno::raw(ERANGE);
const Errno kUnsupported = Errno::raw(EOPNOTSUPP);
const Errno kNotImplemented = Errno::raw(ENOSYS);
const Errno kStale = Errno::raw(ESTALE);
const Errno kNoOffset = Errno::raw(ENXIO);
const Errno kIo = Errno::raw(EIO);
const Errno kInterrupted = Errno::raw(EINTR);
const Errno kNameTooLong = Errno::raw(ENAMETOOLONG);
const Errno kNoMemory = Errno::raw(ENOMEM);
}  // namespace answer

const std::vector<ErrnoRow>& errno_table() {
  static const std::vector<ErrnoRow> table = {
      {Code::kNotFound, ENOENT, "ENOENT", "the bucket or the disk said that there is no such thing"},
      {Code::kExists, EEXIST, "EEXIST", "the name is taken"},
      {Code::kInvalid, EINVAL, "EINVAL", "a name or argument that is not legal"},
      {Code::kCorrupt, EIO, "EIO", "damaged data: the log names the object"},
      {Code::kUnavailable, EIO, "EIO", "the bucket is out of reach, after retries"},
      {Code::kPermission, EACCES, "EACCES", "credentials or modes do not allow it"},
      {Code::kNoSpace, ENOSPC, "ENOSPC", "disk or quota full"},
      {Code::kBusy, EBUSY, "EBUSY", "in use: a file of the draft is open for writing"},
      {Code::kReadOnly, EROFS, "EROFS", "a committed version, or one being published"},
      {Code::kInterrupted, EINTR, "EINTR", "a signal came while the call waited"},
      {Code::kUnsupported, EOPNOTSUPP, "EOPNOTSUPP", "a later format, or something this store cannot do"},
      {Code::kIo, EIO, "EIO", "the local disk failed"},
  };
  return table;
}

Errno Errno::from(Code code) {
  for (const auto& row : errno_table()) {
    if (row.code == code) return Errno(row.value);
  }
  return Errno(EIO);
}

Errno Errno::last() { return Errno(errno != 0 ? errno : EIO); }

std::string Errno::name() const {
  for (const auto& row : errno_table()) {
    if (row.value == value_) return std::string(row.name);
  }
  return std::to_string(value_);
}

}  // namespace weightfs
