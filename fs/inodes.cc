#include "fs/inodes.h"

#include <sys/stat.h>

#include "fs/fuse.h"
#include "store/base/digest.h"

namespace weightfs {

std::uint64_t Node::st_ino_of(NodeKind kind, const std::string& key) {
  if (kind == NodeKind::kRoot) return FUSE_ROOT_ID;
  auto digest = Xxh128::of(as_bytes(key));
  auto number = load_le<std::uint64_t>(digest.bytes.data());
  return number < 1024 ? number + 1024 : number;
}

Node::Node(NodeKind node_kind, std::string node_key)
    : kind(node_kind), key(std::move(node_key)), st_ino(st_ino_of(kind, key)) {}

std::string VersionNode::key_of(const NodeRef& ref, std::uint32_t file) {
  return "v/" + ref.model.str() + "/" + std::to_string(ref.number) + "/" + std::to_string(file);
}

VersionNode::VersionNode(const ModelName& model, const VersionRecord& record)
    : Node(NodeKind::kVersion, key_of({model, record.number}, VersionTree::kTop)),
      ref{model, record.number},
      name(record.name),
      time(record.time),
      file(VersionTree::kTop) {}

VersionNode::VersionNode(const VersionNode& top_or_sibling, VersionTreePtr version_tree, std::uint32_t file_index)
    : Node(NodeKind::kVersion, key_of(top_or_sibling.ref, file_index)),
      ref(top_or_sibling.ref),
      name(top_or_sibling.name),
      time(top_or_sibling.time),
      file(file_index),
      tree_(std::move(version_tree)) {}

VersionTreePtr VersionNode::tree() const {
  MutexLock lock(mutex);
  return tree_;
}
void VersionNode::set_tree(VersionTreePtr opened) {
  MutexLock lock(mutex);
  tree_ = std::move(opened);
}
OpenFilePtr VersionNode::open_file() const {
  MutexLock lock(mutex);
  return open_.lock();
}
void VersionNode::set_open_file(const OpenFilePtr& opened) {
  MutexLock lock(mutex);
  open_ = opened;
}
std::string VersionNode::path() const {
  auto path = ref.model.str() + "/" + name.str();
  auto opened = tree();
  return file == VersionTree::kTop || !opened ? path : path + "/" + opened->entry(file).path.str();
}

DraftNode::DraftNode(DraftPtr of_draft, Fd local_path, DraftInode local_inode)
    : Node(NodeKind::kDraft, key_of(of_draft, local_inode)),
      draft(std::move(of_draft)),
      path(std::move(local_path)),
      inode(local_inode) {}

DraftNode::~DraftNode() {
  MutexLock lock(mutex);  // nobody is left to hold it; for the analysis
  struct stat st;
  if (!maybe_gone_ || charged_ == 0 || ::fstat(path.get(), &st) != 0 || st.st_nlink != 0) return;
  draft->charge(-charged_).ignore("giving back cannot fail");
}

std::string DraftNode::key_of(const DraftPtr& draft, DraftInode inode) {
  return "d/" + draft->id() + "/" + std::to_string(inode);
}

void DraftNode::set_place(const std::shared_ptr<DraftNode>& parent, std::string_view name) {
  MutexLock lock(mutex);
  parent_ = parent;
  name_ = name;
}

std::pair<std::uint64_t, std::string> DraftNode::place() const {
  MutexLock lock(mutex);
  auto parent = parent_.lock();
  return {parent ? parent->id : 0, name_};
}

std::string DraftNode::relative_path() const {
  std::shared_ptr<DraftNode> parent;
  std::string name;
  {
    MutexLock lock(mutex);
    parent = parent_.lock();
    name = name_;
  }
  if (!parent) return name;
  auto above = parent->relative_path();
  return above.empty() ? name : above + "/" + name;
}

std::string DraftNode::full_path() const {
  auto below = relative_path();
  auto top = draft->model().str() + "/" + draft->name();
  return below.empty() ? top : top + "/" + below;
}

std::int64_t DraftNode::charged() const {
  MutexLock lock(mutex);
  return charged_;
}
std::int64_t DraftNode::set_charged(std::int64_t now) {
  MutexLock lock(mutex);
  auto difference = now - charged_;
  charged_ = now;
  return difference;
}

void DraftNode::refund_when_gone() {
  MutexLock lock(mutex);
  maybe_gone_ = true;
}

Inodes::Inodes() : next_(FUSE_ROOT_ID + 1) {
  auto root = std::make_shared<RootNode>();
  root->id = FUSE_ROOT_ID;
  MutexLock lock(mutex_);
  by_key_.emplace(root->key, root.get());
  by_id_.emplace(root->id, Known{root, 1});
}

NodePtr Inodes::find(std::uint64_t id) const {
  MutexLock lock(mutex_);
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.node;
}

NodePtr Inodes::known(const std::string& key) const {
  MutexLock lock(mutex_);
  auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : by_id_.at(found->second->id).node;
}

NodePtr Inodes::look_up(NodePtr candidate) {
  MutexLock lock(mutex_);  // the parameter outlives it: an unused candidate is destroyed without the lock
  auto found = by_key_.find(candidate->key);
  if (found != by_key_.end()) {
    auto& known = by_id_.at(found->second->id);
    known.lookups++;
    return known.node;
  }
  candidate->id = next_++;
  by_key_.emplace(candidate->key, candidate.get());
  by_id_.emplace(candidate->id, Known{candidate, 1});
  if (candidate->kind == NodeKind::kDraft) drafts_.emplace(candidate->id, candidate.get());
  return candidate;
}

void Inodes::forget(std::uint64_t id, std::uint64_t lookups) {
  NodePtr last;  // destroyed after the lock is gone: it closes files
  MutexLock lock(mutex_);
  auto found = by_id_.find(id);
  if (found == by_id_.end() || id == FUSE_ROOT_ID) return;
  auto& known = found->second;
  known.lookups -= std::min(known.lookups, lookups);
  if (known.lookups != 0) return;
  last = std::move(known.node);
  by_key_.erase(last->key);
  drafts_.erase(id);
  by_id_.erase(found);
}

std::size_t Inodes::size() const {
  MutexLock lock(mutex_);
  return by_id_.size();
}

std::size_t Inodes::drafts() const {
  MutexLock lock(mutex_);
  return drafts_.size();
}

std::vector<DraftNodePtr> Inodes::oldest_drafts(std::size_t count) const {
  MutexLock lock(mutex_);
  std::vector<DraftNodePtr> oldest;
  for (const auto& [id, node] : drafts_) {
    if (oldest.size() == count) break;
    oldest.push_back(std::static_pointer_cast<DraftNode>(by_id_.at(id).node));
  }
  return oldest;
}

void Inodes::clear() {
  std::unordered_map<std::uint64_t, Known> nodes;
  MutexLock lock(mutex_);
  by_key_.clear();
  drafts_.clear();
  nodes.swap(by_id_);
}

}  // namespace weightfs
