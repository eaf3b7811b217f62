// Reads one version's files for as long as a publish or a compaction needs them. They are opened when first read.
#pragma once

#include <map>
#include <memory>

#include "store/base/mutex.h"
#include "store/materialize/versions.h"

namespace weightfs {

// Any thread may call.
class VersionReader {
 public:
  // `versions` outlives this.
  VersionReader(Versions& versions, VersionPtr version, CallOptions options)
      : versions_(versions), version_(std::move(version)), options_(std::move(options)) {}
  // Blocking.
  Status read(std::uint32_t file, ByteRange range, MutableByteSpan out) EXCLUDES(mutex_);
  Result<FileMapPtr> map(std::uint32_t file) { return versions_.file_map(version_, file, options_); }
  const VersionPtr& version() const { return version_; }
  const Manifest& manifest() const { return version_->manifest(); }

 private:
  Versions& versions_;
  const VersionPtr version_;
  const CallOptions options_;
  Mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<VersionFile>> open_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
