#include "fs/draft_names.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/draft_files.h"

namespace weightfs {
namespace {

DraftNodePtr as_draft(const NodePtr& node) {
  return node->kind == NodeKind::kDraft ? std::static_pointer_cast<DraftNode>(node) : nullptr;
}

}  // namespace

std::optional<Errno> DraftNames::refusal(const NodePtr& parent, const std::string& name, const char* op) const {
  switch (parent->kind) {
    case NodeKind::kDraft:
      return std::nullopt;
    case NodeKind::kVersion:
      return answer::kReadOnly;
    case NodeKind::kRoot:
      spdlog::warn("{} EPERM {}: the root holds models, which are directories", op, name);
      return answer::kNotPermitted;
    case NodeKind::kModel:
      spdlog::warn("{} EPERM {}/{}: a model holds versions, which are directories: mkdir one and put files there", op,
                   static_cast<const ModelNode&>(*parent).model.str(), name);
      return answer::kNotPermitted;
    case NodeKind::kLatest:
      break;
  }
  return answer::kNotDirectory;
}

// Answers with the entry of a name just made in a draft.
void DraftNames::made(Request request, Change& change, const DraftNodePtr& parent, const std::string& name) {
  auto child = nodes_.child(parent, name);
  if (auto* error = std::get_if<Errno>(&child)) return request.fail(*error);
  auto node = std::get<DraftNodePtr>(child);
  give_to_caller(options_, parent->path.get(), node->path.get(), request.caller());
  change.end();
  tree_.reply_entry(std::move(request), node);
}

void DraftNames::mkdir(Request request, const NodePtr& parent, const std::string& name, mode_t mode) {
  if (parent->kind == NodeKind::kRoot) return make_model(std::move(request), name);
  if (parent->kind == NodeKind::kModel) {
    return make_draft(std::move(request), static_cast<ModelNode&>(*parent).model, name, mode);
  }
  if (auto error = refusal(parent, name, "mkdir")) return request.fail(*error);
  auto node = as_draft(parent);
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  if (::mkdirat(node->path.get(), name.c_str(), mode & 07777) != 0) return request.fail(Errno::last());
  made(std::move(request), change, node, name);
}

void DraftNames::make_model(Request request, const std::string& name) {
  auto model = ModelName::parse(name);
  if (!model.is_ok()) return request.fail(model.status(), name);
  if (options_.read_only) return request.fail(answer::kReadOnly);
  if (tree_.model_exists(*model)) return request.fail(answer::kExists);
  tree_.add_local_model(*model);
  tree_.reply_entry(std::move(request), inodes_.look_up(std::make_shared<ModelNode>(*model)));
}

void DraftNames::make_draft(Request request, const ModelName& model, const std::string& name, mode_t mode) {
  auto caller = request.caller();
  auto made = store_.drafts().create(model, name, caller.tid, mode);
  if (!made.is_ok()) return request.fail(made.status(), model.str() + "/" + name);
  auto top = nodes_.top(*made);
  if (auto* error = std::get_if<Errno>(&top)) return request.fail(*error);
  auto node = std::get<DraftNodePtr>(top);
  give_to_caller(options_, node->path.get(), node->path.get(), caller);
  tree_.reply_entry(std::move(request), node);
}

void DraftNames::mknod(Request request, const NodePtr& parent, const std::string& name, mode_t mode) {
  if (auto error = refusal(parent, name, "mknod")) return request.fail(*error);
  // Devices, pipes and sockets are nothing that a version could hold.
  if (!S_ISREG(mode) && (mode & S_IFMT) != 0) return request.fail(answer::kNotPermitted);
  auto node = as_draft(parent);
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  if (::mknodat(node->path.get(), name.c_str(), S_IFREG | (mode & 07777), 0) != 0) return request.fail(Errno::last());
  made(std::move(request), change, node, name);
}

void DraftNames::symlink(Request request, const NodePtr& parent, const std::string& name, const std::string& target) {
  if (auto error = refusal(parent, name, "symlink")) return request.fail(*error);
  auto node = as_draft(parent);
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  if (::symlinkat(target.c_str(), node->path.get(), name.c_str()) != 0) return request.fail(Errno::last());
  made(std::move(request), change, node, name);
}

void DraftNames::link(Request request, const NodePtr& node, const NodePtr& new_parent, const std::string& new_name) {
  if (auto error = refusal(new_parent, new_name, "link")) return request.fail(*error);
  auto source = as_draft(node), directory = as_draft(new_parent);
  // A version's file is no local file that could have another name; cp -l and ln take EXDEV for "copy".
  if (!source || source->draft != directory->draft) return request.fail(answer::kOtherDevice);
  Change change(*directory->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), directory->full_path());
  if (::linkat(AT_FDCWD, proc_path(source->path.get()).c_str(), directory->path.get(), new_name.c_str(),
               AT_SYMLINK_FOLLOW) != 0) {
    return request.fail(Errno::last());
  }
  made(std::move(request), change, directory, new_name);
}

