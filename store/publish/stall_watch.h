// Ends a call when nothing has moved for a while: requests retry for as long as they are let, and a person waits.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "store/base/mutex.h"
#include "store/bucket/bucket.h"

namespace weightfs {

inline constexpr Duration kStallPatience = std::chrono::seconds(30);

// Do things move? Others use the bucket, too, so its counts of requests prove nothing; bytes do, as long as they are
// not the same ones over and over. One thread asks.
class BucketProgress {
 public:
  explicit BucketProgress(const BucketCounters& counters) : counters_(counters) { moved(true); }
  // Since the last call. `own`: something of ours came through.
  bool moved(bool own);

 private:
  const BucketCounters& counters_;
  std::uint64_t retries_ = 0, bytes_ = 0;
};

class StallWatch {
 public:
  // `counters` outlive this. `outer`: the caller's own token, obeyed as well; may be null.
  StallWatch(const BucketCounters& counters, std::shared_ptr<const CancelToken> outer,
             Duration patience = kStallPatience);
  ~StallWatch();
  const std::shared_ptr<CancelToken>& token() const { return token_; }
  void moved() { moved_ = true; }                // work that is no request's
  void pause(bool paused) { paused_ = paused; }  // what is waited for is no bucket
  // What the call ended with: kUnavailable where it was the watch that ended it.
  Status explain(Status status) const;

 private:
  void run(const std::stop_token& stop);
  const std::shared_ptr<const CancelToken> outer_;
  const std::shared_ptr<CancelToken> token_ = std::make_shared<CancelToken>();
  const Duration patience_;
  BucketProgress progress_;
  std::atomic<bool> moved_ = false, stalled_ = false, paused_ = false;
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

Status stalled(Duration patience);  // what people read

}  // namespace weightfs
