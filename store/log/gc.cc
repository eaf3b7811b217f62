#include "store/log/gc.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/log/gc_plan.h"

namespace weightfs {
namespace {

using Body = decltype(LogEntry::body);
constexpr std::size_t kDeletesAtOnce = 8;

class Collector {
 public:
  Collector(ModelLogs& logs, const ModelName& model, const GcOptions& options)
      : logs_(logs), log_(logs.get(model)), model_(model), options_(options), bucket_(logs.bucket()) {}

  Result<GcResult> run() {
    WFS_TRY(look());
    WFS_TRY(delete_due());
    while (true) {
      auto more = WFS_TRY(collect());
      if (!more) break;
    }
    // What was collected just now is due where there is no grace time.
    if (options_.grace == Duration(0) && !options_.dry_run) {
      facts_.now = WFS_TRY(bucket_.server_time(options_.call));
    }
    WFS_TRY(delete_due());
    if (options_.grace == Duration(0) && options_.dry_run) foretell_deletes();
    WFS_TRY(finish());
    return std::move(result_);
  }

 private:
  Status look();
  Status look_at_snapshots(const ModelState& state);
  Result<bool> collect();
  Status finish();
  Status delete_due();
  Result<WallTime> time_of(std::uint64_t entry);
  Status remove_all(std::vector<GcItem> items);
  void foretell_deletes();

