// The objects of one pack: frames are appended in order to a spool file, full objects are uploaded behind.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/base/threads.h"
#include "store/bucket/bucket.h"
#include "store/format/pack.h"

namespace weightfs {

// One thread writes.
class PackWriter {
 public:
  // `bucket` and `upload_pool` outlive this.
  PackWriter(Bucket& bucket, WorkerPool& upload_pool, ModelName model, std::string spool_dir, std::uint64_t object_size,
             CallOptions options);
  ~PackWriter();  // waits for uploads under way, removes the spool files

  // Place of a frame of `frame.size()` bytes; fails early when an upload failed. Blocks while too many objects wait for
  // upload.
  Result<BlockFrame> append(ByteSpan frame);
  // Appends pages and index, uploads what is left, waits for everything. `make_index` gets the sizes of the objects but
  // the last and the offset in the last at which `pages` begin.
  Status finish(ByteSpan pages,
                const std::function<Bytes(const std::vector<std::uint64_t>&, std::uint64_t)>& make_index);

  // What the log entry says; valid after finish().
  EdgeRef edge() const { return edge_; }
  const std::string& pack() const { return edge_.pack; }

 private:
  struct Uploads;
  Status begin_object();
  Status end_object();

  Bucket& bucket_;
  WorkerPool& upload_pool_;
  const ModelName model_;
  const std::string spool_dir_;
  const std::uint64_t object_size_;
  CallOptions options_;
  EdgeRef edge_;
  std::vector<std::uint64_t> sizes_;  // of the objects that are closed
  Fd object_;
  std::string object_path_;
  std::uint64_t written_ = 0;  // of the open object, buffered bytes included
  Bytes buffer_;
  std::uint64_t frames_ = 0;
  SteadyTime heartbeat_;
  std::shared_ptr<Uploads> uploads_;
};

}  // namespace weightfs
