#include "store/log/model_log.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/log/log_reader.h"
#include "store/log/state_builder.h"
#include "store/log/state_snapshot.h"

namespace weightfs {
namespace {

constexpr std::size_t kMaxIds = 4096;
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);
constexpr Duration kHintPatience = std::chrono::seconds(2);

bool is_outage(Code code) { return code == Code::kUnavailable || code == Code::kInterrupted; }

// The store says that it has not done it. Whatever else a PUT ends with, it may have been done, or be done yet.
bool is_refusal(Code code) {
  return code == Code::kExists || code == Code::kPermission || code == Code::kInvalid || code == Code::kNoSpace ||
         code == Code::kReadOnly || code == Code::kUnsupported;
}

// Writers that lost the same race do not come back at the same time: the id spreads them.
Duration pause_after(std::uint64_t attempt, const std::string& id) {
  auto longest = std::min(kFirstPause * (std::int64_t{1} << std::min<std::uint64_t>(attempt, 10)), kLongestPause);
  auto spread = std::hash<std::string>{}(id + std::to_string(attempt)) % 512;
  return longest / 2 + longest * static_cast<std::int64_t>(spread) / 1024;
}

}  // namespace

// One append at a time; the others wait without a lock held.
class ModelLog::Turn {
 public:
  explicit Turn(ModelLog& log) : log_(log) {}
  Status take(const CallOptions& options) {
    auto until = std::chrono::steady_clock::now() + options.deadline;
    MutexLock lock(log_.mutex_);
    while (log_.appending_) {
      if (!log_.turn_over_.wait_until(log_.mutex_, until) && log_.appending_) {
        return {Code::kUnavailable, "an earlier commit of this process is still under way"};
      }
    }
    log_.appending_ = taken_ = true;
    return {};
  }
  ~Turn() {
    if (!taken_) return;
    {
      MutexLock lock(log_.mutex_);
      log_.appending_ = false;
    }
    log_.turn_over_.notify_one();
  }

 private:
  ModelLog& log_;
  bool taken_ = false;
};

ModelLog::ModelLog(Bucket& bucket, ModelName model, Clock& clock, LogStateStore* store, LogOptions options)
    : bucket_(bucket),
      model_(std::move(model)),
      clock_(clock),
      store_(store),
      options_(std::move(options)),
      state_(std::make_shared<const ModelState>(model_)) {
  if (store_ == nullptr) return;
  auto saved = store_->load(model_);
  if (!saved) return;
  auto state = load_state(*saved, model_);
  if (!state.is_ok()) {
    spdlog::warn("log {}: the saved state is dropped: {}", model_.str(), state.status().to_string());
    return;
  }
  saved_ = StateBuilder(std::move(*state)).build();
}

ModelStatePtr ModelLog::state() const {
  MutexLock lock(mutex_);
  return state_;
}

bool ModelLog::has_saved() const {
  MutexLock lock(mutex_);
  return saved_ != nullptr;
}

// ---- Reading

Result<ModelStatePtr> ModelLog::refresh(const CallOptions& options) {
  return refresh_within(Deadline(clock_, options)).with("log " + model_.str());
}

Result<ModelStatePtr> ModelLog::refresh_within(const Deadline& deadline) {
  ModelStatePtr from;
  bool hidden = false, unchecked = false, opened = false;
  {
    MutexLock lock(mutex_);
    hidden = saved_ != nullptr;
    from = hidden ? saved_ : state_;
    unchecked = hidden || unchecked_;
    opened = hidden || opened_;
  }
  LogReader reader(bucket_, model_, deadline, options_.parallel);
  auto next = opened ? reader.advance(from, unchecked) : reader.open();
  if (!next.is_ok() && next.code() == Code::kCorrupt && opened) {
    if (hidden) {
      spdlog::warn("log {}: begins anew, what was known is not in the bucket: {}", model_.str(),
                   next.status().to_string());
      LogReader anew(bucket_, model_, deadline, options_.parallel);
      auto state = WFS_TRY(anew.open());
      if (drop_saved()) {
        adopt(state, anew.ids(), true);
        return this->state();
      }
    }
    // Numbers that were shown stand for versions: their files are open, and in caches. They never become others.
    auto broken = std::move(next).status().with("the bucket was made anew, which takes a new start of weightfs to see");
    if (!from->broken) spdlog::error("log {}: {}", model_.str(), broken.to_string());
    auto state = StateBuilder(*from).build(std::move(broken));
    MutexLock lock(mutex_);
    if (state_ == from) state_ = state;  // else another call knows better
    return state_;
  }
  if (!next.is_ok() && hidden && next.code() != Code::kInterrupted) show_saved();
  auto state = WFS_TRY(std::move(next));
  adopt(state, reader.ids(), false);
  return this->state();  // another call may have come further
}

