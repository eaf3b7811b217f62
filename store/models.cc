#include "store/models.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace weightfs {
namespace {

// Models that nobody used for so long are asked about on lookup only.
constexpr auto kUnused = std::chrono::minutes(10);
constexpr const char* kListKey = "models";
// What the cache remembers of a model is shown when the bucket does not answer for so long.
constexpr auto kSavedPatience = std::chrono::seconds(2);

}  // namespace

Models::Models(Bucket& bucket, Cache& cache, ModelLogs& logs, Clock& clock, Duration poll)
    : bucket_(bucket), cache_(cache), logs_(logs), clock_(clock), poll_(poll) {
  MutexLock lock(mutex_);
  for (const auto& key : cache_.state_keys("log/")) {
    auto name = ModelName::parse(std::string_view(key).substr(4));
    if (name.is_ok()) listed_.insert(std::move(name).value());
  }
  // One percent-encoded name a line.
  auto saved = cache_.load_state(kListKey);
  std::string_view text = saved ? as_text(*saved) : std::string_view();
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    auto bytes = percent_decode(line);
    if (!bytes.is_ok()) continue;
    auto name = ModelName::parse(*bytes);
    if (name.is_ok()) listed_.insert(std::move(name).value());
  }
}

Models::~Models() { stop(); }

void Models::follow(Events events) {
  {
    MutexLock lock(mutex_);
    events_ = std::move(events);
  }
  poller_ = start_thread("follow", [this](const std::stop_token& stop) { poll_loop(stop); });
}

void Models::stop() {
  cancel_->cancel();
  poller_.request_stop();
  {
    MutexLock lock(mutex_);
    wake_.notify_all();
  }
  if (poller_.joinable()) poller_.join();
}

std::vector<ModelName> Models::known() const {
  MutexLock lock(mutex_);
  std::set<ModelName> all = listed_;
  for (const auto& [name, known] : models_) {
    if (known.told && known.told->latest() != nullptr) all.insert(name);
  }
  return {all.begin(), all.end()};
}

ModelStatePtr Models::state(const ModelName& name) {
  {
    MutexLock lock(mutex_);
    auto found = models_.find(name);
    if (found != models_.end()) {
      found->second.used = clock_.now();
    } else if (!listed_.contains(name)) {
      return nullptr;
    }
  }
  auto state = logs_.get(name).state();
  return state->head == 0 ? nullptr : state;
}

bool Models::is_fresh(const ModelName& name) {
  MutexLock lock(mutex_);
  auto found = models_.find(name);
  if (found == models_.end() || found->second.asked == SteadyTime{}) return false;
  return clock_.now() - found->second.asked <= 2 * poll_;
}

Result<ModelName> Models::name_of(const std::string& component, const CallOptions& options) {
  if (!component.starts_with("%h")) {
    auto bytes = WFS_TRY(percent_decode(component));
    auto name = WFS_TRY(ModelName::parse(bytes));
    if (name.key_component() != component) return Status(Code::kInvalid, "not a model's folder");
    return name;
  }
  // A long name is hashed in keys; its first log entry says what it is.
  auto key = WFS_TRY(ObjectKey::parse(component + "/log/00000000000000000001.json"));
  auto bytes = WFS_TRY(bucket_.get_all(key, kMaxLogEntry, options));
  auto name = WFS_TRY(model_of_log_entry(bytes));
  if (name.key_component() != component) return Status(Code::kCorrupt, component + ": its log is of another model");
  return name;
}

Result<std::vector<ModelName>> Models::refresh_list(const CallOptions& options) {
  auto components = WFS_TRY(bucket_.list_prefixes("", options));
  std::set<ModelName> names;
  for (const auto& component : components) {
    auto name = name_of(component, options);
    if (name.is_ok()) {
      names.insert(std::move(name).value());
    } else if (!component.starts_with('.')) {
      spdlog::debug("{}: '{}' is not a model: {}", bucket_.url(), component, name.status().to_string());
    }
  }
  std::string text;
  for (const auto& name : names) text += percent_encode(name.str()) + "\n";
  bool changed;
  std::function<void()> told;
  {
    MutexLock lock(mutex_);
    changed = listed_ != names;
    listed_ = names;
    told = events_.models_changed;
  }
  if (changed) {
    cache_.save_state(kListKey, as_bytes(text));
    if (told) told();
  }
  return std::vector<ModelName>(names.begin(), names.end());
}

Result<ModelStatePtr> Models::refresh(const ModelName& name, const CallOptions& options) {
  auto& log = logs_.get(name);
  auto call = options;
  if (log.has_saved()) call.deadline = std::min<Duration>(call.deadline, kSavedPatience);
  auto state = WFS_TRY(log.refresh(call));
  {
    MutexLock lock(mutex_);
    auto& known = models_[name];
    known.asked = known.used = clock_.now();
    if (state->head == 0) {
      models_.erase(name);
    }
  }
  if (state->head == 0 && state->broken) return state->broken->with(name.str());  // it is there, but cannot be read
  if (state->head == 0) return Status(Code::kNotFound, name.str() + ": no such model in " + bucket_.url());
  tell(name);
  return state;
}

void Models::note(const ModelName& name) {
  {
    MutexLock lock(mutex_);
    auto& known = models_[name];
    known.used = clock_.now();
  }
  tell(name);
}

void Models::tell(const ModelName& name) {
  auto after = logs_.get(name).state();
  ModelStatePtr before;
  std::function<void(const ModelName&, const ModelStatePtr&, const ModelStatePtr&)> told;
  {
    MutexLock lock(mutex_);
    auto& known = models_[name];
    if (known.told && known.told->head >= after->head) return;
    before = std::exchange(known.told, after);
    told = events_.model_changed;
  }
  if (const auto* latest = after->latest()) cache_.set_newest(name.str(), latest->number);
  if (before) {
    for (const auto& [number, record] : before->versions) {
      const auto* now = after->version(number);
      if (record.removed == 0 && (now == nullptr || now->removed != 0)) cache_.drop_version(name.str(), number);
    }
  }
  if (told) told(name, before, after);
}

void Models::poll_loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    poll_once();
    MutexLock lock(mutex_);
    auto until = std::chrono::steady_clock::now() + poll_;
    while (!stop.stop_requested() && std::chrono::steady_clock::now() < until) wake_.wait_until(mutex_, until);
  }
}

void Models::poll_once() {
  CallOptions options{std::max<Duration>(poll_ * 2, std::chrono::seconds(10)), cancel_};
  auto list = refresh_list(options);
  bool failed_before;
  std::vector<ModelName> used;
  {
    MutexLock lock(mutex_);
    failed_before = std::exchange(list_failed_, !list.is_ok());
    for (const auto& [name, known] : models_) {
      if (clock_.now() - known.used < kUnused) used.push_back(name);
    }
  }
  if (cancel_->cancelled()) return;
  if (!list.is_ok() && !failed_before) {
    spdlog::warn("poll {}: {}: showing what is known, and asking again", bucket_.url(), list.status().to_string());
  } else if (list.is_ok() && failed_before) {
    spdlog::info("poll {}: in reach again", bucket_.url());
  }
  for (const auto& name : used) {
    auto state = logs_.get(name).refresh(options);
    if (cancel_->cancelled()) return;
    if (!state.is_ok()) {
      if (list.is_ok()) spdlog::warn("poll {}: {}", name.str(), state.status().to_string());
      continue;
    }
    {
      MutexLock lock(mutex_);
      models_[name].asked = clock_.now();
    }
    tell(name);
  }
}

}  // namespace weightfs
