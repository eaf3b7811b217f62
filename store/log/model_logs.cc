#include "store/log/model_logs.h"

namespace weightfs {

ModelLog& ModelLogs::get(const ModelName& model) {
  MutexLock lock(mutex_);
  auto& log = logs_[model];
  if (!log) log = std::make_unique<ModelLog>(bucket_, model, clock_, store_, options_);
  return *log;
}

bool ModelLogs::is_empty(const ModelName& model) {
  auto state = get(model).state();
  return state->head == 0 && !state->broken;
}

StateResolver ModelLogs::known() {
  return [this](const ModelName& model) { return is_empty(model) ? nullptr : get(model).state(); };
}

Status ModelLogs::refresh_with_bases(const ModelName& model, const CallOptions& options) {
  std::set<ModelName> seen{model};
  std::vector<ModelName> open{model};
  Deadline deadline(clock_, options);
  while (!open.empty()) {
    WFS_TRY(deadline.check());
    auto name = open.back();
    open.pop_back();
    auto state = WFS_TRY(get(name).refresh(deadline.options()));
    if (state->head == 0 && state->broken) return state->broken->with(name.str());  // it is there, but cannot be read
    if (state->head == 0 && name == model) return {Code::kNotFound, model.str() + ": no such model"};
    for (const auto& base : bases_of(*state)) {
      if (seen.insert(base).second) open.push_back(base);
    }
  }
  return {};
}

std::set<ModelName> bases_of(const ModelState& state) {
  std::set<ModelName> out;
  for (const auto& record : state.edges) {
    const auto& from = record.edge.from;
    if (record.collected == 0 && from && from->model != state.model) out.insert(from->model);
  }
  return out;
}

}  // namespace weightfs
