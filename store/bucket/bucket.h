// Objects under keys, as a directory, an S3 store or the Hub keeps them. An object appears whole or not at all, and is
// never changed afterwards, but may be deleted (only hints and heartbeats are overwritten).
//
// Calls block (fetch and upload threads only, no lock held); they retry what is worth it with jittered back-off until
// their deadline, and end early with kInterrupted when their CancelToken is cancelled. Any thread may call, many at
// once.
//
// Errors of every call:
//   kUnavailable  out of reach, overloaded, or the deadline passed. After a put or remove it may or may not be done:
//   ask. kPermission   the credentials do not allow it (for get: also what a store answers for a missing key without
//   list rights) kCorrupt      the store's answer breaks the protocol or does not match what was asked (length, range)
//   kInterrupted  cancelled
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/clock.h"
#include "store/base/names.h"
#include "store/base/status.h"

namespace weightfs {

// Shared by whoever may cancel and the call that looks at it. cancel() may be called from any thread, any number of
// times.
class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> cancelled_ = false;
};

struct CallOptions {
  Duration deadline = std::chrono::minutes(2);  // of the whole call with its retries
  std::shared_ptr<const CancelToken> cancel;    // may be null
};

enum class IfExists : std::uint8_t {
  kFail,  // of all writers of one key exactly one gets OK, the others kExists
  kOverwrite,
};

struct ObjectInfo {
  std::uint64_t size = 0;
  WallTime modified{};  // by the server's clock
};

struct ListedObject {
  ObjectKey key;
  ObjectInfo info;
};

// What went over the wire, since the bucket was opened. Counters only grow.
struct BucketCounters {
  std::atomic<std::uint64_t> requests = 0;   // HTTP requests, or file operations of a directory
  std::atomic<std::uint64_t> get_bytes = 0;  // bodies received, retried ones included
  std::atomic<std::uint64_t> put_bytes = 0;  // bodies sent
  std::atomic<std::uint64_t> retries = 0;
};

class Bucket {
 public:
  virtual ~Bucket() = default;

  // Reads exactly `range` into `out`.   REQUIRES: out.size() == range.length, range.length > 0
  // kNotFound: no such object. kCorrupt: the object ends before the range does. On error `out` holds garbage.
  virtual Status get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options = {}) = 0;

  // The whole object. kInvalid when it is longer than `limit` bytes (it is not read then).
  virtual Result<Bytes> get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options = {}) = 0;

  // Size and the server's time of the object. kNotFound: no such object.
  virtual Result<ObjectInfo> head(const ObjectKey& key, const CallOptions& options = {}) = 0;

  // Stores one object. After OK it is durable, and every host's get() and list() see it.
  // kExists with kFail: somebody was first, which may be this very call before a lost answer: read it to know.
  // kUnsupported with kFail: the store has no conditional writes.
  virtual Status put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options = {}) = 0;

  // Stores the first `size` bytes of a local file as one object, in parts where the store wants it; overwrites.
  // `fd` stays the caller's; it is read by pread only. `progress` (may be null) is told bytes newly acknowledged.
  virtual Status put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options = {},
                          const std::function<void(std::uint64_t)>& progress = {}) = 0;

  // OK also when there is no such object.
  virtual Status remove(const ObjectKey& key, const CallOptions& options = {}) = 0;

  // Every object whose key begins with `prefix` ("" or a key's first components with a trailing '/'), in no order.
  // Only gc, verify and `ls` of a whole bucket call this.
  virtual Result<std::vector<ListedObject>> list(const std::string& prefix, const CallOptions& options = {}) = 0;

  // The distinct first components below `prefix` that have something below them ("directories"), in no order.
  virtual Result<std::vector<std::string>> list_prefixes(const std::string& prefix,
                                                         const CallOptions& options = {}) = 0;

  // The server's clock, from an answer's Date header or the filesystem's time; the grace times of gc are counted by it.
  virtual Result<WallTime> server_time(const CallOptions& options = {}) = 0;

  // The URL as the user gave it, without anything secret. For messages.
  virtual const std::string& url() const = 0;

  const BucketCounters& counters() const { return counters_; }

 protected:
  BucketCounters counters_;
};

}  // namespace weightfs