  ModelLogs& logs_;
  ModelLog& log_;
  const ModelName& model_;
  const GcOptions& options_;
  Bucket& bucket_;
  GcFacts facts_;
  GcResult result_;
  std::vector<std::uint64_t> finished_;
  std::set<std::uint64_t> seen_;  // collects that delete_due has dealt with
  std::set<ObjectKey> heartbeats_;
  std::map<ObjectKey, std::string> reasons_;  // of what this run collected
};

// The order matters: time, listing, logs. What is not in the logs although it was listed, was not committed when the
// logs were read; and a hold that is old at that time had its commit before its child's log was read.
Status Collector::look() {
  facts_.grace = options_.grace;
  facts_.now = WFS_TRY(bucket_.server_time(options_.call));
  auto listed = WFS_TRY(bucket_.list(model_prefix(model_), options_.call));
  for (auto& object : listed) facts_.listed.emplace(std::move(object.key), object.info);
  WFS_TRY(logs_.refresh_with_bases(model_, options_.call));
  auto state = log_.state();
  std::set<ModelName> children;
  for (const auto& record : state->holds) children.insert(record.hold.child);
  for (const auto& child : children) WFS_TRY(logs_.get(child).refresh(options_.call));
  facts_.resolve = logs_.known();
  std::set<ModelName> seen;
  std::vector<ModelName> open{model_};
  while (!open.empty()) {
    auto base = logs_.get(open.back()).state();
    open.pop_back();
    if (!seen.insert(base->model).second) continue;
    if (base->broken) return base->broken->with("log " + base->model.str() + " is damaged, nothing is collected");
    for (const auto& next : bases_of(*base)) open.push_back(next);
  }
  return look_at_snapshots(*state);
}

// The newest and the one before, which a reader falls back to.
Status Collector::look_at_snapshots(const ModelState& state) {
  auto number = facts_.snapshot = state.snapshot;
  for (int i = 0; i < 2 && number != 0; i++) {
    auto bytes = WFS_TRY(bucket_.get_all(log_entry_key(model_, number), kMaxLogEntry, options_.call));
    auto entry = WFS_TRY(parse_log_entry(bytes, model_, number));
    if (const auto* body = std::get_if<SnapshotEntry>(&entry.body)) facts_.kept_snapshots.insert(body->object);
    number = entry.snapshot;
  }
  return {};
}

// Phase 1. True: there is more than one entry holds.
Result<bool> Collector::collect() {
  GcPlan plan;
  bool nothing = false;
  auto make = [&](const ModelState& head) -> Result<Body> {
    plan = WFS_TRY(plan_gc(head, facts_));
    std::erase_if(finished_, [&](std::uint64_t number) {
      return std::none_of(head.collects.begin(), head.collects.end(), [&](const auto& r) { return r.entry == number; });
    });
    plan.entry.finished = finished_;
    nothing = plan.entry.objects.empty() && plan.entry.edges.empty();
    if (nothing) return Status(Code::kExists, "nothing to collect");
    return Body(plan.entry);
  };
  if (options_.dry_run) {
    auto body = make(*log_.state());
    if (!body.is_ok() && !nothing) return std::move(body).status();
  } else {
    auto entry = log_.append(log_.new_id(), make, options_.call);
    if (!entry.is_ok() && !nothing) return std::move(entry).status();
    if (entry.is_ok()) finished_.clear();
  }
  result_.kept_objects = plan.kept_objects;
  result_.kept_bytes = plan.kept_bytes;
  heartbeats_.insert(plan.heartbeats.begin(), plan.heartbeats.end());
  bool full = plan.items.size() == kMaxCollected;
  for (auto& item : plan.items) {
    reasons_.insert_or_assign(item.key, item.why);
    result_.items.push_back(std::move(item));
  }
  if (!result_.items.empty()) result_.ready = std::max(result_.ready.value_or(facts_.now), facts_.now + facts_.grace);
  return full && !options_.dry_run;
}

// Without a grace time a run deletes what it has just collected; the dry one says so.
void Collector::foretell_deletes() {
  auto collected = result_.items.size();
  for (std::size_t i = 0; i < collected; i++) {
    if (result_.items[i].what != GcItem::What::kCollected) continue;
    auto item = result_.items[i];
    item.what = GcItem::What::kDeleted;
    result_.items.push_back(std::move(item));
  }
}

// What was deleted is said even when nothing new was collected.
Status Collector::finish() {
  std::vector<GcItem> beats;
  beats.reserve(heartbeats_.size());
  for (const auto& key : heartbeats_)
    beats.push_back({GcItem::What::kDeleted, key, 0, "heartbeat of no upload under way"});
  WFS_TRY(remove_all(std::move(beats)));
  if (finished_.empty() || options_.dry_run) return {};
  bool nothing = false;
  auto entry = log_.append(
      log_.new_id(),
      [&](const ModelState& head) -> Result<Body> {
        CollectEntry body;
        for (const auto& record : head.collects) {
          if (std::find(finished_.begin(), finished_.end(), record.entry) != finished_.end()) {
            body.finished.push_back(record.entry);
          }
        }
        nothing = body.finished.empty();
        if (nothing) return Status(Code::kExists, "another gc has said so");
        return Body(std::move(body));
      },
      options_.call);
  return entry.is_ok() || nothing ? Status() : std::move(entry).status();
}

// Phase 2.
Status Collector::delete_due() {
  auto state = log_.state();
  UsedObjects used(*state);
  for (const auto& record : state->collects) {
    if (!seen_.insert(record.entry).second) continue;
    auto due = WFS_TRY(time_of(record.entry))
    +facts_.grace;
    bool is_due = due <= facts_.now;
    std::vector<GcItem> items;
    for (const auto& key : record.objects) {
      auto listed = facts_.listed.find(key);
      if (listed == facts_.listed.end()) continue;  // gone already
      if (used.contains(key)) {
        spdlog::error("gc {}: {} is named by collect entry {} but still in use: it stays", model_.str(), key.str(),
                      record.entry);
        continue;
      }
      auto reason = reasons_.find(key);
      if (!is_due && reason != reasons_.end()) continue;  // in the result already, as collected
      items.push_back({is_due ? GcItem::What::kDeleted : GcItem::What::kWaiting, key, listed->second.size,
                       reason == reasons_.end() ? "collected earlier" : reason->second});
    }
    if (!is_due) {
      result_.ready = result_.ready ? std::min(*result_.ready, due) : due;
      for (auto& item : items) result_.items.push_back(std::move(item));
      continue;
    }
    WFS_TRY(remove_all(std::move(items)));
    finished_.push_back(record.entry);
  }
  return {};
}

// By the server's clock.
Result<WallTime> Collector::time_of(std::uint64_t entry) {
  auto key = log_entry_key(model_, entry);
  if (auto listed = facts_.listed.find(key); listed != facts_.listed.end()) return listed->second.modified;
  auto info = WFS_TRY(bucket_.head(key, options_.call));
  return info.modified;
}

Status Collector::remove_all(std::vector<GcItem> items) {
  std::uint64_t done = 0, total = items.size();
  for (std::size_t begin = 0; begin < items.size();) {
    if (options_.call.cancel && options_.call.cancel->cancelled()) return {Code::kInterrupted, "gc was cancelled"};
    auto many = std::min({kDeletesAtOnce, items.size() - begin, logs_.options().parallel});
    std::vector<Status> results(many);
    if (!options_.dry_run) {
      run_parallel(many, many,
                   [&](std::size_t i) { results[i] = bucket_.remove(items[begin + i].key, options_.call); });
    }
    for (std::size_t i = 0; i < many; i++, begin++) {
      WFS_TRY(std::move(results[i]).with("delete " + items[begin].key.str()));
      done++;
      if (options_.progress) options_.progress(items[begin], done, total);
      result_.items.push_back(items[begin]);
    }
    if (options_.deletes_per_second != 0 && !options_.dry_run) {
      logs_.clock().sleep_for(Duration(1000 * many / options_.deletes_per_second));
    }
  }
  return {};
}

}  // namespace

std::uint64_t GcResult::count(GcItem::What what) const {
  return static_cast<std::uint64_t>(
      std::count_if(items.begin(), items.end(), [&](const GcItem& item) { return item.what == what; }));
}

std::uint64_t GcResult::bytes(GcItem::What what) const {
  std::uint64_t sum = 0;
  for (const auto& item : items) sum += item.what == what ? item.bytes : 0;
  return sum;
}

Result<GcResult> gc(ModelLogs& logs, const ModelName& model, const GcOptions& options) {
  return Collector(logs, model, options).run().with("gc " + model.str());
}

}  // namespace weightfs
