#include "store/drafts/manager.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "store/base/posix.h"
#include "store/drafts/completeness.h"

namespace weightfs {

DraftManager::DraftManager(DraftsOptions options)
    : options_(std::move(options)),
      clock_(options_.clock ? *options_.clock : Clock::system()),
      check_pool_("draft-check", 1),
      publish_pool_("draft-publish", std::max<std::size_t>(options_.publishers, 1)),
      sync_pool_("draft-sync", std::max<std::size_t>(options_.publishers, 1)) {}

DraftManager::~DraftManager() {
  shut_down(now());
  watcher_.reset();  // its thread calls us
}

Status DraftManager::start() {
  auto ended = [this](ProcessId process, ProcessEnd end, const std::string& name) {
    process_ended(process, end, name);
  };
  watcher_ = WFS_TRY(options_.watcher ? options_.watcher(ended) : ProcessWatcher::start(ended));
  boot_ = posix::boot_id().value_or("");
  for (auto& record : options_.cache->drafts()) recover(record, boot_);
  if (options_.timer) {
    timer_ = start_thread("draft-timer", [this](const std::stop_token& stop) { run_timer(stop); });
  }
  run_due();
  return {};
}

Result<std::unique_ptr<Drafts>> make_drafts(DraftsOptions options) {
  auto manager = std::make_unique<DraftManager>(std::move(options));
  WFS_TRY(manager->start());
  return std::unique_ptr<Drafts>(std::move(manager));
}

// Earlier runs.

void DraftManager::recover(const DraftRecord& record, const std::string& boot) {
  if (record.state == "committed") {
    auto status = options_.cache->delete_draft(record.id);
    if (!status) spdlog::warn("draft {} is committed, but stays: {}", record.id, status.message());
    return;
  }
  auto model = ModelName::parse(record.model);
  if (!model) {
    spdlog::error("draft {} is left alone: {}", record.id, model.status().message());
    return;
  }
  auto name = record.name;
  if (!check_name(*model, name) || !reserve(*model, name)) {
    name = ".recovered-" + record.id.substr(0, 8);
    spdlog::error("draft {} of {} is shown as {}: its name '{}' is another's or not legal", record.id, model->str(),
                  name, percent_encode(record.name));
    if (!reserve(*model, name)) return;
  }
  DraftMachine machine({options_.settle, options_.settle_live}, !is_temporary_name(name), std::nullopt, now());
  restore(machine, record, boot);
  auto entry = std::make_shared<DraftEntry>(*this, record.id, *model, name, parent_from_record(record.parent),
                                            options_.cache->draft_dir(record.id), std::move(machine));
  {
    MutexLock lock(entry->mutex_);
    if (entry->machine_.committing() || entry->machine_.asked_for()) entry->commit_id_ = record.commit_id;
  }
  put(entry, name);
  spdlog::info("draft {}/{} of an earlier run: {}", model->str(), name, entry->status().text());
}

// A machine that lost its writers: nothing but what was asked for goes on by itself.
void DraftManager::restore(DraftMachine& machine, const DraftRecord& record, const std::string& boot) const {
  bool known = record.state == "interrupted" && !record.reason.empty();
  machine.interrupt(known ? record.reason : "the daemon restarted before it was published");
  auto extra = nlohmann::json::parse(record.extra, nullptr, false);
  auto word = [&](const char* key) {
    auto found = extra.is_object() ? extra.find(key) : extra.end();
    return extra.is_object() && found != extra.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (record.state == "committing" && !record.commit_id.empty()) {
    machine.resume_commit();
  } else if (record.state == "publishing" && !boot.empty() && word("boot") == boot) {
    // After a power cut the files may lack what the page cache held; after the daemon's death they do not.
    bool asked = word("trigger") == "asked";
    machine.resume_wanted(asked ? PublishTrigger::kAsked : PublishTrigger::kRenamed, now());
  } else if (record.state == "failed") {
    machine.resume_failed(record.reason);
  }
}

// Names.

Status DraftManager::check_name(const ModelName& model, std::string_view name) const {
  auto legal = [&]() -> Status {
    if (!is_temporary_name(name)) return std::move(VersionName::parse(name)).status();
    if (name.find('/') != name.npos) return {Code::kInvalid, "'/' in a name"};
    return std::move(FilePath::parse(name)).status();
  };
  return legal().with(model.str());
}

Status DraftManager::reserve(const ModelName& model, std::string_view name) {
  MutexLock lock(mutex_);
  if (by_name_.try_emplace({model.str(), std::string(name)}).second) return {};
  return {Code::kExists, model.str() + "/" + std::string(name) + ": a draft has this name"};
}

void DraftManager::free_name(const ModelName& model, const std::string& name) {
  MutexLock lock(mutex_);
  by_name_.erase({model.str(), name});
}

void DraftManager::put(const DraftEntryPtr& entry, const std::string& name) {
  MutexLock lock(mutex_);
  by_id_[entry->id()] = entry;
  by_name_[{entry->model().str(), name}] = entry;
}

void DraftManager::drop(const DraftEntryPtr& entry) {
  auto name = entry->name();
  MutexLock lock(mutex_);
  by_id_.erase(entry->id());
  auto found = by_name_.find({entry->model().str(), name});
  if (found != by_name_.end() && found->second == entry) by_name_.erase(found);
}

std::vector<DraftEntryPtr> DraftManager::entries() const {
  MutexLock lock(mutex_);
  std::vector<DraftEntryPtr> out;
  for (auto& [id, entry] : by_id_) out.push_back(entry);
  return out;
}

std::vector<DraftPtr> DraftManager::list() const {
  MutexLock lock(mutex_);
  std::vector<DraftPtr> out;
  for (auto& [name, entry] : by_name_) {
    if (entry) out.push_back(entry);
  }
  return out;
}

std::vector<DraftPtr> DraftManager::list(const ModelName& model) const {
  MutexLock lock(mutex_);
  std::vector<DraftPtr> out;
  for (auto at = by_name_.lower_bound({model.str(), ""}); at != by_name_.end() && at->first.first == model.str();
       ++at) {
    if (at->second) out.push_back(at->second);
  }
  return out;
}

DraftPtr DraftManager::find(const ModelName& model, std::string_view name) const {
  MutexLock lock(mutex_);
  auto found = by_name_.find({model.str(), std::string(name)});
  return found == by_name_.end() ? nullptr : found->second;
}

DraftPtr DraftManager::find_id(const std::string& id) const {
  MutexLock lock(mutex_);
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Result<DraftPtr> DraftManager::create(const ModelName& model, std::string_view name, pid_t tid, mode_t mode) {
  if (options_.read_only) return Status(Code::kReadOnly, model.str() + ": the bucket or mount is read-only");
  WFS_TRY(check_name(model, name));
  if (options_.is_live && options_.is_live(model, name)) {
    return Status(Code::kExists, model.str() + "/" + std::string(name) + ": a version has this name");
  }
  WFS_TRY(reserve(model, name));
  std::string own_name(name);
  auto record = options_.cache->create_draft(model.str(), own_name);
  if (!record) {
    free_name(model, own_name);
    return std::move(record).status();
  }
  auto root = options_.cache->draft_dir(record->id);
  auto prepare = [&]() -> Status {
    auto dir = WFS_TRY(posix::open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    return posix::set_mode(dir.get(), (mode & 07777) | 0700);
  };
  if (auto status = prepare(); !status) {
    options_.cache->delete_draft(record->id).ignore("the first error is the one to report");
    free_name(model, own_name);
    return status;
  }
  auto creator = watcher_->process_of(tid);
  DraftMachine machine({options_.settle, options_.settle_live}, !is_temporary_name(name), creator, now());
  auto entry =
      std::make_shared<DraftEntry>(*this, record->id, model, own_name, ParentChoice{}, root, std::move(machine));
  put(entry, own_name);
  if (creator) {
    {
      MutexLock lock(entry->mutex_);
      entry->watched_.insert(*creator);
    }
    watcher_->watch(*creator);
  }
  return DraftPtr(entry);
}

Status DraftManager::rename(const DraftPtr& draft, std::string_view new_name) {
  auto entry = std::static_pointer_cast<DraftEntry>(draft);
  auto& model = entry->model_;
  std::string name(new_name);
  if (options_.read_only) return {Code::kReadOnly, model.str() + ": the bucket or mount is read-only"};
  WFS_TRY(check_name(model, name));
  if (options_.is_live && options_.is_live(model, name)) {
    return {Code::kExists, model.str() + "/" + name + ": a version has this name"};
  }
  {
    MutexLock record_lock(entry->record_mutex_);
    auto old_name = entry->name();
    if (old_name == name) return {};
    WFS_TRY(reserve(model, name));
    if (auto status = entry->set_name(name); !status) {
      free_name(model, name);
      return std::move(status).with(model.str() + "/" + old_name);
    }
    MutexLock lock(mutex_);
    by_name_[{model.str(), name}] = entry;
    by_name_.erase({model.str(), old_name});
  }
  pump(entry);
  return {};
}

Status DraftManager::remove(const DraftPtr& draft) {
  auto entry = std::static_pointer_cast<DraftEntry>(draft);
  auto what = entry->model_.str() + "/" + entry->name();
  bool later = false;
  {
    MutexLock record_lock(entry->record_mutex_);
    WFS_TRY(entry->remove_folder(later).with(what));
  }
  drop(entry);
  entry->drop_uploads();
  pump(entry);
  if (!later) {
    // Its folder is empty: should the record come back, it is an empty draft, which rmdir removes.
    auto status = options_.cache->delete_draft(entry->id());
    if (!status) spdlog::warn("draft {} removed, its record not: {}", what, status.message());
  }
  return {};
}

// The timer and the pools.

void DraftManager::wake_at(SteadyTime when) {
  MutexLock lock(work_mutex_);
  if (when >= next_wake_) return;
  next_wake_ = when;
  work_changed_.notify_all();
}

void DraftManager::run_timer(const std::stop_token& stop) {
  while (true) {
    {
      MutexLock lock(work_mutex_);
      while (!stop.stop_requested() && now() < next_wake_) {
        auto wait = std::min<SteadyTime::duration>(next_wake_ - now(), std::chrono::minutes(1));
        work_changed_.wait_until(work_mutex_, std::chrono::steady_clock::now() + wait);
      }
      if (stop.stop_requested()) return;
      next_wake_ = SteadyTime::max();
    }
    run_due();
  }
}

void DraftManager::run_due() {
  for (auto& entry : entries()) pump(entry);
}

void DraftManager::wait_idle() {
  MutexLock lock(work_mutex_);
  while (jobs_ > 0) work_changed_.wait(work_mutex_);
}

bool DraftManager::post(WorkerPool& pool, std::function<void()> job) {
  {
    MutexLock lock(work_mutex_);
    jobs_++;
  }
  auto done = [this] {
    MutexLock lock(work_mutex_);
    jobs_--;
    work_changed_.notify_all();
  };
  if (pool.post([job = std::move(job), done] {
        job();
        done();
      })) {
    return true;
  }
  done();
  return false;
}

bool DraftManager::acts(const DraftEntry& entry) const {
  return !options_.read_only && (options_.automatic || entry.asked_);
}

bool DraftManager::anything_under_way() const {
  for (auto& entry : entries()) {
    MutexLock lock(entry->mutex_);
    if (acts(*entry) && entry->machine_.under_way(now())) return true;
  }
  return false;
}

void DraftManager::shut_down(SteadyTime deadline) {
  {
    MutexLock lock(work_mutex_);
    if (std::exchange(shut_down_, true)) return;
  }
  while (now() < deadline) {
    for (auto& entry : entries()) {
      MutexLock lock(entry->mutex_);
      entry->machine_.hurry();
    }
    if (!anything_under_way()) break;
    run_due();
    MutexLock lock(work_mutex_);
    auto left = std::min<SteadyTime::duration>(deadline - now(), std::chrono::milliseconds(jobs_ > 0 ? 200 : 5));
    work_changed_.wait_until(work_mutex_, std::chrono::steady_clock::now() + left);
  }
  for (auto& entry : entries()) {
    {
      MutexLock lock(entry->mutex_);
      entry->machine_.give_up();
    }
    pump(entry);
  }
  if (timer_.joinable()) {
    timer_.request_stop();
    {
      MutexLock lock(work_mutex_);
      work_changed_.notify_all();
    }
    timer_.join();
  }
  for (auto& entry : entries()) entry->drop_uploads();
  check_pool_.stop();
  publish_pool_.stop();
  sync_pool_.stop();
  for (auto& entry : entries()) {
    std::vector<CommitDone> waiters;
    bool save;
    {
      MutexLock lock(entry->mutex_);
      waiters.swap(entry->waiters_);
      save = entry->machine_.asked_for().has_value();
    }
    if (save) entry->save().ignore("it is found interrupted then");
    auto what = entry->model().str() + "/" + entry->name();
    for (auto& done : waiters) done(Status(Code::kInterrupted, what + ": shutting down; the draft is kept"));
    spdlog::info("draft {} is kept: {}", what, entry->status().text());
  }
}

}  // namespace weightfs
