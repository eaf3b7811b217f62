// The one thread that calls the kernel back. A request is never its caller: the kernel may hold the very directory that
// the request is about, and the call needs it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "fs/fuse.h"
#include "fs/inodes.h"
#include "store/base/mutex.h"

namespace weightfs {

class Notifier {
 public:
  // Jobs posted before start() run after it; the session outlives stop().
  ~Notifier() { stop(); }
  void start(fuse_session* session);
  void post(std::function<void(Notifier&)> job) EXCLUDES(mutex_);
  void stop() EXCLUDES(mutex_);  // drops what is queued, joins; idempotent

  // From jobs only. The name is forgotten by the kernel: the next use of it is a lookup.
  void forget_name(std::uint64_t directory, const std::string& name);

 private:
  void run() EXCLUDES(mutex_);
  fuse_session* session_ = nullptr;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void(Notifier&)>> jobs_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

// Tells the kernel what changes behind it: versions that go, names published again, drafts that became versions; and
// keeps the descriptors of drafts' inodes within bounds.
class Follower : public StoreListener {
 public:
  Follower(Store& store, Inodes& inodes, Notifier& notifier, std::size_t draft_inodes)
      : store_(store), inodes_(inodes), notifier_(notifier), draft_inodes_(draft_inodes) {}

  void model_changed(const ModelName& model, const ModelStatePtr& before, const ModelStatePtr& after) override;
  void models_changed() override {}  // absent names and the root's listing are not cached
  void draft_changed(const std::string& draft_id) override;

  // Called after inodes of drafts were made: makes the kernel forget the oldest when there are too many.
  void bound_draft_inodes();
  void set_most_draft_inodes(std::size_t most) { draft_inodes_.store(most); }
  // Wakes who waits for a change of any model or draft. The count grows with each.
  std::uint64_t changes() const EXCLUDES(mutex_);
  bool wait_for_change(std::uint64_t since, SteadyTime deadline) EXCLUDES(mutex_);

 private:
  void changed() EXCLUDES(mutex_);
  Store& store_;
  Inodes& inodes_;
  Notifier& notifier_;
  std::atomic<std::size_t> draft_inodes_;
  std::atomic<bool> bounding_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t changes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace weightfs
