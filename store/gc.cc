#include "store/gc.h"

#include <algorithm>

#include "store/log/model_logs.h"

namespace weightfs {

Status remove_version(Store& store, const VersionRef& version, const CallOptions& options) {
  WFS_TRY(store.refresh_model(version.model, options));
  const std::string id = random_id();
  LogEntry entry = WFS_TRY(remove_version(store.logs(), version.model, id, version.version, std::nullopt, options));
  if (const auto* removed = std::get_if<RemoveEntry>(&entry.body)) {
    store.cache().drop_version(version.model.str(), removed->target);
  }
  return {};
}

Result<std::vector<ModelGc>> gc_bucket(Store& store, const GcOptions& options) {
  std::vector<ModelName> models = WFS_TRY(store.refresh_models(options.call));
  std::sort(models.begin(), models.end());
  std::vector<ModelGc> done;
  for (const ModelName& model : models) {
    if (options.call.cancel && options.call.cancel->cancelled()) return Status(Code::kInterrupted, "interrupted");
    auto result = gc(store.logs(), model, options);
    // A publisher has sent the first objects of a model that has no version yet. Without a log nothing could stop it
    // from committing them: they stay.
    if (result.code() == Code::kNotFound && store.logs().is_empty(model)) continue;
    done.push_back({model, std::move(result)});
  }
  return done;
}

}  // namespace weightfs
