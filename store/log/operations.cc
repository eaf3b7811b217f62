#include "store/log/operations.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace weightfs {
namespace {

using Body = decltype(LogEntry::body);

Status check_objects(const ModelState& head, const EdgeRef& edge) {
  for (std::uint32_t i = 0; i < edge.objects; i++) {
    auto key = pack_object_key(head.model, edge.pack, i);
    if (head.is_collected(key)) return {Code::kBusy, key.str() + ": taken by gc before it was committed"};
  }
  return {};
}

Status check_base(const ModelState& head, const NodeRef& base) {
  if (is_buildable(head, base.number)) return {};
  return {Code::kNotFound, head.model.str() + ": version " + std::to_string(base.number) +
                               " is not there any more, nothing can be built on it"};
}

Result<Body> check_publish(const ModelState& head, PublishEntry entry) {
  if (head.live(entry.version) != nullptr) {
    return Status(Code::kExists, head.model.str() + "/" + entry.version.str() + ": the version exists");
  }
  entry.edge.to = head.head + 1;
  const auto& from = entry.edge.from;
  if (from && from->model == head.model) WFS_TRY(check_base(head, *from));
  WFS_TRY(check_objects(head, entry.edge));
  auto manifest = manifest_key(head.model, entry.manifest.digest);
  if (head.is_collected(manifest)) return Status(Code::kBusy, manifest.str() + ": taken by gc before it was committed");
  return Body(std::move(entry));
}

Result<Body> check_edge_entry(const ModelState& head, const EdgeRef& edge) {
  if (head.version(edge.to) == nullptr) {
    return Status(Code::kNotFound, head.model.str() + ": no version " + std::to_string(edge.to));
  }
  if (edge.from && edge.from->model == head.model) WFS_TRY(check_base(head, *edge.from));
  WFS_TRY(check_objects(head, edge));
  bool known = std::any_of(head.edges.begin(), head.edges.end(),
                           [&](const EdgeRecord& record) { return record.edge.pack == edge.pack; });
  if (known) return Status(Code::kExists, "pack " + edge.pack + ": announced already");
  return Body(EdgeEntry{edge});
}

// The entry is there, but took so long that gc may have given up on the hold meanwhile.
Status check_late_commit(ModelLogs& logs, const NodeRef& from, const Deadline& deadline) {
  auto base = WFS_TRY(logs.get(from.model).refresh(deadline.options()));
  return check_base(*base, from);
}

// Appends an entry that builds on `from`, with a hold where that is another model's.
Result<LogEntry> append_on(ModelLogs& logs, const ModelName& model, const std::string& id,
                           const std::optional<NodeRef>& from, const ModelLog::Make& make, const CallOptions& options,
                           bool& late) {
  auto& log = logs.get(model);
  if (!from || from->model == model) return log.append(id, make, options);
  Deadline deadline(logs.clock(), options);
  while (true) {
    WFS_TRY(deadline.check());
    // An earlier call may have done it; then no second hold. Errors are append's to judge.
    if (log.refresh(deadline.options()).is_ok()) {
      if (auto done = log.find_commit(id, deadline.options()); done.code() != Code::kNotFound) return done;
    }
    auto began = logs.clock().now();
    WFS_TRY(hold(logs, *from, model, id, deadline.options()));
    bool stale = false;
    auto appended = log.append(
        id,
        [&](const ModelState& head) -> Result<Body> {
          stale = logs.clock().now() - began > kHoldFresh;
          if (stale) return Status(Code::kUnavailable, "the hold on the parent has become old");
          return make(head);
        },
        deadline.options());
    if (!appended.is_ok() && stale) continue;
    late = appended.is_ok() && logs.clock().now() - began > kHoldTrusted;
    return appended;
  }
}

}  // namespace

Result<LogEntry> publish(ModelLogs& logs, const ModelName& model, const std::string& id, PublishEntry entry,
                         const CallOptions& options) {
  Deadline deadline(logs.clock(), options);
  bool late = false;
  auto make = [&](const ModelState& head) { return check_publish(head, entry); };
  auto published = append_on(logs, model, id, entry.edge.from, make, options, late);
  if (!published.is_ok() || !late) return published;
  auto sound = check_late_commit(logs, *entry.edge.from, deadline);
  if (sound.code() != Code::kNotFound) return published;
  spdlog::warn("{}/{}: taken back, its parent was collected during a commit of over {} min", model.str(),
               entry.version.str(), std::chrono::duration_cast<std::chrono::minutes>(kHoldTrusted).count());
  WFS_TRY(remove_version(logs, model, logs.get(model).new_id(), entry.version, published->number));
  return sound;
}

Result<LogEntry> add_edge(ModelLogs& logs, const ModelName& model, const std::string& id, EdgeRef edge,
                          const CallOptions& options) {
  bool late = false;  // then it is an edge from a version that is gone, which nobody uses
  auto make = [&](const ModelState& head) { return check_edge_entry(head, edge); };
  return append_on(logs, model, id, edge.from, make, options, late);
}

Result<LogEntry> remove_version(ModelLogs& logs, const ModelName& model, const std::string& id,
                                const VersionName& version, std::optional<std::uint64_t> number,
                                const CallOptions& options) {
  return logs.get(model).append(
      id,
      [&](const ModelState& head) -> Result<Body> {
        const auto* record = head.live(version);
        if (record == nullptr || (number && record->number != *number)) {
          return Status(Code::kNotFound, model.str() + "/" + version.str() + ": no such version");
        }
        return Body(RemoveEntry{record->number, version});
      },
      options);
}

Result<LogEntry> hold(ModelLogs& logs, const NodeRef& target, const ModelName& child, const std::string& child_commit,
                      const CallOptions& options) {
  auto& log = logs.get(target.model);
  return log.append(
      log.new_id(),
      [&](const ModelState& head) -> Result<Body> {
        WFS_TRY(check_base(head, target));
        return Body(HoldEntry{target.number, child, child_commit});
      },
      options);
}

}  // namespace weightfs
