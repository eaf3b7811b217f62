#include "fs/version_tree.h"

#include <algorithm>

namespace weightfs {

VersionTree::VersionTree(VersionPtr version) : version_(std::move(version)) {
  const auto& files = version_->manifest().files;
  parents_.resize(files.size(), kTop);
  children_.resize(files.size() + 1);
  // Entries are sorted by path, so siblings come in the order of their names, and a parent is found by bisection.
  for (std::uint32_t i = 0; i < files.size(); i++) {
    auto parent = files[i].path.parent();
    if (!parent.empty()) {
      auto found = std::lower_bound(files.begin(), files.begin() + i, parent,
                                    [](const FileEntry& e, std::string_view p) { return e.path.str() < p; });
      if (found == files.begin() + i || found->path.str() != parent) continue;  // not reachable: the parser refuses it
      parents_[i] = static_cast<std::uint32_t>(found - files.begin());
    }
    children_[parents_[i] == kTop ? files.size() : parents_[i]].push_back(i);
  }
}

const std::vector<std::uint32_t>& VersionTree::children(std::uint32_t directory) const {
  return children_[directory == kTop ? children_.size() - 1 : directory];
}

std::optional<std::uint32_t> VersionTree::child(std::uint32_t directory, std::string_view name) const {
  const auto& list = children(directory);
  auto found = std::lower_bound(list.begin(), list.end(), name,
                                [this](std::uint32_t i, std::string_view n) { return entry(i).path.leaf() < n; });
  if (found == list.end() || entry(*found).path.leaf() != name) return std::nullopt;
  return *found;
}

std::optional<std::uint32_t> VersionTree::find(std::string_view path) const {
  std::uint32_t at = kTop;
  while (!path.empty()) {
    auto slash = path.find('/');
    auto next = child(at, path.substr(0, slash));
    if (!next) return std::nullopt;
    at = *next;
    path = slash == path.npos ? std::string_view() : path.substr(slash + 1);
  }
  return at;
}

std::uint32_t VersionTree::subdirectories(std::uint32_t directory) const {
  const auto& list = children(directory);
  return static_cast<std::uint32_t>(
      std::count_if(list.begin(), list.end(), [this](std::uint32_t i) { return is_directory(i); }));
}

}  // namespace weightfs
