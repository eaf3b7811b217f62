// Names in drafts and of drafts: what makes, renames and removes them. Every call answers from memory or local disk;
// the kernel holds the directory's lock meanwhile.
#pragma once

#include "fs/draft_nodes.h"
#include "fs/options.h"
#include "fs/request.h"
#include "fs/tree.h"

namespace weightfs {

class DraftNames {
 public:
  DraftNames(Store& store, const FsOptions& options, Inodes& inodes, DraftNodes& nodes, Tree& tree, Removals& removals)
      : store_(store), options_(options), inodes_(inodes), nodes_(nodes), tree_(tree), removals_(removals) {}

  void mkdir(Request request, const NodePtr& parent, const std::string& name, mode_t mode);
  void mknod(Request request, const NodePtr& parent, const std::string& name, mode_t mode);
  void symlink(Request request, const NodePtr& parent, const std::string& name, const std::string& target);
  void link(Request request, const NodePtr& node, const NodePtr& new_parent, const std::string& new_name);
  void unlink(Request request, const NodePtr& parent, const std::string& name);
  void rmdir(Request request, const NodePtr& parent, const std::string& name);
  void rename(Request request, const NodePtr& parent, const std::string& name, const NodePtr& new_parent,
              const std::string& new_name, unsigned flags);
  static void readlink(Request request, const DraftNode& node);

  // The answer to a change below `node` that is no draft's: EROFS in a version, EPERM for a plain file beside models or
  // versions (with a log line, for it is a mistake someone will look for). Null: it is a draft.
  std::optional<Errno> refusal(const NodePtr& parent, const std::string& name, const char* op) const;

 private:
  void make_draft(Request request, const ModelName& model, const std::string& name, mode_t mode);
  void make_model(Request request, const std::string& name);
  void remove_model(Request request, const std::string& name);
  void remove_draft(Request request, const ModelName& model, const std::string& name);
  void remove_version(Request request, const ModelName& model, const std::string& name);
  void rename_draft(Request request, const ModelName& model, const std::string& name, const std::string& new_name,
                    unsigned flags);
  void rename_inside(Request request, const DraftNodePtr& parent, const std::string& name,
                     const DraftNodePtr& new_parent, const std::string& new_name, unsigned flags);
  Errno refusal_of_rename(const NodePtr& parent, const std::string& name, const NodePtr& new_parent) const;
  void made(Request request, Change& change, const DraftNodePtr& parent, const std::string& name);

  Store& store_;
  const FsOptions& options_;
  Inodes& inodes_;
  DraftNodes& nodes_;
  Tree& tree_;
  Removals& removals_;
};

}  // namespace weightfs
