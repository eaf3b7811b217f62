// The commit log of one model: reading its head, and appending the next entry so that exactly one writer gets each
// number.
#pragma once

#include <functional>
#include <memory>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/bucket/bucket.h"
#include "store/log/model_state.h"

namespace weightfs {

// Where a log's state survives a restart and an outage of the bucket (the cache's index, or nothing).
class LogStateStore {
 public:
  virtual ~LogStateStore() = default;
  virtual std::optional<Bytes> load(const ModelName& model) = 0;  // what save() was given; checked by the reader
  virtual void save(const ModelName& model, Bytes state) = 0;     // best effort
};

// Calls block on the bucket; any thread may call; appends of one object take turns.
class ModelLog {
 public:
  // `bucket`, `clock` and `store` (may be null) outlive this. Makes no request; starts from what `store` has.
  ModelLog(Bucket& bucket, ModelName model, Clock& clock, LogStateStore* store);

  // The last state seen; never blocks, never null.
  ModelStatePtr state() const EXCLUDES(mutex_);

  // Reads what is new. A constant number of round trips plus one read per entry since the newest snapshot (many at
  // once). kUnavailable, kPermission: the bucket is out of reach; state() stays what it was. A model without entries is
  // OK with head 0.
  Result<ModelStatePtr> refresh(const CallOptions& options = {}) EXCLUDES(mutex_);

  // Appends one entry. `make` is called with the newest state, and again each time another writer took the number; it
  // checks the caller's conditions (name free, parent and objects not collected …) and returns the entry's body, or the
  // error with which append gives up. `id` is the entry's commit id. After an ambiguous PUT the entry is read until it
  // is known whose it is: the result is kUnavailable only when that is still unknown at the deadline (the caller keeps
  // `publishing`, and may call again with the same id: an entry of that id that is already there is returned, not
  // written twice).
  using Make = std::function<Result<decltype(LogEntry::body)>(const ModelState& head)>;
  Result<LogEntry> append(const std::string& id, const Make& make, const CallOptions& options = {}) EXCLUDES(mutex_);

  // Writes a snapshot when the log since the last is over a tenth of it (at least 32 entries); else does nothing.
  Status snapshot_if_due(const CallOptions& options = {}) EXCLUDES(mutex_);

 private:
  Bucket& bucket_;
  const ModelName model_;
  Clock& clock_;
  LogStateStore* store_;
  mutable Mutex mutex_;  // guards the pointer only
  ModelStatePtr state_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
