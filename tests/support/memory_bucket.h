// A bucket in memory with the whole contract of Bucket, and the faults of FaultyBucket.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tests/support/faulty_bucket.h"

namespace weightfs {

// The objects themselves. Several MemoryBuckets may share them: one for each host of a test.
class MemoryObjects final : public Bucket {
 public:
  // `clock` outlives this; its wall() is the server's time.
  explicit MemoryObjects(Clock& clock = Clock::system(), std::string url = "memory://bucket")
      : clock_(clock), url_(std::move(url)) {}

  // Behind the interface's back. REQUIRES: the object is there
  Bytes contents(const std::string& key) const EXCLUDES(mutex_);
  void set_contents(const std::string& key, Bytes bytes) EXCLUDES(mutex_);  // makes it when it is not there
  void flip_byte(const std::string& key, std::size_t at) EXCLUDES(mutex_);
  void set_modified(const std::string& key, WallTime time) EXCLUDES(mutex_);
  bool has(const std::string& key) const EXCLUDES(mutex_);
  std::vector<std::string> keys() const EXCLUDES(mutex_);  // sorted
  std::uint64_t total_bytes() const EXCLUDES(mutex_);

  Status get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options = {}) override;
  Result<Bytes> get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options = {}) override;
  Result<ObjectInfo> head(const ObjectKey& key, const CallOptions& options = {}) override;
  Status put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options = {}) override;
  Status put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options = {},
                  const std::function<void(std::uint64_t)>& progress = {}) override;
  Status remove(const ObjectKey& key, const CallOptions& options = {}) override;
  Result<std::vector<ListedObject>> list(const std::string& prefix, const CallOptions& options = {}) override;
  Result<std::vector<std::string>> list_prefixes(const std::string& prefix, const CallOptions& options = {}) override;
  Result<WallTime> server_time(const CallOptions& options = {}) override;
  const std::string& url() const override { return url_; }

 private:
  struct Object {
    std::shared_ptr<const Bytes> bytes;
    WallTime modified;
  };
  Result<Object> find(const ObjectKey& key) const EXCLUDES(mutex_);

  Clock& clock_;
  const std::string url_;
  mutable Mutex mutex_;
  std::map<std::string, Object> objects_ GUARDED_BY(mutex_);
};

class MemoryBucket final : public FaultyBucket {
 public:
  explicit MemoryBucket(Clock& clock = Clock::system()) : MemoryBucket(std::make_shared<MemoryObjects>(clock)) {}
  explicit MemoryBucket(std::shared_ptr<MemoryObjects> objects) : FaultyBucket(objects), objects_(std::move(objects)) {}

  MemoryObjects& objects() { return *objects_; }
  // Another host's view of the same objects, with its own calls, faults and counters.
  std::unique_ptr<MemoryBucket> another() const { return std::make_unique<MemoryBucket>(objects_); }

 private:
  std::shared_ptr<MemoryObjects> objects_;
};

}  // namespace weightfs
