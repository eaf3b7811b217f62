// Extended attributes: user.weightfs.* tells about versions and drafts and steers drafts; they are hidden from lists,
// so that copies do not carry them. Other user.* attributes of drafts are the local file's.
#pragma once

#include "fs/draft_nodes.h"
#include "fs/request.h"
#include "fs/tree.h"

namespace weightfs {

class Xattrs {
 public:
  // `control` is the path of the control socket, "" without.
  Xattrs(Store& store, Tree& tree, std::string control) : store_(store), tree_(tree), control_(std::move(control)) {}

  void get(Request request, const NodePtr& node, const std::string& name, std::size_t size);
  static void list(Request request, const NodePtr& node, std::size_t size);
  void set(Request request, const NodePtr& node, const std::string& name, const std::string& value, int flags);
  void remove(Request request, const NodePtr& node, const std::string& name);

 private:
  OrErrno<std::string> ours(const NodePtr& node, std::string_view field);
  OrErrno<std::string> of_draft(const DraftNode& node, std::string_view field);
  OrErrno<std::string> of_version(const VersionNode& node, std::string_view field);
  void set_parent(Request request, const DraftNode& node, const std::string& value);
  void commit(Request request, const NodePtr& node);

  Store& store_;
  Tree& tree_;
  const std::string control_;
};

}  // namespace weightfs
