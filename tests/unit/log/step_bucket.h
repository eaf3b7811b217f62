// A host's view of the bucket that stops before each call.
#pragma once

#include "fiber.h"
#include "tests/support/memory_bucket.h"

namespace weightfs::testing {

// How a call goes wrong: its request or its answer is lost, the request comes through later, or the host dies before
// it.
enum class Twist : std::uint8_t { kNone, kLostBefore, kLostAfter, kLate, kCrash };

class StepBucket final : public Bucket {
 public:
  explicit StepBucket(std::shared_ptr<MemoryObjects> objects) : objects_(std::move(objects)) {}

  bool active = false;         // else calls go through at once
  bool dead = false;           // every call is kInterrupted and has no effect
  BucketCall next;             // what waits for its turn
  Twist twist = Twist::kNone;  // of that call
  std::function<void()> late;  // a PUT that is still on its way

  Status get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& = {}) override {
    return step<Status>(BucketOp::kGet, key.str(), [&] { return objects_->get(key, range, out); });
  }
  Result<Bytes> get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& = {}) override {
    return step<Result<Bytes>>(BucketOp::kGetAll, key.str(), [&] { return objects_->get_all(key, limit); });
  }
  Result<ObjectInfo> head(const ObjectKey& key, const CallOptions& = {}) override {
    return step<Result<ObjectInfo>>(BucketOp::kHead, key.str(), [&] { return objects_->head(key); });
  }
  Status put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& = {}) override {
    auto act = [&] {
      if (!arrives_late_) return objects_->put(key, bytes, if_exists);
      arrives_late_ = false;
      late = [objects = objects_, key, copy = Bytes(bytes.begin(), bytes.end()), if_exists] {
        objects->put(key, copy, if_exists).ignore("nobody hears the answer");
      };
      return Status(Code::kUnavailable, "no answer");
    };
    return step<Status>(BucketOp::kPut, key.str(), act, if_exists);
  }
  Status put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options = {},
                  const std::function<void(std::uint64_t)>& progress = {}) override {
    return step<Status>(BucketOp::kPutFile, key.str(),
                        [&] { return objects_->put_file(key, fd, size, options, progress); });
  }
  Status remove(const ObjectKey& key, const CallOptions& = {}) override {
    return step<Status>(BucketOp::kRemove, key.str(), [&] { return objects_->remove(key); });
  }
  Result<std::vector<ListedObject>> list(const std::string& prefix, const CallOptions& = {}) override {
    return step<Result<std::vector<ListedObject>>>(BucketOp::kList, prefix, [&] { return objects_->list(prefix); });
  }
  Result<std::vector<std::string>> list_prefixes(const std::string& prefix, const CallOptions& = {}) override {
    return step<Result<std::vector<std::string>>>(BucketOp::kListPrefixes, prefix,
                                                  [&] { return objects_->list_prefixes(prefix); });
  }
  Result<WallTime> server_time(const CallOptions& = {}) override {
    return step<Result<WallTime>>(BucketOp::kServerTime, "", [&] { return objects_->server_time(); });
  }
  const std::string& url() const override { return objects_->url(); }

 private:
  template <typename T, typename Do>
  T step(BucketOp op, const std::string& key, Do&& act, IfExists if_exists = IfExists::kOverwrite) {
    if (active && !dead) {
      next = {.op = op, .key = key, .range = {}, .if_exists = if_exists};
      Fiber::yield();
    }
    if (dead) return Status(Code::kInterrupted, "the host is dead");
    auto how = std::exchange(twist, Twist::kNone);
    if (how == Twist::kLostBefore) return Status(Code::kUnavailable, "lost on its way");
    arrives_late_ = how == Twist::kLate;
    T result = act();
    if (how == Twist::kLostAfter) return Status(Code::kUnavailable, "the answer got lost");
    return result;
  }
  std::shared_ptr<MemoryObjects> objects_;
  bool arrives_late_ = false;
};

}  // namespace weightfs::testing
