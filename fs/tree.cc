#include "fs/tree.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>

#include "fs/parking.h"

namespace weightfs {
namespace {

constexpr auto kAskUnknown = std::chrono::seconds(30);  // for something we know nothing of
constexpr auto kAskStale = std::chrono::seconds(2);     // where there is an older answer to fall back on

timespec to_timespec(std::int64_t ns) {
  auto seconds = ns / 1'000'000'000, rest = ns % 1'000'000'000;
  if (rest < 0) {
    rest += 1'000'000'000;
    seconds--;
  }
  return {seconds, rest};
}

timespec to_timespec(WallTime time) {
  return to_timespec(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

void set_times(struct stat& st, timespec time) { st.st_atim = st.st_mtim = st.st_ctim = time; }

}  // namespace

mode_t type_of(FileKind kind) {
  switch (kind) {
    case FileKind::kDirectory:
      return S_IFDIR;
    case FileKind::kSymlink:
      return S_IFLNK;
    case FileKind::kFile:
      break;
  }
  return S_IFREG;
}

Tree::Tree(Store& store, const FsOptions& options, Inodes& inodes, Interrupts& interrupts, WorkerPool& pool,
           const Removals& removals)
    : store_(store),
      options_(options),
      inodes_(inodes),
      interrupts_(interrupts),
      removals_(removals),
      draft_nodes_(inodes),
      models_(pool, store.clock(), store.options().poll),
      versions_(pool, store.clock(), Duration(0)),
      started_(store.clock().wall()) {}

// --- lookup

void Tree::lookup(Request request, const NodePtr& parent, const std::string& name) {
  switch (parent->kind) {
    case NodeKind::kRoot:
      return lookup_in_root(std::move(request), name);
    case NodeKind::kModel:
      return lookup_in_model(std::move(request), static_cast<ModelNode&>(*parent).model, name);
    case NodeKind::kVersion:
      return lookup_in_version(std::move(request), std::static_pointer_cast<VersionNode>(parent), name);
    case NodeKind::kDraft: {
      auto node = std::static_pointer_cast<DraftNode>(parent);
      if (auto version = successor(*node)) return lookup_in_version(std::move(request), version, name);
      auto child = draft_nodes_.child(node, name);
      if (auto* error = std::get_if<Errno>(&child)) return request.fail(*error);
      return reply_entry(std::move(request), std::get<DraftNodePtr>(child));
    }
    case NodeKind::kLatest:
      break;
  }
  request.fail(answer::kNotDirectory);
}

void Tree::lookup_in_root(Request request, const std::string& name) {
  if (auto node = known_in_root(name)) return reply_entry(std::move(request), node);
  auto model = ModelName::parse(name);
  if (!model.is_ok()) return request.fail(answer::kNoEntry);
  ask_for(std::move(request), interrupts_, models_, *model, kAskUnknown, ask_model(*model),
          [this, name](Request parked, const Result<ModelStatePtr>& asked) {
            if (auto node = known_in_root(name)) return reply_entry(std::move(parked), node);
            if (asked.is_ok() || asked.code() == Code::kNotFound) return parked.fail(answer::kNoEntry);
            parked.fail(asked.status(), name);
          });
}

void Tree::lookup_in_model(Request request, const ModelName& model, const std::string& name) {
  bool fresh = store_.model_is_fresh(model), is_latest = name == "latest";
  if (fresh || !is_latest) {
    if (auto node = known_in_model(model, name)) {
      if (!fresh) ask_model_in_background(model);
      return reply_entry(std::move(request), node);
    }
  }
  if (fresh || (!is_latest && !VersionName::parse(name).is_ok())) return request.fail(answer::kNoEntry);
  ask_for(std::move(request), interrupts_, models_, model, is_latest ? patience(model) : kAskUnknown, ask_model(model),
          [this, model, name](Request parked, const Result<ModelStatePtr>& asked) {
            if (auto node = known_in_model(model, name)) return reply_entry(std::move(parked), node);
            if (asked.is_ok() || asked.code() == Code::kNotFound) return parked.fail(answer::kNoEntry);
            parked.fail(asked.status(), model.str() + "/" + name);
          });
}

void Tree::lookup_in_version(Request request, const VersionNodePtr& parent, const std::string& name) {
  with_tree(std::move(request), parent, [this, parent, name](Request parked, const VersionTreePtr& tree) {
    auto file = tree->child(parent->file, name);
    if (!file) return parked.no_entry_for(kForever);
    if (removals_.hides(parent->ref, *file)) return parked.fail(answer::kNoEntry);
    reply_entry(std::move(parked), inodes_.look_up(std::make_shared<VersionNode>(*parent, tree, *file)));
  });
}

NodePtr Tree::known_in_root(const std::string& name) {
  auto model = ModelName::parse(name);
  if (!model.is_ok() || !model_exists(*model)) return nullptr;
  return inodes_.look_up(std::make_shared<ModelNode>(*model));
}

NodePtr Tree::known_in_model(const ModelName& model, const std::string& name) {
  auto state = store_.model(model);
  if (name == "latest") {
    const auto* newest = state ? state->latest() : nullptr;
    return newest == nullptr ? nullptr : inodes_.look_up(std::make_shared<LatestNode>(model, *newest));
  }
  auto draft = store_.drafts().find(model, name);
  auto draft_top = [&]() -> NodePtr {
    auto top = draft_nodes_.top(draft);
    return std::holds_alternative<DraftNodePtr>(top) ? std::get<DraftNodePtr>(top) : nullptr;
  };
  if (draft && draft->status().state != DraftState::kCommitted) return draft_top();
  auto version = VersionName::parse(name);
  const auto* record = state && version.is_ok() ? state->live(*version) : nullptr;
  if (record != nullptr) return inodes_.look_up(std::make_shared<VersionNode>(model, *record));
  return draft ? draft_top() : nullptr;  // committed so lately that the log here does not show it yet
}

void Tree::reply_entry(Request request, const NodePtr& node) {
  if (!request.entry(entry(node))) inodes_.forget(node->id, 1);
}

fuse_entry_param Tree::entry(const NodePtr& node) {
  fuse_entry_param entry{};
  auto attributes = this->attributes(*node);
  if (auto* st = std::get_if<struct stat>(&attributes)) entry.attr = *st;
  entry.ino = node->id;
  entry.attr_timeout = attr_timeout(*node);
  switch (node->kind) {
    case NodeKind::kRoot:
    case NodeKind::kLatest:
      entry.entry_timeout = kNotCached;
      break;
    case NodeKind::kModel:
      entry.entry_timeout = kVersionName;
      break;
    case NodeKind::kVersion:
      entry.entry_timeout = static_cast<const VersionNode&>(*node).file == VersionTree::kTop ? kVersionName : kForever;
      break;
    case NodeKind::kDraft:
      entry.entry_timeout = kDraftFor;
      break;
  }
  return entry;
}

// --- asking

Tree::ModelFlights::Ask Tree::ask_model(const ModelName& model) {
  return [this, model](const CallOptions& options) { return store_.refresh_model(model, options); };
}

void Tree::ask_model_in_background(const ModelName& model) {
  models_.join(model, models_.new_waiter(), kAskUnknown, ask_model(model), [model](const Result<ModelStatePtr>& asked) {
    if (!asked.is_ok()) spdlog::debug("refresh {}: {}", model.str(), asked.status().message());
  });
}

Duration Tree::patience(const ModelName& model) const { return store_.model(model) ? kAskStale : kAskUnknown; }

VersionTreePtr Tree::known_tree(const NodeRef& ref) {
  {
    MutexLock lock(mutex_);
    auto found = trees_.find(ref);
    if (found != trees_.end()) {
      if (auto tree = found->second.lock()) return tree;
    }
  }
  auto version = store_.opened(ref);
  if (!version) return nullptr;
  auto tree = std::make_shared<const VersionTree>(version);
  MutexLock lock(mutex_);
  if (trees_.size() > 64) std::erase_if(trees_, [](const auto& item) { return item.second.expired(); });
  auto& kept = trees_[ref];
  if (auto other = kept.lock()) return other;
  kept = tree;
  return tree;
}

void Tree::with_tree(Request request, const VersionNodePtr& node, std::function<void(Request, VersionTreePtr)> then) {
  auto tree = node->tree();
  if (!tree) tree = known_tree(node->ref);
  if (tree) {
    node->set_tree(tree);
    return then(std::move(request), tree);
  }
  auto ask = [this, ref = node->ref](const CallOptions& options) -> Result<VersionTreePtr> {
    auto version = WFS_TRY(store_.open_version(ref, options));
    if (auto known = known_tree(ref)) return known;
    return VersionTreePtr(std::make_shared<const VersionTree>(version));
  };
  ask_for(std::move(request), interrupts_, versions_, node->ref, kAskUnknown, std::move(ask),
          [node, then = std::move(then)](Request parked, const Result<VersionTreePtr>& opened) {
            if (!opened.is_ok()) return parked.fail(opened.status(), node->path());
            node->set_tree(*opened);
            then(std::move(parked), *opened);
          });
}

VersionNodePtr Tree::successor(const DraftNode& node) const {
  if (node.draft->status().state != DraftState::kCommitted) return nullptr;
  auto model = node.draft->model();
  auto state = store_.model(model);
  auto name = VersionName::parse(node.draft->name());
  const auto* record = state && name.is_ok() ? state->live(*name) : nullptr;
  if (record == nullptr) return nullptr;
  auto top = std::make_shared<VersionNode>(model, *record);
  auto path = node.relative_path();
  if (path.empty()) return top;
  auto version = store_.opened(top->ref);
  if (!version) return nullptr;
  auto tree = std::make_shared<const VersionTree>(version);
  auto file = tree->find(path);
  return file ? std::make_shared<VersionNode>(*top, tree, *file) : nullptr;
}

// --- models that are only here

bool Tree::model_exists(const ModelName& model) const {
  auto state = store_.model(model);
  if (state && state->head > 0) return true;
  {
    MutexLock lock(mutex_);
    if (local_models_.contains(model)) return true;
  }
  if (!store_.drafts().list(model).empty()) return true;
  auto models = store_.models();
  return std::find(models.begin(), models.end(), model) != models.end();
}

void Tree::add_local_model(const ModelName& model) {
  MutexLock lock(mutex_);
  local_models_.insert(model);
}

bool Tree::remove_local_model(const ModelName& model) {
  MutexLock lock(mutex_);
  return local_models_.erase(model) != 0;
}

// --- attributes

OrErrno<struct stat> Tree::attributes(const Node& node) const {
  struct stat st{};
  st.st_ino = node.st_ino;
  st.st_uid = options_.uid;
  st.st_gid = options_.gid;
  st.st_blksize = 1 << 20;
  // Where other users may write, a directory of theirs is theirs alone to rename or remove, as in /tmp.
  mode_t shared = options_.read_only ? 0555 : options_.allow_other && options_.may_chown ? 01777 : 0755;
  switch (node.kind) {
    case NodeKind::kRoot:
      st.st_mode = S_IFDIR | shared;
      st.st_nlink = 2;
      set_times(st, to_timespec(started_));
      return st;
    case NodeKind::kModel: {
      st.st_mode = S_IFDIR | shared;
      st.st_nlink = 2;
      auto state = store_.model(static_cast<const ModelNode&>(node).model);
      const auto* newest = state ? state->latest() : nullptr;
      set_times(st, to_timespec(newest != nullptr ? newest->time : started_));
      return st;
    }
    case NodeKind::kLatest:
      st.st_mode = S_IFLNK | 0777;
      st.st_nlink = 1;
      st.st_size = static_cast<off_t>(static_cast<const LatestNode&>(node).target.str().size());
      set_times(st, to_timespec(started_));
      return st;
    case NodeKind::kVersion:
      return version_attributes(static_cast<const VersionNode&>(node));
    case NodeKind::kDraft:
      return DraftNodes::attributes(static_cast<const DraftNode&>(node));
  }
  return answer::kStale;
}

struct stat Tree::version_attributes(const VersionNode& node) const {
  struct stat st{};
  st.st_ino = node.st_ino;
  st.st_uid = options_.uid;
  st.st_gid = options_.gid;
  st.st_blksize = 1 << 20;
  if (node.file == VersionTree::kTop) {
    st.st_mode = S_IFDIR | (options_.allow_remove ? 0755 : 0555);
    st.st_nlink = 2;  // the number of subdirectories is not known before the manifest is
    set_times(st, to_timespec(node.time));
    return st;
  }
  auto tree = node.tree();
  const auto& entry = tree->entry(node.file);
  set_times(st, to_timespec(entry.mtime_ns));
  st.st_nlink = 1;
  st.st_mode = type_of(entry.kind);
  switch (entry.kind) {
    case FileKind::kDirectory:
      st.st_mode |= options_.allow_remove ? 0755 : 0555;
      st.st_nlink = 2 + tree->subdirectories(node.file);
      break;
    case FileKind::kSymlink:
      st.st_mode |= 0777;
      st.st_size = static_cast<off_t>(entry.target.size());
      break;
    case FileKind::kFile:
      // Readable by all who may come here, as the mount says; of the publisher's mode only "executable" is kept.
      st.st_mode |= 0444 | (entry.mode & 0111);
      st.st_size = static_cast<off_t>(entry.size);
      st.st_blocks = static_cast<blkcnt_t>((store_.cached_bytes(node.ref, node.file) + 511) / 512);
      break;
  }
  return st;
}

double Tree::attr_timeout(const Node& node) const {
  switch (node.kind) {
    case NodeKind::kRoot:
    case NodeKind::kModel:
      return kNotCached;
    case NodeKind::kLatest:
      return kForever;
    case NodeKind::kDraft:
      return kDraftFor;
    case NodeKind::kVersion:
      break;
  }
  const auto& version = static_cast<const VersionNode&>(node);
  if (version.file == VersionTree::kTop) return kForever;
  const auto& entry = version.tree()->entry(version.file);
  if (entry.kind != FileKind::kFile) return kForever;
  return store_.cached_bytes(version.ref, version.file) >= entry.size ? kForever : kGrowing;
}

}  // namespace weightfs
