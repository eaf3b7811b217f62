#include "fs/removals.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "fs/parking.h"

namespace weightfs {
namespace {
constexpr auto kPatience = std::chrono::seconds(60);
}

bool Removals::hides(const NodeRef& version, std::uint32_t file) const {
  MutexLock lock(mutex_);
  if (hidden_.empty()) return false;
  auto found = hidden_.find(version);
  if (found == hidden_.end()) return false;
  if (clock_.now() - found->second.last > kUndoAfter) {
    hidden_.erase(found);
    return false;
  }
  return found->second.files.contains(file);
}

bool Removals::hides_all(const VersionTree& tree, std::uint32_t directory) const {
  const auto& version = tree.version()->node();
  const auto& names = tree.children(directory);
  return std::all_of(names.begin(), names.end(), [&](std::uint32_t file) { return hides(version, file); });
}

std::optional<std::uint32_t> Removals::visible(const VersionTree& tree, std::uint32_t directory,
                                               const std::string& name) const {
  auto file = tree.child(directory, name);
  return file && !hides(tree.version()->node(), *file) ? file : std::nullopt;
}

void Removals::hide(const NodeRef& version, std::uint32_t file) {
  MutexLock lock(mutex_);
  auto& hidden = hidden_[version];
  hidden.files.insert(file);
  hidden.last = clock_.now();
}

void Removals::undo(const NodeRef& version) {
  MutexLock lock(mutex_);
  hidden_.erase(version);
}

void Removals::unlink(Request request, const VersionTree& tree, std::uint32_t directory, const std::string& name) {
  auto file = visible(tree, directory, name);
  if (!file) return request.fail(answer::kNoEntry);
  if (tree.is_directory(*file)) return request.fail(answer::kIsDirectory);
  hide(tree.version()->node(), *file);
  request.ok();
}

void Removals::rmdir(Request request, const VersionTree& tree, std::uint32_t directory, const std::string& name) {
  auto file = visible(tree, directory, name);
  if (!file) return request.fail(answer::kNoEntry);
  if (!tree.is_directory(*file)) return request.fail(answer::kNotDirectory);
  if (!hides_all(tree, *file)) return request.fail(answer::kNotEmpty);
  hide(tree.version()->node(), *file);
  request.ok();
}

void Removals::remove_version(Request request, const VersionTree& tree) {
  if (!hides_all(tree, VersionTree::kTop)) return request.fail(answer::kNotEmpty);
  const auto& version = *tree.version();
  auto node = version.node();
  VersionRef name{node.model, version.record().name};
  ask_for(
      std::move(request), interrupts_, flights_, node, kPatience,
      [this, name](const CallOptions& options) -> Result<bool> {
        WFS_TRY(remove_(name, options));
        spdlog::info("removed {} by rmdir", name.str());
        return true;
      },
      [this, node, name](Request parked, const Result<bool>& removed) {
        if (!removed.is_ok()) return parked.fail(removed.status(), name.str());
        undo(node);
        parked.ok();
      });
}

}  // namespace weightfs
