#include "tests/support/faulty_bucket.h"

#include <algorithm>

namespace weightfs {
namespace {

thread_local bool inside_hook = false;

Status status_of(const Status& status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}

}  // namespace

std::string_view to_string(BucketOp op) {
  static constexpr std::string_view kNames[] = {"get",    "get_all", "head",          "put",        "put_file",
                                                "remove", "list",    "list_prefixes", "server_time"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string BucketCall::str() const { return std::string(to_string(op)) + " " + key; }

void HeldCall::wait_until_held() {
  MutexLock lock(state_->mutex);
  while (!state_->held) state_->changed.wait(state_->mutex);
}

void HeldCall::release() {
  MutexLock lock(state_->mutex);
  state_->released = true;
  state_->changed.notify_all();
}

void FaultyBucket::add_fault(BucketFault fault) {
  MutexLock lock(mutex_);
  faults_.push_back({std::move(fault)});
}

void FaultyBucket::clear_faults() {
  MutexLock lock(mutex_);
  faults_.clear();
}

bool FaultyBucket::faults_pending() const {
  MutexLock lock(mutex_);
  return std::any_of(faults_.begin(), faults_.end(), [](const Armed& a) { return a.seen < a.fault.nth; });
}

void FaultyBucket::set_down(bool down) {
  MutexLock lock(mutex_);
  down_ = down;
}
void FaultyBucket::set_read_only(bool read_only) {
  MutexLock lock(mutex_);
  read_only_ = read_only;
}
void FaultyBucket::set_hide_list_rights(bool hide) {
  MutexLock lock(mutex_);
  hide_list_rights_ = hide;
}
void FaultyBucket::set_ignore_conditions(bool ignore) {
  MutexLock lock(mutex_);
  ignore_conditions_ = ignore;
}
void FaultyBucket::set_refuse_conditions(bool refuse) {
  MutexLock lock(mutex_);
  refuse_conditions_ = refuse;
}
void FaultyBucket::set_hook(std::function<void(const BucketCall&)> hook) {
  MutexLock lock(mutex_);
  hook_ = std::move(hook);
}

std::unique_ptr<HeldCall> FaultyBucket::hold_next(CallMatch match) {
  auto state = std::make_shared<HeldCall::State>();
  MutexLock lock(mutex_);
  holds_.push_back({std::move(match), state});
  return std::unique_ptr<HeldCall>(new HeldCall(state));
}

std::vector<BucketCall> FaultyBucket::calls() const {
  MutexLock lock(mutex_);
  std::vector<BucketCall> out;
  for (const auto& [number, call] : calls_) out.push_back(call);
  return out;
}

std::size_t FaultyBucket::count(const CallMatch& match) const {
  MutexLock lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(calls_.begin(), calls_.end(), [&](const auto& entry) { return match.matches(entry.second); }));
}

void FaultyBucket::forget_calls() {
  MutexLock lock(mutex_);
  calls_.clear();
}

Status FaultyBucket::before(BucketCall& call, const CallOptions& options) {
  std::function<void(const BucketCall&)> hook;
  std::shared_ptr<HeldCall::State> hold;
  {
    MutexLock lock(mutex_);
    call.number = ++last_number_;
    calls_[call.number] = call;
    if (!inside_hook) hook = hook_;
    auto found = std::find_if(holds_.begin(), holds_.end(), [&](const Hold& h) { return h.match.matches(call); });
    if (found != holds_.end()) {
      hold = found->state;
      holds_.erase(found);
    }
  }
  counters_.requests++;
  if (hook) {
    inside_hook = true;
    hook(call);
    inside_hook = false;
  }
  if (hold) {
    auto end = std::chrono::steady_clock::now() + options.deadline;
    MutexLock lock(hold->mutex);
    hold->held = true;
    hold->changed.notify_all();
    while (!hold->released) {
      if (options.cancel && options.cancel->cancelled()) break;
      if (std::chrono::steady_clock::now() >= end) return {Code::kUnavailable, "deadline passed while held"};
      hold->changed.wait_until(hold->mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
  }
  if (options.cancel && options.cancel->cancelled()) return {Code::kInterrupted, "cancelled"};
  MutexLock lock(mutex_);
  if (down_) return {Code::kUnavailable, "the bucket is down"};
  if (read_only_ && is_write(call.op)) return {Code::kPermission, "read-only credentials"};
  if (refuse_conditions_ && call.op == BucketOp::kPut && call.if_exists == IfExists::kFail) {
    return {Code::kUnsupported, "no conditional writes"};
  }
  if (hide_list_rights_ && (call.op == BucketOp::kList || call.op == BucketOp::kListPrefixes)) {
    return {Code::kPermission, "no right to list"};
  }
  Status fails;
  for (auto& armed : faults_) {
    if (!armed.fault.match.matches(call)) continue;
    armed.seen++;
    bool strikes =
        armed.seen >= armed.fault.nth && (armed.fault.times == 0 || armed.seen - armed.fault.nth < armed.fault.times);
    if (!strikes) continue;
    if (armed.fault.when == BucketFault::When::kBefore) {
      fails = armed.fault.status;
    } else {
      calls_[call.number].code = armed.fault.status.code();
      call.code = armed.fault.status.code();  // after() turns it into the answer
    }
  }
  return fails;
}

Status FaultyBucket::after(BucketCall& call, Status status) {
  MutexLock lock(mutex_);
  bool asks_for_object = call.op == BucketOp::kGet || call.op == BucketOp::kGetAll || call.op == BucketOp::kHead;
  if (hide_list_rights_ && asks_for_object && status.code() == Code::kNotFound) {
    status = {Code::kPermission, call.key + ": access denied"};
  }
  if (call.code != Code::kOk) status = {call.code, "scripted fault: the answer is lost"};
  auto found = calls_.find(call.number);
  if (found != calls_.end()) {
    found->second.finished = true;
    found->second.code = status.code();
  }
  return status;
}

template <typename T, typename Do>
T FaultyBucket::run(BucketCall call, const CallOptions& options, Do&& act) {
  auto status = before(call, options);
  if (!status.is_ok()) {
    call.code = Code::kOk;  // not done, so there is no answer to lose
    return after(call, std::move(status));
  }
  T result = act();
  auto outcome = after(call, status_of(result));
  if (!outcome.is_ok()) return outcome;
  return result;
}

Status FaultyBucket::get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options) {
  return run<Status>({.op = BucketOp::kGet, .key = key.str(), .range = range, .bytes = range.length}, options, [&] {
    counters_.get_bytes += range.length;
    return behind_->get(key, range, out, options);
  });
}

Result<Bytes> FaultyBucket::get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options) {
  return run<Result<Bytes>>({.op = BucketOp::kGetAll, .key = key.str()}, options, [&] {
    auto bytes = behind_->get_all(key, limit, options);
    if (bytes.is_ok()) counters_.get_bytes += bytes->size();
    return bytes;
  });
}

Result<ObjectInfo> FaultyBucket::head(const ObjectKey& key, const CallOptions& options) {
  return run<Result<ObjectInfo>>({.op = BucketOp::kHead, .key = key.str()}, options,
                                 [&] { return behind_->head(key, options); });
}

Status FaultyBucket::put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options) {
  return run<Status>({.op = BucketOp::kPut, .key = key.str(), .bytes = bytes.size(), .if_exists = if_exists}, options,
                     [&] {
                       counters_.put_bytes += bytes.size();
                       bool ignore;
                       {
                         MutexLock lock(mutex_);
                         ignore = ignore_conditions_;
                       }
                       return behind_->put(key, bytes, ignore ? IfExists::kOverwrite : if_exists, options);
                     });
}

Status FaultyBucket::put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options,
                              const std::function<void(std::uint64_t)>& progress) {
  return run<Status>({.op = BucketOp::kPutFile, .key = key.str(), .bytes = size}, options, [&] {
    counters_.put_bytes += size;
    return behind_->put_file(key, fd, size, options, progress);
  });
}

Status FaultyBucket::remove(const ObjectKey& key, const CallOptions& options) {
  return run<Status>({.op = BucketOp::kRemove, .key = key.str()}, options,
                     [&] { return behind_->remove(key, options); });
}

Result<std::vector<ListedObject>> FaultyBucket::list(const std::string& prefix, const CallOptions& options) {
  return run<Result<std::vector<ListedObject>>>({.op = BucketOp::kList, .key = prefix}, options,
                                                [&] { return behind_->list(prefix, options); });
}

Result<std::vector<std::string>> FaultyBucket::list_prefixes(const std::string& prefix, const CallOptions& options) {
  return run<Result<std::vector<std::string>>>({.op = BucketOp::kListPrefixes, .key = prefix}, options,
                                               [&] { return behind_->list_prefixes(prefix, options); });
}

Result<WallTime> FaultyBucket::server_time(const CallOptions& options) {
  return run<Result<WallTime>>({.op = BucketOp::kServerTime}, options, [&] { return behind_->server_time(options); });
}

}  // namespace weightfs