// The bucket cannot be asked: what it had is better than nothing.
void ModelLog::show_saved() {
  MutexLock lock(mutex_);
  if (saved_ == nullptr) return;
  state_ = std::exchange(saved_, nullptr);
  unchecked_ = opened_ = true;
}

// False: it was shown meanwhile.
bool ModelLog::drop_saved() {
  MutexLock lock(mutex_);
  return std::exchange(saved_, nullptr) != nullptr;
}

void ModelLog::adopt(const ModelStatePtr& next, const std::map<std::string, std::uint64_t>& ids, bool anew) {
  bool changed = false;
  {
    MutexLock lock(mutex_);
    if (next->head >= state_->head) {  // else another call got further meanwhile
      changed = anew || next->head != state_->head;
      state_ = next;
      unchecked_ = unchecked_ && next->broken.has_value();
    }
    opened_ = true;
    saved_ = nullptr;
    for (const auto& [id, number] : ids) {
      if (ids_.insert_or_assign(id, number).second) ids_in_order_.push_back(id);
    }
    while (ids_in_order_.size() > kMaxIds) {
      ids_.erase(ids_in_order_.front());
      ids_in_order_.pop_front();
    }
  }
  if (changed && store_ != nullptr) store_->save(model_, save_state(*next));
}

std::optional<std::uint64_t> ModelLog::number_of(const ModelState& state, const std::string& id) const {
  {
    MutexLock lock(mutex_);
    if (auto found = ids_.find(id); found != ids_.end()) return found->second;
  }
  for (auto at = state.versions.rbegin(); at != state.versions.rend(); ++at) {
    if (at->second.id == id) return at->first;
  }
  return std::nullopt;
}

Result<LogEntry> ModelLog::read_entry(std::uint64_t number, const Deadline& deadline) {
  auto bytes = WFS_TRY(bucket_.get_all(log_entry_key(model_, number), kMaxLogEntry, deadline.options()));
  return parse_log_entry(bytes, model_, number).with(log_entry_key(model_, number).str());
}

Result<LogEntry> ModelLog::find_commit(const std::string& id, const CallOptions& options) {
  auto number = number_of(*state(), id);
  if (!number) return Status(Code::kNotFound, "log " + model_.str() + ": no commit " + id);
  return read_entry(*number, Deadline(clock_, options));
}

// ---- Writing

// The newest state. A model that cannot be read because it may not exist is taken for a new one: the conditional PUT
// decides.
Result<ModelStatePtr> ModelLog::head_for_append(const Deadline& deadline, bool may_be_new) {
  auto head = refresh_within(deadline);
  if (head.is_ok() || head.code() != Code::kPermission || !may_be_new) return head;
  auto known = state();
  if (known->head == 0) return known;
  return head;
}

