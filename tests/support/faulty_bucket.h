// A bucket in front of another that records its calls and goes wrong as a test says. Any thread may call.
//
// Each call runs these steps, with no lock held:
//   1. it gets a number (1, 2, …) and is recorded
//   2. the hook, if one is set, is told: a test may let other actors run here, so that every interleaving can be
//   enumerated
//   3. it waits here while it is held
//   4. a fault kBefore, set_down, set_read_only: it fails and the bucket behind does not see it
//   5. the bucket behind does it
//   6. a fault kAfter: it was done, and fails all the same (the answer got lost)
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/mutex.h"
#include "store/bucket/bucket.h"

namespace weightfs {

enum class BucketOp : std::uint8_t { kGet, kGetAll, kHead, kPut, kPutFile, kRemove, kList, kListPrefixes, kServerTime };
std::string_view to_string(BucketOp op);
inline bool is_write(BucketOp op) {
  return op == BucketOp::kPut || op == BucketOp::kPutFile || op == BucketOp::kRemove;
}

struct BucketCall {
  std::uint64_t number = 0;
  BucketOp op = BucketOp::kGet;
  std::string key;          // list, list_prefixes: the prefix
  ByteRange range;          // get
  std::uint64_t bytes = 0;  // of the body, either way
  IfExists if_exists = IfExists::kOverwrite;
  bool finished = false;
  Code code = Code::kOk;    // once finished
  std::string str() const;  // "put qwen/log/hint"
};

// Which calls a fault or a hold means: those of `op` (any when absent) whose key contains `key`.
struct CallMatch {
  std::optional<BucketOp> op;
  std::string key;
  bool matches(const BucketCall& call) const {
    return (!op || *op == call.op) && call.key.find(key) != std::string::npos;
  }
};

struct BucketFault {
  CallMatch match;
  std::uint64_t nth = 1;    // the first matching call, from now, to fail
  std::uint64_t times = 1;  // how many in a row; 0: all from then on
  enum class When : std::uint8_t { kBefore, kAfter } when = When::kBefore;
  Status status{Code::kUnavailable, "scripted fault"};
};

// One call that stands still. Destroying it lets the call go on.
class HeldCall {
 public:
  ~HeldCall() { release(); }
  void wait_until_held();
  void release();

 private:
  friend class FaultyBucket;
  struct State {
    Mutex mutex;
    CondVar changed;
    bool held GUARDED_BY(mutex) = false;
    bool released GUARDED_BY(mutex) = false;
  };
  explicit HeldCall(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class FaultyBucket : public Bucket {
 public:
  explicit FaultyBucket(std::shared_ptr<Bucket> behind) : behind_(std::move(behind)) {}

  void add_fault(BucketFault fault) EXCLUDES(mutex_);
  // The n-th call from now, whatever it is, fails once.
  void fail_nth(std::uint64_t n, BucketFault::When when = BucketFault::When::kBefore,
                Status status = {Code::kUnavailable, "scripted fault"}) {
    add_fault({.nth = n, .when = when, .status = std::move(status)});
  }
  void clear_faults() EXCLUDES(mutex_);
  bool faults_pending() const EXCLUDES(mutex_);  // one that has not struck yet

  void set_down(bool down) EXCLUDES(mutex_);                 // every call is kUnavailable
  void set_read_only(bool read_only) EXCLUDES(mutex_);       // every write is kPermission
  void set_hide_list_rights(bool hide) EXCLUDES(mutex_);     // get of a missing key and lists are kPermission
  void set_ignore_conditions(bool ignore) EXCLUDES(mutex_);  // put with kFail overwrites without a word
  void set_refuse_conditions(bool refuse) EXCLUDES(mutex_);  // put with kFail is kUnsupported
  // Called at step 2, not for the calls that a hook itself makes. Set before threads call.
  void set_hook(std::function<void(const BucketCall&)> hook) EXCLUDES(mutex_);
  // The next call that matches stops at step 3. It ends early when its CancelToken is cancelled.
  std::unique_ptr<HeldCall> hold_next(CallMatch match) EXCLUDES(mutex_);

  std::vector<BucketCall> calls() const EXCLUDES(mutex_);
  std::size_t count(const CallMatch& match) const EXCLUDES(mutex_);
  void forget_calls() EXCLUDES(mutex_);  // numbers go on

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
  const std::string& url() const override { return behind_->url(); }

 private:
  struct Armed {
    BucketFault fault;
    std::uint64_t seen = 0;
  };
  struct Hold {
    CallMatch match;
    std::shared_ptr<HeldCall::State> state;
  };
  Status before(BucketCall& call, const CallOptions& options) EXCLUDES(mutex_);
  Status after(BucketCall& call, Status status) EXCLUDES(mutex_);
  template <typename T, typename Do>
  T run(BucketCall call, const CallOptions& options, Do&& act);

  const std::shared_ptr<Bucket> behind_;
  mutable Mutex mutex_;
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, BucketCall> calls_ GUARDED_BY(mutex_);
  std::vector<Armed> faults_ GUARDED_BY(mutex_);
  std::vector<Hold> holds_ GUARDED_BY(mutex_);
  std::function<void(const BucketCall&)> hook_ GUARDED_BY(mutex_);
  bool down_ GUARDED_BY(mutex_) = false;
  bool read_only_ GUARDED_BY(mutex_) = false;
  bool hide_list_rights_ GUARDED_BY(mutex_) = false;
  bool ignore_conditions_ GUARDED_BY(mutex_) = false;
  bool refuse_conditions_ GUARDED_BY(mutex_) = false;
};

}  // namespace weightfs
