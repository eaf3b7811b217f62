// What the directories show: the models in the root, versions, drafts and `latest` in a model, files in a version or
// draft; and what stat says of each. What is known is answered from memory at once; what only the bucket knows is asked
// on the filesystem's pool, and the request waits meanwhile.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fs/draft_nodes.h"
#include "fs/flights.h"
#include "fs/inodes.h"
#include "fs/options.h"
#include "fs/removals.h"
#include "fs/request.h"
#include "fs/version_tree.h"

namespace weightfs {

// One name of a directory, as a listing has it.
struct Dirent {
  std::string name;
  std::uint64_t st_ino = 0;
  mode_t type = 0;  // S_IFDIR, …
};
using Listing = std::vector<Dirent>;

mode_t type_of(FileKind kind);  // S_IFREG, …

class Tree {
 public:
  Tree(Store& store, const FsOptions& options, Inodes& inodes, Interrupts& interrupts, WorkerPool& pool,
       const Removals& removals);

  void lookup(Request request, const NodePtr& parent, const std::string& name);
  // Answers with an entry for a node that was counted for it; takes the count back when the kernel does not take it.
  void reply_entry(Request request, const NodePtr& node);
  fuse_entry_param entry(const NodePtr& node);

  OrErrno<struct stat> attributes(const Node& node) const;
  double attr_timeout(const Node& node) const;

  // The names in a directory, "." and ".." first. `then` gets the request when they are known.
  void list(Request request, const NodePtr& directory, std::function<void(Request, Listing)> then);
  // The node of a listed name, counted, from memory or local disk; null where that does not do.
  NodePtr listed(const NodePtr& directory, const std::string& name);

  // The version's manifest as a tree: at once where it is in memory.
  void with_tree(Request request, const VersionNodePtr& node, std::function<void(Request, VersionTreePtr)> then);
  VersionTreePtr known_tree(const NodeRef& ref) EXCLUDES(mutex_);  // null: not in memory

  // The directory of the version that a committed draft's directory became; null while it is a draft's. Who stands in
  // it (a shell that copied files here and committed) goes on seeing its files.
  VersionNodePtr successor(const DraftNode& node) const;

  // Models that exist only here, until their first version is published.
  bool model_exists(const ModelName& model) const EXCLUDES(mutex_);
  void add_local_model(const ModelName& model) EXCLUDES(mutex_);
  bool remove_local_model(const ModelName& model) EXCLUDES(mutex_);  // false: it is not merely local

  DraftNodes& draft_nodes() { return draft_nodes_; }

 private:
  void lookup_in_root(Request request, const std::string& name);
  void lookup_in_model(Request request, const ModelName& model, const std::string& name);
  void lookup_in_version(Request request, const VersionNodePtr& parent, const std::string& name);
  NodePtr known_in_root(const std::string& name);
  NodePtr known_in_model(const ModelName& model, const std::string& name);
  using ModelFlights = Flights<ModelName, ModelStatePtr>;
  ModelFlights::Ask ask_model(const ModelName& model);
  void ask_model_in_background(const ModelName& model);
  Duration patience(const ModelName& model) const;
  Listing list_root() const;
  Listing list_model(const ModelName& model) const;
  Listing list_version(const VersionNode& node, const VersionTree& tree) const;
  static OrErrno<Listing> list_draft(const DraftNode& node);
  struct stat version_attributes(const VersionNode& node) const;

  Store& store_;
  const FsOptions& options_;
  Inodes& inodes_;
  Interrupts& interrupts_;
  const Removals& removals_;
  DraftNodes draft_nodes_;
  ModelFlights models_;
  Flights<NodeRef, VersionTreePtr> versions_;
  const WallTime started_;
  mutable Mutex mutex_;
  std::set<ModelName> local_models_ GUARDED_BY(mutex_);
  std::map<NodeRef, std::weak_ptr<const VersionTree>> trees_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
