// The models of a bucket as a mount or command knows them: which there are, and what their logs say. A mount follows:
// one listing of the root and one small read per used model each poll.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/base/threads.h"
#include "store/cache/cache.h"
#include "store/log/model_logs.h"

namespace weightfs {

// Logs kept in the cache, so that what was known is known after a restart and without a network.
class CachedLogStates final : public LogStateStore {
 public:
  explicit CachedLogStates(Cache& cache) : cache_(cache) {}
  std::optional<Bytes> load(const ModelName& model) override { return cache_.load_state("log/" + model.str()); }
  void save(const ModelName& model, Bytes state) override { cache_.save_state("log/" + model.str(), state); }

 private:
  Cache& cache_;
};

// Any thread may call.
class Models {
 public:
  struct Events {
    std::function<void(const ModelName&, const ModelStatePtr& before, const ModelStatePtr& after)> model_changed;
    std::function<void()> models_changed;
  };
  // All outlive this. Starts from what the cache remembers; makes no request.
  Models(Bucket& bucket, Cache& cache, ModelLogs& logs, Clock& clock, Duration poll);
  ~Models();

  // Polls in the background from now on; `events` are called on that thread or on one that refreshes, with no lock
  // held.
  void follow(Events events);
  void stop();

  std::vector<ModelName> known() const
      EXCLUDES(mutex_);  // sorted; those with at least one live version or in the listing
  ModelStatePtr state(const ModelName& name) EXCLUDES(mutex_);  // null: not known. Marks it as used.
  bool is_fresh(const ModelName& name) EXCLUDES(mutex_);

  // Blocking.
  Result<std::vector<ModelName>> refresh_list(const CallOptions& options) EXCLUDES(mutex_);
  // The first one of a model that the cache remembers gives up after 2 s: then state() is what was remembered.
  Result<ModelStatePtr> refresh(const ModelName& name, const CallOptions& options) EXCLUDES(mutex_);
  // A commit of this process changed the log: tells the listeners.
  void note(const ModelName& name) EXCLUDES(mutex_);

 private:
  struct Known {
    SteadyTime asked{};  // when the bucket was asked last; epoch: never
    SteadyTime used{};
    ModelStatePtr told;  // what listeners were told last
  };
  void poll_loop(const std::stop_token& stop);
  void poll_once();
  void tell(const ModelName& name) EXCLUDES(mutex_);
  Result<ModelName> name_of(const std::string& component, const CallOptions& options);

  Bucket& bucket_;
  Cache& cache_;
  ModelLogs& logs_;
  Clock& clock_;
  const Duration poll_;
  std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
  mutable Mutex mutex_;
  CondVar wake_;
  std::map<ModelName, Known> models_ GUARDED_BY(mutex_);
  std::set<ModelName> listed_ GUARDED_BY(mutex_);
  bool list_failed_ GUARDED_BY(mutex_) = false;
  Events events_ GUARDED_BY(mutex_);
  std::jthread poller_;
};

}  // namespace weightfs