void DraftNames::readlink(Request request, const DraftNode& node) {
  char target[4096];
  ssize_t length = ::readlinkat(node.path.get(), "", target, sizeof(target));
  if (length < 0) return request.fail(Errno::last());
  request.readlink(std::string(target, static_cast<std::size_t>(length)));
}

void DraftNames::unlink(Request request, const NodePtr& parent, const std::string& name) {
  if (parent->kind == NodeKind::kRoot) return request.fail(answer::kIsDirectory);
  if (parent->kind == NodeKind::kModel) {
    return request.fail(name == "latest" ? answer::kReadOnly : answer::kIsDirectory);
  }
  if (parent->kind == NodeKind::kVersion && options_.allow_remove) {
    auto node = std::static_pointer_cast<VersionNode>(parent);
    return tree_.with_tree(std::move(request), node, [this, node, name](Request r, const VersionTreePtr& tree) {
      removals_.unlink(std::move(r), *tree, node->file, name);
    });
  }
  if (auto error = refusal(parent, name, "unlink")) return request.fail(*error);
  auto node = as_draft(parent);
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  nodes_.watch_last_link(node, name);
  if (::unlinkat(node->path.get(), name.c_str(), 0) != 0) return request.fail(Errno::last());
  change.end();
  request.ok();
}

void DraftNames::rmdir(Request request, const NodePtr& parent, const std::string& name) {
  if (parent->kind == NodeKind::kRoot) return remove_model(std::move(request), name);
  if (parent->kind == NodeKind::kModel) {
    return remove_draft(std::move(request), static_cast<ModelNode&>(*parent).model, name);
  }
  if (parent->kind == NodeKind::kVersion && options_.allow_remove) {
    auto node = std::static_pointer_cast<VersionNode>(parent);
    return tree_.with_tree(std::move(request), node, [this, node, name](Request r, const VersionTreePtr& tree) {
      removals_.rmdir(std::move(r), *tree, node->file, name);
    });
  }
  if (auto error = refusal(parent, name, "rmdir")) return request.fail(*error);
  auto node = as_draft(parent);
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  if (::unlinkat(node->path.get(), name.c_str(), AT_REMOVEDIR) != 0) return request.fail(Errno::last());
  change.end();
  request.ok();
}

void DraftNames::remove_model(Request request, const std::string& name) {
  auto model = ModelName::parse(name);
  if (!model.is_ok() || !tree_.model_exists(*model)) return request.fail(answer::kNoEntry);
  for (const auto& draft : store_.drafts().list(*model)) {
    if (draft->status().state != DraftState::kCommitted) return request.fail(answer::kNotEmpty);
  }
  auto state = store_.model(*model);
  if (state && state->latest() != nullptr) return request.fail(answer::kNotEmpty);
  // Once it is in the bucket its log is kept for ever.
  if ((state && state->head > 0) || !tree_.remove_local_model(*model)) return request.fail(answer::kReadOnly);
  request.ok();
}

