#include "fs/notify.h"

#include <spdlog/spdlog.h>

#include <cstring>

#include "store/base/threads.h"

namespace weightfs {

void Notifier::start(fuse_session* session) {
  session_ = session;
  thread_ = start_thread("fs-notify", [this](const std::stop_token&) { run(); });
}

void Notifier::post(std::function<void(Notifier&)> job) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Notifier::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Notifier::run() {
  while (true) {
    std::function<void(Notifier&)> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job(*this);
  }
}

void Notifier::forget_name(std::uint64_t directory, const std::string& name) {
  int result = fuse_lowlevel_notify_inval_entry(session_, directory, name.c_str(), name.size());
  // The kernel answers "no such entry" for a name it does not have.
  if (result != 0) spdlog::debug("forget {} in {}: {}", name, directory, std::strerror(-result));
}

void Follower::changed() {
  {
    MutexLock lock(mutex_);
    changes_++;
  }
  changed_.notify_all();
}

std::uint64_t Follower::changes() const {
  MutexLock lock(mutex_);
  return changes_;
}

bool Follower::wait_for_change(std::uint64_t since, SteadyTime deadline) {
  MutexLock lock(mutex_);
  while (changes_ == since) {
    if (!changed_.wait_until(mutex_, deadline)) return changes_ != since;
  }
  return true;
}

void Follower::model_changed(const ModelName& model, const ModelStatePtr& before, const ModelStatePtr& after) {
  changed();
  if (!before) return;
  notifier_.post([this, model, before, after](Notifier& notifier) {
    auto directory = inodes_.known(ModelNode::key_of(model));
    if (!directory) return;
    for (const auto* version : before->live_versions()) {
      const auto* now = after ? after->live(version->name) : nullptr;
      if (now == nullptr || now->number != version->number) notifier.forget_name(directory->id, version->name.str());
    }
  });
}

void Follower::draft_changed(const std::string& draft_id) {
  changed();
  notifier_.post([this, draft_id](Notifier& notifier) {
    auto draft = store_.drafts().find_id(draft_id);
    bool still_there = draft != nullptr;
    if (!draft) {
      for (const auto& node : inodes_.oldest_drafts(inodes_.drafts())) {
        if (node->draft->id() == draft_id) draft = node->draft;
      }
    }
    // A draft that goes on (its commit failed) keeps its name, and those who stand in it keep theirs.
    if (!draft || (still_there && draft->status().state != DraftState::kCommitted)) return;
    auto directory = inodes_.known(ModelNode::key_of(draft->model()));
    if (directory) notifier.forget_name(directory->id, draft->name());
  });
}

void Follower::bound_draft_inodes() {
  auto most = draft_inodes_.load();
  if (inodes_.drafts() <= most || bounding_.exchange(true)) return;
  notifier_.post([this, most](Notifier& notifier) {
    // Down to three quarters, so that this is rare. The kernel forgets what is not in use.
    auto now = inodes_.drafts();
    auto excess = now - std::min(now, most - most / 4);
    for (const auto& node : inodes_.oldest_drafts(excess)) {
      auto [parent, name] = node->place();
      if (parent != 0) notifier.forget_name(parent, name);
    }
    bounding_.store(false);
  });
}

}  // namespace weightfs
