// The objects of one pack: frames are appended in order to a spool file, full objects are uploaded behind. An upload
// that failed keeps its spool file, and is made again when asked.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/base/threads.h"
#include "store/bucket/bucket.h"
#include "store/format/pack.h"

namespace weightfs {

struct PackPlace {
  ModelName model;
  std::string spool_dir;  // made when missing
  std::uint64_t object_size = std::uint64_t{64} << 20;
};

// One thread appends, seals and finishes; any may ask for the rest.
class PackWriter {
 public:
  // `bucket` and `upload_pool` outlive this. `changed` (may be null) is called with no lock held when an upload ended.
  PackWriter(Bucket& bucket, WorkerPool& upload_pool, PackPlace place, CallOptions options,
             std::function<void()> changed = {});
  ~PackWriter();  // waits for uploads under way (cancel them first), removes the spool files

  // Place of a frame of `frame.size()` bytes. Waits for nothing but the local disk.
  Result<BlockFrame> append(ByteSpan frame);
  // Who waits: that ends with kInterrupted when `token` (may be null) is cancelled, uploads under way go on; `moved`
  // (may be null) is told meanwhile that they do.
  void wait_for(std::shared_ptr<const CancelToken> token, std::function<void()> moved) {
    waiter_ = std::move(token);
    tell_ = std::move(moved);
  }
  // Waits while too many objects wait for upload; not OK when one failed.
  Status wait_for_room();
  bool has_room() const;
  // Appends pages and index, makes failed uploads again, waits for all. `make_index` gets the sizes of the objects but
  // the last and the offset in the last at which `pages` begin. After an error it may be called again.
  Status finish(ByteSpan pages,
                const std::function<Bytes(const std::vector<std::uint64_t>&, std::uint64_t)>& make_index);

  // Sends what was appended so far: the number of objects that hold it.
  Result<std::size_t> seal();
  // Of the first `objects`: OK, the first failure, or nothing yet.
  std::optional<Status> uploaded(std::size_t objects) const;
  void retry();  // every upload that failed
  std::uint64_t objects_uploaded() const;
  std::uint64_t bytes_acknowledged() const;  // grows while things go well
  // Renews the grace of gc; due once a minute while objects are uploaded, now and then for as long as they wait for
  // their commit. Blocking (network).
  Status beat(const CallOptions& options);

  // What the log entry says; valid after finish(). `frames` counts all that were appended.
  EdgeRef edge() const { return edge_; }
  const std::string& pack() const { return edge_.pack; }
  std::uint64_t appended_bytes() const { return appended_; }  // of frames

 private:
  struct Uploads;
  Status begin_object();
  Status end_object();
  Status write_buffer();
  void post(std::size_t object);
  void upload(std::size_t object, const std::shared_ptr<Fd>& file, std::uint64_t size);
  Status wait_for_all();
  Status wait_a_little();

  Bucket& bucket_;
  WorkerPool& upload_pool_;
  const PackPlace place_;
  const std::uint64_t object_size_;
  const CallOptions options_;
  const std::function<void()> changed_;
  EdgeRef edge_;
  std::vector<std::uint64_t> sizes_;  // of the objects that are closed
  Fd object_;
  std::uint64_t written_ = 0;  // of the open object, buffered bytes included
  Bytes buffer_;
  std::uint64_t frames_ = 0, appended_ = 0;
  std::shared_ptr<const CancelToken> waiter_;
  std::function<void()> tell_;
  std::uint64_t told_ = 0;
  std::shared_ptr<Uploads> uploads_;
};

}  // namespace weightfs
