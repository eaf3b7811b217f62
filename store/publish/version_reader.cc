#include "store/publish/version_reader.h"

namespace weightfs {

Status VersionReader::read(std::uint32_t file, ByteRange range, MutableByteSpan out) {
  std::shared_ptr<VersionFile> opened;
  {
    MutexLock lock(mutex_);
    auto found = open_.find(file);
    if (found != open_.end()) opened = found->second;
  }
  if (!opened) {
    opened = WFS_TRY(versions_.open_file(version_, file, options_));
    MutexLock lock(mutex_);
    if (open_.size() >= 64) open_.clear();  // a bound on descriptors; those in use live on
    open_[file] = opened;
  }
  return opened->read_now(range, out, options_);
}

}  // namespace weightfs