void DraftNames::remove_draft(Request request, const ModelName& model, const std::string& name) {
  auto draft = store_.drafts().find(model, name);
  if (!draft || draft->status().state == DraftState::kCommitted) {
    if (options_.allow_remove) return remove_version(std::move(request), model, name);
    return request.fail(answer::kReadOnly);
  }
  auto removed = store_.drafts().remove(draft);
  if (removed.code() == Code::kExists) return request.fail(answer::kNotEmpty);
  if (!removed.is_ok()) return request.fail(removed, model.str() + "/" + name);
  tree_.add_local_model(model);  // an empty model stays until its own rmdir
  request.ok();
}

void DraftNames::remove_version(Request request, const ModelName& model, const std::string& name) {
  auto state = store_.model(model);
  auto version = VersionName::parse(name);
  const auto* record = state && version.is_ok() ? state->live(*version) : nullptr;
  if (record == nullptr) return request.fail(name == "latest" ? answer::kNotDirectory : answer::kNoEntry);
  auto top = std::make_shared<VersionNode>(model, *record);
  tree_.with_tree(std::move(request), top,
                  [this](Request r, const VersionTreePtr& tree) { removals_.remove_version(std::move(r), *tree); });
}

// --- rename

void DraftNames::rename(Request request, const NodePtr& parent, const std::string& name, const NodePtr& new_parent,
                        const std::string& new_name, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0) return request.fail(answer::kInvalid);
  auto from = as_draft(parent), to = as_draft(new_parent);
  if (from && to) return rename_inside(std::move(request), from, name, to, new_name, flags);
  if (parent->kind == NodeKind::kModel && parent == new_parent) {
    return rename_draft(std::move(request), static_cast<ModelNode&>(*parent).model, name, new_name, flags);
  }
  request.fail(refusal_of_rename(parent, name, new_parent));
}

Errno DraftNames::refusal_of_rename(const NodePtr& parent, const std::string& name, const NodePtr& new_parent) const {
  if (parent->kind == NodeKind::kVersion || new_parent->kind == NodeKind::kVersion) return answer::kReadOnly;
  if (parent->kind == NodeKind::kRoot) {
    spdlog::warn("rename EPERM {}: a model keeps its name", name);
    return answer::kNotPermitted;
  }
  if (parent->kind == NodeKind::kModel) {
    auto draft = store_.drafts().find(static_cast<const ModelNode&>(*parent).model, name);
    if (!draft || draft->status().state == DraftState::kCommitted) return answer::kReadOnly;
  }
  return answer::kOtherDevice;  // from one draft or model to another: mv copies
}

void DraftNames::rename_draft(Request request, const ModelName& model, const std::string& name,
                              const std::string& new_name, unsigned flags) {
  auto draft = store_.drafts().find(model, name);
  if (!draft || draft->status().state == DraftState::kCommitted) return request.fail(answer::kReadOnly);
  if ((flags & RENAME_EXCHANGE) != 0) return request.fail(answer::kInvalid);
  auto what = model.str() + "/" + name + " to " + new_name;
  // As rename(2) has it, a directory replaces an empty one.
  auto target = store_.drafts().find(model, new_name);
  if (target && target != draft && flags == 0 && target->status().state != DraftState::kCommitted) {
    auto removed = store_.drafts().remove(target);
    if (removed.code() == Code::kExists) return request.fail(answer::kNotEmpty);
    if (!removed.is_ok()) return request.fail(removed, what);
  }
  auto renamed = store_.drafts().rename(draft, new_name);
  if (!renamed.is_ok()) return request.fail(renamed, what);
  request.ok();
}

void DraftNames::rename_inside(Request request, const DraftNodePtr& parent, const std::string& name,
                               const DraftNodePtr& new_parent, const std::string& new_name, unsigned flags) {
  Change change(*parent->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), parent->full_path());
  if (parent->draft != new_parent->draft) return request.fail(answer::kOtherDevice);
  if ((flags & (RENAME_NOREPLACE | RENAME_EXCHANGE)) == 0) nodes_.watch_last_link(new_parent, new_name);
  if (::renameat2(parent->path.get(), name.c_str(), new_parent->path.get(), new_name.c_str(), flags) != 0) {
    return request.fail(Errno::last());
  }
  nodes_.moved(new_parent, new_name);
  if ((flags & RENAME_EXCHANGE) != 0) nodes_.moved(parent, name);
  change.end();
  request.ok();
}

}  // namespace weightfs
