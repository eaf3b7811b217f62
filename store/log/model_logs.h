// The logs of a bucket's models, each made when it is first asked for.
#pragma once

#include <map>
#include <memory>

#include "store/log/model_log.h"
#include "store/log/paths.h"

namespace weightfs {

// Any thread may call.
class ModelLogs {
 public:
  // All outlive this; `store` may be null.
  ModelLogs(Bucket& bucket, Clock& clock, LogStateStore* store, LogOptions options = {})
      : bucket_(bucket), clock_(clock), store_(store), options_(std::move(options)) {}

  Bucket& bucket() { return bucket_; }
  Clock& clock() { return clock_; }
  const LogOptions& options() const { return options_; }

  ModelLog& get(const ModelName& model) EXCLUDES(mutex_);  // the same object each time; lives as long as this

  // As it is known now: no entry was found, nor one that cannot be read. A model whose first version is on its way is
  // listed by the bucket (its objects go first) and is empty; kNotFound of one that is not empty is a lost object.
  bool is_empty(const ModelName& model);

  // States as they are known now; null for a model without entries. Makes no request. Outlived by this.
  StateResolver known();

  // Refreshes `model` and all models that its versions build on, so that known() can find every path to them.
  // kNotFound: no such model. Errors of ModelLog::refresh, of whichever model.
  Status refresh_with_bases(const ModelName& model, const CallOptions& options = {});

 private:
  Bucket& bucket_;
  Clock& clock_;
  LogStateStore* store_;
  const LogOptions options_;
  Mutex mutex_;
  std::map<ModelName, std::unique_ptr<ModelLog>> logs_ GUARDED_BY(mutex_);
};

// The other models that usable edges of this state start from.
std::set<ModelName> bases_of(const ModelState& state);

}  // namespace weightfs
