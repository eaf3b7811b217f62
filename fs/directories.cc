#include "fs/directories.h"

namespace weightfs {

void Directories::open(Request request, const NodePtr& node, const fuse_file_info& info) {
  tree_.list(std::move(request), node, [this, node, opened = info](Request listed, Listing names) mutable {
    auto handle = std::make_unique<DirectoryHandle>(node);
    {
      MutexLock lock(handle->mutex);
      handle->listing = std::make_shared<const Listing>(std::move(names));
    }
    handle->give_to(opened);
    // A version's listing never changes; the others must be asked for each time.
    opened.cache_readdir = opened.keep_cache = node->kind == NodeKind::kVersion && cache_versions_ ? 1 : 0;
    if (listed.open(opened)) handle.release();  // RELEASEDIR takes it
  });
}

void Directories::read(Request request, DirectoryHandle& handle, std::size_t size, std::size_t offset, bool plus) {
  std::shared_ptr<const Listing> listing;
  {
    MutexLock lock(handle.mutex);
    if (offset == 0 && handle.begun) handle.listing = nullptr;
    handle.begun = true;
    listing = handle.listing;
  }
  if (listing) return fill(std::move(request), handle, *listing, size, offset, plus);
  tree_.list(std::move(request), handle.node, [this, &handle, size, offset, plus](Request listed, Listing names) {
    auto fresh = std::make_shared<const Listing>(std::move(names));
    {
      MutexLock lock(handle.mutex);
      handle.listing = fresh;
    }
    fill(std::move(listed), handle, *fresh, size, offset, plus);
  });
}

void Directories::fill(Request request, const DirectoryHandle& handle, const Listing& listing, std::size_t size,
                       std::size_t offset, bool plus) {
  std::vector<char> buffer(size);
  std::size_t used = 0;
  for (auto i = offset; i < listing.size(); i++) {
    const auto& name = listing[i];
    auto* at = buffer.data() + used;
    auto left = size - used;
    if (!plus) {
      struct stat st{};
      st.st_ino = name.st_ino;
      st.st_mode = name.type;
      auto needed = fuse_add_direntry(request.raw(), at, left, name.name.c_str(), &st, static_cast<off_t>(i + 1));
      if (needed > left) break;
      used += needed;
      continue;
    }
    if (fuse_add_direntry_plus(request.raw(), nullptr, 0, name.name.c_str(), nullptr, 0) > left) break;
    fuse_entry_param entry{};
    bool dots = name.name == "." || name.name == "..";
    auto node = dots ? nullptr : tree_.listed(handle.node, name.name);
    if (node) {
      entry = tree_.entry(node);
    } else {
      entry.attr.st_ino = name.st_ino;  // inode 0: the name alone, as of a plain readdir
      entry.attr.st_mode = name.type;
    }
    used += fuse_add_direntry_plus(request.raw(), at, left, name.name.c_str(), &entry, static_cast<off_t>(i + 1));
  }
  request.bytes(as_bytes({buffer.data(), used}));
}

}  // namespace weightfs
