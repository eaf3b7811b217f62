// The commit log of one model: reading its head, and appending the next entry so that exactly one writer gets each
// number.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/bucket/bucket.h"
#include "store/log/model_state.h"
#include "store/log/parallel.h"

namespace weightfs {

// Where a log's state survives a restart and an outage of the bucket (the cache's index, or nothing).
class LogStateStore {
 public:
  virtual ~LogStateStore() = default;
  virtual std::optional<Bytes> load(const ModelName& model) = 0;  // what save() was given; checked by the reader
  virtual void save(const ModelName& model, Bytes state) = 0;     // best effort
};

struct LogOptions {
  std::size_t parallel = 24;                         // requests at once; with 1 all are made on the caller's thread
  std::function<std::string()> new_id = &random_id;  // of commits that the log makes itself, and of snapshots
};

// Calls block on the bucket; any thread may call; appends of one object take turns.
class ModelLog {
 public:
  // `bucket`, `clock` and `store` (may be null) outlive this. Makes no request; starts from what `store` has (dropped
  // when it is damaged).
  ModelLog(Bucket& bucket, ModelName model, Clock& clock, LogStateStore* store, LogOptions options = {});

  const ModelName& model() const { return model_; }
  std::string new_id() const { return options_.new_id(); }

  // The last state seen; never blocks, never null. A saved state is shown once the bucket has confirmed it, or could
  // not be asked.
  ModelStatePtr state() const EXCLUDES(mutex_);
  // There is a saved state that is not shown yet: refresh() soon has something to show, with or without the bucket.
  bool has_saved() const EXCLUDES(mutex_);

  // Reads what is new. A constant number of round trips plus one read per entry since the newest snapshot (many at
  // once). A model without entries is OK with head 0. Damage in the log is no error here: state up to before it, with
  // `broken` set; it is looked at again each time. A saved state that is not of this log (the bucket was made anew) is
  // dropped, unless it was shown: then the log is `broken` for this object, for its numbers already stand for versions.
  // kUnavailable: the bucket is out of reach; state() stays what it was.
  // kPermission: entries may not be read. A store that does not grant list rights says so, too, of a model that does
  // not exist, which cannot be told apart: whoever wants to create it appends, and sees.
  Result<ModelStatePtr> refresh(const CallOptions& options = {}) EXCLUDES(mutex_);

  // Appends one entry. `make` is called with the newest state, and again each time another writer took the number; it
  // checks the caller's conditions (name free, parent and objects not collected …) and returns the entry's body, or the
  // error with which append gives up. It must not call this object's append. `id` is the entry's commit id. After an
  // ambiguous PUT the entry is read until it is known whose it is. The caller may call again with the same id: an entry
  // of that id that is already there is returned, not written twice (any publish; others: those this object has seen).
  //
  // kUnavailable: not known at the deadline; the entry may be there, or come: keep `publishing`, call again. So says
  // a store whose answer made no sense, too.
  // kInterrupted: cancelled; nothing more is known than with kUnavailable.
  // kCorrupt, kUnsupported: the log is `broken`; nothing was written. kReadOnly: the store has no conditional writes.
  // Any other error is `make`'s or the store's refusal, and the entry is not there.
  using Make = std::function<Result<decltype(LogEntry::body)>(const ModelState& head)>;
  Result<LogEntry> append(const std::string& id, const Make& make, const CallOptions& options = {}) EXCLUDES(mutex_);

  // The entry with this commit id among those known (see append); kNotFound.
  Result<LogEntry> find_commit(const std::string& id, const CallOptions& options = {}) EXCLUDES(mutex_);

  // Writes a snapshot when the log since the last is over a tenth of it (at least 32 entries, at most 128); else does
  // nothing. OK also when another writer was first. After an error an object that nothing names may be left for gc.
  Status snapshot_if_due(const CallOptions& options = {}) EXCLUDES(mutex_);
  Status write_snapshot_now(const CallOptions& options = {}) EXCLUDES(mutex_);

 private:
  class Turn;

  Result<ModelStatePtr> refresh_within(const Deadline& deadline) EXCLUDES(mutex_);
  void adopt(const ModelStatePtr& next, const std::map<std::string, std::uint64_t>& ids, bool anew) EXCLUDES(mutex_);
  void show_saved() EXCLUDES(mutex_);
  bool drop_saved() EXCLUDES(mutex_);
  std::optional<std::uint64_t> number_of(const ModelState& state, const std::string& id) const EXCLUDES(mutex_);
  Result<LogEntry> read_entry(std::uint64_t number, const Deadline& deadline);
  Result<ModelStatePtr> head_for_append(const Deadline& deadline, bool may_be_new) EXCLUDES(mutex_);
  void won(const ModelState& before, const LogEntry& entry, const Sha256& digest, const Deadline& deadline)
      EXCLUDES(mutex_);

  Bucket& bucket_;
  const ModelName model_;
  Clock& clock_;
  LogStateStore* store_;
  const LogOptions options_;
  mutable Mutex mutex_;  // guards pointers and small tables; never held across a call of the bucket
  CondVar turn_over_;
  bool appending_ GUARDED_BY(mutex_) = false;
  ModelStatePtr state_ GUARDED_BY(mutex_);     // what is shown
  ModelStatePtr saved_ GUARDED_BY(mutex_);     // not shown yet; null: none, or state_ came after it
  bool unchecked_ GUARDED_BY(mutex_) = false;  // state_ is a saved one, shown without the bucket's word
  bool opened_ GUARDED_BY(mutex_) = false;     // state_ is of the bucket, or a saved one
  std::unordered_map<std::string, std::uint64_t> ids_ GUARDED_BY(mutex_);  // of entries seen, the newest kMaxIds
  std::deque<std::string> ids_in_order_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