// States of an append, by what is known of entry `head + 1`:
//   free ── PUT ─┬─ OK ─────────────────────────────→ won
//                ├─ kExists, any other error ─ read ─┬ own id → won
//                │                                   ├ another's → lost: again with the next number
//                │                                   ├ absent, refused by the store → given up
//                │                                   └ absent → free again (the same PUT cannot do harm twice)
//                └─ cannot be read ──────────────────→ unknown: read until the deadline
Result<LogEntry> ModelLog::append(const std::string& id, const Make& make, const CallOptions& options) {
  Turn turn(*this);
  WFS_TRY(turn.take(options));
  Deadline deadline(clock_, options);
  auto context = "log " + model_.str();
  std::uint64_t in_doubt = 0;  // this number's PUT may have been done, or come yet
  Status trouble;              // what the last request said
  for (std::uint64_t attempt = 0;; attempt++) {
    if (auto status = deadline.check(); !status.is_ok()) {
      return std::move(status).with(trouble.is_ok() ? context : context + ": " + trouble.to_string());
    }
    auto head = head_for_append(deadline, trouble.code() != Code::kExists);
    if (!head.is_ok()) {
      if (head.code() != Code::kUnavailable) return std::move(head).status().with(context);
      trouble = head.status();
      deadline.sleep(pause_after(attempt, id));
      continue;
    }
    const ModelState& state = **head;
    if (auto number = number_of(state, id)) return read_entry(*number, deadline).with(context);
    bool still_in_doubt = in_doubt > state.head;
    if (!trouble.is_ok() && !is_outage(trouble.code()) && trouble.code() != Code::kExists && !still_in_doubt) {
      return trouble.with(context);
    }
    if (state.broken) return state.broken->with(context + ": nothing can be appended");
    auto body = make(state);
    if (!body.is_ok()) {
      // An earlier PUT may yet land: as long as it can, this commit has not failed.
      if (!still_in_doubt) return std::move(body).status();
      trouble = {Code::kUnavailable, body.status().to_string()};
      deadline.sleep(pause_after(attempt, id));
      continue;
    }
    LogEntry entry{.number = state.head + 1,
                   .id = id,
                   .previous = state.head_digest,
                   .snapshot = state.snapshot,
                   .time = clock_.wall(),
                   .model = model_,
                   .body = std::move(*body)};
    WFS_TRY(check_log_entry(entry).with(context + ": entry refused"));
    auto bytes = serialize(entry);
    if (bytes.size() > kMaxLogEntry) return Status(Code::kInvalid, context + ": the entry is too long");
    auto put = bucket_.put(log_entry_key(model_, entry.number), bytes, IfExists::kFail,
                           deadline.at_most(deadline.left() * 2 / 3));
    if (put.is_ok()) {
      won(state, entry, Sha256::of(bytes), deadline);
      return entry;
    }
    if (put.code() == Code::kInterrupted) return std::move(put).with(context);
    if (put.code() == Code::kUnsupported) {
      return Status(Code::kReadOnly, context + ": the store has no conditional writes: " + put.message());
    }
    if (!is_refusal(put.code())) in_doubt = entry.number;
    // A refusal counts only when the entry turns out not to be there; it stays a doubt while an older one lasts.
    trouble = std::move(put);
    if (trouble.code() == Code::kExists && attempt == 0) continue;
    deadline.sleep(pause_after(attempt, id));
  }
}

void ModelLog::won(const ModelState& before, const LogEntry& entry, const Sha256& digest, const Deadline& deadline) {
  StateBuilder builder(before);
  if (auto status = builder.apply(entry, digest); !status.is_ok()) {
    spdlog::error("log {}: own entry {}: {}", model_.str(), entry.number, status.to_string());
    return;
  }
  adopt(std::move(builder).build(), {{entry.id, entry.number}}, false);
  bucket_.put(log_hint_key(model_), serialize_hint(entry.number), IfExists::kOverwrite, deadline.at_most(kHintPatience))
      .ignore("a stale hint costs readers a few requests");
}

// ---- Snapshots

Status ModelLog::snapshot_if_due(const CallOptions& options) {
  auto now = state();
  auto due = std::clamp<std::uint64_t>(now->snapshot / 10, 32, 128);
  if (now->broken || now->head - now->snapshot < due) return {};
  return write_snapshot_now(options);
}

Status ModelLog::write_snapshot_now(const CallOptions& options) {
  Deadline deadline(clock_, options);
  auto now = state();
  if (now->head == 0) return {};
  auto id = new_id();
  auto written = WFS_TRY(write_snapshot(*now).with("log " + model_.str()));
  written.entry.object = snapshot_key(model_, id);
  WFS_TRY(bucket_.put(written.entry.object, written.object, IfExists::kOverwrite, deadline.options())
              .with("log " + model_.str()));
  auto appended = append(
      id,
      [&](const ModelState& head) -> Result<decltype(LogEntry::body)> {
        if (head.snapshot != now->snapshot) return Status(Code::kExists, "another snapshot was first");
        if (head.is_collected(written.entry.object)) return Status(Code::kExists, "collected meanwhile");
        return decltype(LogEntry::body)(written.entry);
      },
      deadline.options());
  if (appended.is_ok()) return {};
  if (appended.code() != Code::kExists) return std::move(appended).status();
  bucket_.remove(written.entry.object, deadline.options()).ignore("gc takes what nothing names");
  return {};
}

}  // namespace weightfs
