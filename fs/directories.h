// Open and read of directories. A handle lists the names as they were when it was opened or rewound.
#pragma once

#include "fs/handles.h"
#include "fs/request.h"
#include "fs/tree.h"

namespace weightfs {

class Directories {
 public:
  // `cache_versions`: the kernel may keep the listings of versions.
  Directories(Tree& tree, bool cache_versions) : tree_(tree), cache_versions_(cache_versions) {}
  void open(Request request, const NodePtr& node, const fuse_file_info& info);
  // `plus`: each name with its attributes, which counts a lookup.
  void read(Request request, DirectoryHandle& handle, std::size_t size, std::size_t offset, bool plus);

 private:
  void fill(Request request, const DirectoryHandle& handle, const Listing& listing, std::size_t size,
            std::size_t offset, bool plus);
  Tree& tree_;
  const bool cache_versions_;
};

}  // namespace weightfs
