// A version's manifest as directories: who is in which, found by name. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "store/store.h"

namespace weightfs {

class VersionTree {
 public:
  static constexpr std::uint32_t kTop = ~std::uint32_t{0};  // the version's own directory, which is no entry

  explicit VersionTree(VersionPtr version);
  const VersionPtr& version() const { return version_; }
  const FileEntry& entry(std::uint32_t file) const { return version_->manifest().files[file]; }
  bool is_directory(std::uint32_t file) const { return file == kTop || entry(file).kind == FileKind::kDirectory; }
  // Entries of `directory`, ascending by name; none for what is no directory.
  const std::vector<std::uint32_t>& children(std::uint32_t directory) const;
  std::optional<std::uint32_t> child(std::uint32_t directory, std::string_view name) const;
  std::optional<std::uint32_t> find(std::string_view path) const;  // "" is the top
  std::uint32_t subdirectories(std::uint32_t directory) const;
  std::uint32_t parent(std::uint32_t file) const { return parents_[file]; }  // REQUIRES: not kTop

 private:
  VersionPtr version_;
  std::vector<std::uint32_t> parents_;
  std::vector<std::vector<std::uint32_t>> children_;  // by entry; the last is the top's
};
using VersionTreePtr = std::shared_ptr<const VersionTree>;

}  // namespace weightfs
