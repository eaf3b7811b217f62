// libfuse's table of operations: who answers what. Exceptions end here.
#pragma once

#include "fs/directories.h"
#include "fs/draft_files.h"
#include "fs/draft_names.h"
#include "fs/notify.h"
#include "fs/options.h"
#include "fs/reads.h"
#include "fs/session_data.h"
#include "fs/tree.h"
#include "fs/xattrs.h"

namespace weightfs {

class Dispatch {
 public:
  Dispatch(Store& store, FsOptions options, SessionData& data, Notifier& notifier, std::string control_socket,
           std::size_t draft_inodes, Removals::Remove remove);
  ~Dispatch();

  static const fuse_lowlevel_ops& operations();
  // Called by the kernel's INIT, before any other request.
  void set_on_init(std::function<void()> on_init) { on_init_ = std::move(on_init); }
  // No question waits for the network any more, none begins. Before the session goes.
  void stop_pools();

  Store& store() { return store_; }
  Reads& reads() { return reads_; }
  Inodes& inodes() { return inodes_; }
  Follower& follower() { return follower_; }
  Tree& tree() { return tree_; }

 private:
  friend struct Operations;
  static void choose_capabilities(fuse_conn_info& connection);
  void statfs(Request request);
  void access(Request request, const NodePtr& node, int mask);

  Store& store_;
  const FsOptions options_;
  Inodes inodes_;
  WorkerPool network_;  // questions to the bucket
  WorkerPool disk_;     // fsync
  Follower follower_;
  Removals removals_;
  Tree tree_;
  Reads reads_;
  Directories directories_;
  DraftFiles draft_files_;
  DraftNames draft_names_;
  Xattrs xattrs_;
  std::function<void()> on_init_;
};

}  // namespace weightfs
