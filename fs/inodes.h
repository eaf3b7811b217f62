// The inodes that the kernel knows, with its lookup counts. A number is given out once and never again; what it stands
// for never changes: a model, a file of one commit, a local file of one draft.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "fs/version_tree.h"
#include "store/base/mutex.h"
#include "store/base/posix.h"
#include "store/draft.h"

namespace weightfs {

enum class NodeKind : std::uint8_t { kRoot, kModel, kLatest, kVersion, kDraft };

struct Node {
  Node(NodeKind node_kind, std::string node_key);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  static std::uint64_t st_ino_of(NodeKind kind, const std::string& key);

  const NodeKind kind;
  const std::string key;       // what it stands for; two nodes of one key are never known at once
  const std::uint64_t st_ino;  // as stat shows it: follows from the key, so it outlives forget and remount
  std::uint64_t id = 0;        // the kernel's number; set once, by Inodes
};
using NodePtr = std::shared_ptr<Node>;

struct RootNode : Node {
  RootNode() : Node(NodeKind::kRoot, "r") {}
};

struct ModelNode : Node {
  explicit ModelNode(ModelName model_name) : Node(NodeKind::kModel, key_of(model_name)), model(std::move(model_name)) {}
  static std::string key_of(const ModelName& model) { return "m/" + model.str(); }
  const ModelName model;
};

// `latest` while it points to one version: when it moves it is another inode, so its target may be cached.
struct LatestNode : Node {
  LatestNode(const ModelName& model, const VersionRecord& version)
      : Node(NodeKind::kLatest, key_of(model, version.number)), target(version.name) {}
  static std::string key_of(const ModelName& model, std::uint64_t number) {
    return "l/" + model.str() + "/" + std::to_string(number);
  }
  const VersionName target;
};

// A file or directory of a version, or (kTop) the version's own directory.
struct VersionNode : Node {
  VersionNode(const ModelName& model, const VersionRecord& record);  // the top; its tree comes when needed
  VersionNode(const VersionNode& top_or_sibling, VersionTreePtr version_tree, std::uint32_t file_index);
  static std::string key_of(const NodeRef& ref, std::uint32_t file);

  const NodeRef ref;
  const VersionName name;
  const WallTime time;
  const std::uint32_t file;

  VersionTreePtr tree() const EXCLUDES(mutex);  // null: not opened yet
  void set_tree(VersionTreePtr opened) EXCLUDES(mutex);
  OpenFilePtr open_file() const EXCLUDES(mutex);  // null: no handle has it open
  void set_open_file(const OpenFilePtr& opened) EXCLUDES(mutex);
  std::string path() const;  // "MODEL/VERSION/a/b", for messages

 private:
  mutable Mutex mutex;
  VersionTreePtr tree_ GUARDED_BY(mutex);
  std::weak_ptr<OpenFile> open_ GUARDED_BY(mutex);
};

// A file or directory of a draft. The descriptor (O_PATH) holds the local inode, so its number is not used again
// while the node lives, whatever is renamed or unlinked.
struct DraftNode : Node {
  DraftNode(DraftPtr of_draft, Fd local_path, DraftInode local_inode);
  ~DraftNode() override;
  static std::string key_of(const DraftPtr& draft, DraftInode inode);

  const DraftPtr draft;
  const Fd path;  // O_PATH
  const DraftInode inode;

  // The last name it was found under, a hint for messages and for telling the kernel. Parent 0: the draft's directory.
  void set_place(const std::shared_ptr<DraftNode>& parent, std::string_view name) EXCLUDES(mutex);
  std::string relative_path() const EXCLUDES(mutex);                    // "" for the draft's directory
  std::string full_path() const;                                        // "MODEL/DRAFT/a/b", for messages
  std::pair<std::uint64_t, std::string> place() const EXCLUDES(mutex);  // id of the parent node and name; 0 at the top

  // Bytes of disk that the draft has been charged for on this file's behalf.
  std::int64_t charged() const EXCLUDES(mutex);
  std::int64_t set_charged(std::int64_t now) EXCLUDES(mutex);  // the difference to before
  void refund_when_gone() EXCLUDES(mutex);  // a name was removed: when it was the last, give the charge back at the end

 private:
  mutable Mutex mutex;
  std::weak_ptr<DraftNode> parent_ GUARDED_BY(mutex);
  std::string name_ GUARDED_BY(mutex);
  std::int64_t charged_ GUARDED_BY(mutex) = 0;
  bool maybe_gone_ GUARDED_BY(mutex) = false;
};
using DraftNodePtr = std::shared_ptr<DraftNode>;
using VersionNodePtr = std::shared_ptr<VersionNode>;

class Inodes {
 public:
  Inodes();
  NodePtr find(std::uint64_t id) const EXCLUDES(mutex_);  // null: not known
  // The node of `candidate`'s key, which is the candidate itself when there was none. Counts one lookup.
  NodePtr look_up(NodePtr candidate) EXCLUDES(mutex_);
  NodePtr known(const std::string& key) const EXCLUDES(mutex_);  // null; counts nothing
  void forget(std::uint64_t id, std::uint64_t lookups) EXCLUDES(mutex_);
  std::size_t size() const EXCLUDES(mutex_);
  // Nodes of drafts hold descriptors: how many there are, and some that nobody looked up for the longest time.
  std::size_t drafts() const EXCLUDES(mutex_);
  std::vector<DraftNodePtr> oldest_drafts(std::size_t count) const EXCLUDES(mutex_);
  void clear() EXCLUDES(mutex_);  // the kernel is gone

 private:
  struct Known {
    NodePtr node;
    std::uint64_t lookups = 0;
  };
  mutable Mutex mutex_;
  std::uint64_t next_ GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Known> by_id_ GUARDED_BY(mutex_);
  std::unordered_map<std::string_view, Node*> by_key_ GUARDED_BY(mutex_);  // keys are the nodes'
  std::map<std::uint64_t, Node*> drafts_ GUARDED_BY(mutex_);               // by id, so by age
};

}  // namespace weightfs
