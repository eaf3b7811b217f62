// Listings: every name of a directory at the moment it is opened (or rewound).
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/parking.h"
#include "fs/tree.h"

namespace weightfs {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

Listing Tree::list_root() const {
  std::set<ModelName> names;
  for (auto& model : store_.models()) names.insert(model);
  for (auto& draft : store_.drafts().list()) names.insert(draft->model());
  {
    MutexLock lock(mutex_);
    names.insert(local_models_.begin(), local_models_.end());
  }
  Listing listing = {{".", FUSE_ROOT_ID, S_IFDIR}, {"..", FUSE_ROOT_ID, S_IFDIR}};
  for (const auto& name : names) {
    listing.push_back({name.str(), Node::st_ino_of(NodeKind::kModel, ModelNode::key_of(name)), S_IFDIR});
  }
  return listing;
}

Listing Tree::list_model(const ModelName& model) const {
  auto version_ino = [&](std::uint64_t number) {
    return Node::st_ino_of(NodeKind::kVersion, VersionNode::key_of({model, number}, VersionTree::kTop));
  };
  Listing listing = {{".", Node::st_ino_of(NodeKind::kModel, ModelNode::key_of(model)), S_IFDIR},
                     {"..", FUSE_ROOT_ID, S_IFDIR}};
  std::set<std::string> drafts;
  for (const auto& draft : store_.drafts().list(model)) {
    struct stat st;
    if (draft->status().state == DraftState::kCommitted || ::lstat(draft->root().c_str(), &st) != 0) continue;
    auto name = draft->name();
    listing.push_back({name, Node::st_ino_of(NodeKind::kDraft, DraftNode::key_of(draft, st.st_ino)), S_IFDIR});
    drafts.insert(std::move(name));
  }
  auto state = store_.model(model);
  if (!state) return listing;
  if (const auto* newest = state->latest()) {
    auto key = LatestNode::key_of(model, newest->number);
    listing.push_back({"latest", Node::st_ino_of(NodeKind::kLatest, key), S_IFLNK});
  }
  for (const auto* version : state->live_versions()) {
    if (drafts.contains(version->name.str())) continue;
    listing.push_back({version->name.str(), version_ino(version->number), S_IFDIR});
  }
  return listing;
}

Listing Tree::list_version(const VersionNode& node, const VersionTree& tree) const {
  auto ino_of = [&](std::uint32_t file) {
    return Node::st_ino_of(NodeKind::kVersion, VersionNode::key_of(node.ref, file));
  };
  bool top = node.file == VersionTree::kTop;
  auto above =
      top ? Node::st_ino_of(NodeKind::kModel, ModelNode::key_of(node.ref.model)) : ino_of(tree.parent(node.file));
  Listing listing = {{".", ino_of(node.file), S_IFDIR}, {"..", above, S_IFDIR}};
  for (auto file : tree.children(node.file)) {
    if (removals_.hides(node.ref, file)) continue;
    const auto& entry = tree.entry(file);
    listing.push_back({std::string(entry.path.leaf()), ino_of(file), type_of(entry.kind)});
  }
  return listing;
}

OrErrno<Listing> Tree::list_draft(const DraftNode& node) {
  int fd = ::openat(node.path.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno::last();
  std::unique_ptr<DIR, CloseDir> dir(::fdopendir(fd));
  if (!dir) {
    auto error = Errno::last();
    ::close(fd);
    return error;
  }
  Listing listing;
  while (true) {
    errno = 0;
    const auto* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    auto ino = Node::st_ino_of(NodeKind::kDraft, DraftNode::key_of(node.draft, entry->d_ino));
    // The parent of the draft's directory is no part of it: any number will do for "..".
    listing.push_back({std::move(name), ino, static_cast<mode_t>(DTTOIF(entry->d_type))});
  }
  if (errno != 0) return Errno::last();
  return listing;
}

void Tree::list(Request request, const NodePtr& directory, std::function<void(Request, Listing)> then) {
  switch (directory->kind) {
    case NodeKind::kRoot:
      return then(std::move(request), list_root());
    case NodeKind::kModel: {
      auto model = static_cast<ModelNode&>(*directory).model;
      if (store_.model_is_fresh(model)) return then(std::move(request), list_model(model));
      return ask_for(std::move(request), interrupts_, models_, model, patience(model), ask_model(model),
                     [this, model, then = std::move(then)](Request parked, const Result<ModelStatePtr>& asked) {
                       bool known = asked.is_ok() || asked.code() == Code::kNotFound || store_.model(model);
                       if (!known && store_.drafts().list(model).empty()) {
                         return parked.fail(asked.status(), model.str());
                       }
                       then(std::move(parked), list_model(model));
                     });
    }
    case NodeKind::kDraft: {
      auto& draft = static_cast<DraftNode&>(*directory);
      if (auto version = successor(draft)) return list(std::move(request), version, std::move(then));
      auto listing = list_draft(draft);
      if (auto* error = std::get_if<Errno>(&listing)) return request.fail(*error);
      return then(std::move(request), std::move(std::get<Listing>(listing)));
    }
    case NodeKind::kVersion: {
      auto node = std::static_pointer_cast<VersionNode>(directory);
      return with_tree(std::move(request), node,
                       [this, node, then = std::move(then)](Request r, const VersionTreePtr& tree) {
                         then(std::move(r), list_version(*node, *tree));
                       });
    }
    case NodeKind::kLatest:
      break;
  }
  request.fail(answer::kNotDirectory);
}

NodePtr Tree::listed(const NodePtr& directory, const std::string& name) {
  switch (directory->kind) {
    case NodeKind::kRoot:
      return known_in_root(name);
    case NodeKind::kModel:
      return known_in_model(static_cast<ModelNode&>(*directory).model, name);
    case NodeKind::kVersion: {
      auto& node = static_cast<VersionNode&>(*directory);
      auto tree = node.tree();
      if (!tree) tree = known_tree(node.ref);
      auto file = tree ? tree->child(node.file, name) : std::nullopt;
      return file ? inodes_.look_up(std::make_shared<VersionNode>(node, tree, *file)) : nullptr;
    }
    case NodeKind::kDraft: {
      auto node = std::static_pointer_cast<DraftNode>(directory);
      if (auto version = successor(*node)) return listed(version, name);
      auto child = draft_nodes_.child(node, name);
      return std::holds_alternative<DraftNodePtr>(child) ? std::get<DraftNodePtr>(child) : nullptr;
    }
    case NodeKind::kLatest:
      break;
  }
  return nullptr;
}

}  // namespace weightfs
