#include "store/materialize/file_map.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace weightfs {

std::size_t FileMap::block_at(std::uint64_t offset) const {
  return static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), offset) - starts.begin()) - 1;
}

std::vector<std::uint32_t> FileMap::sizes() const {
  std::vector<std::uint32_t> result;
  result.reserve(blocks.size());
  for (const auto& block : blocks) result.push_back(block.length);
  return result;
}

Result<std::shared_ptr<const FileMap>> FileMap::make(const std::vector<BlockListPtr>& pages, std::uint64_t size) {
  auto map = std::make_shared<FileMap>();
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < pages.size(); i++) {
    if (pages[i]->empty() || (i + 1 < pages.size() && pages[i]->size() != kPageBlocks)) {
      return Status(Code::kCorrupt, "a page of the block list is not full");
    }
    for (const auto& block : *pages[i]) {
      map->starts.push_back(at);
      map->blocks.push_back(block);
      at += block.length;
    }
  }
  map->starts.push_back(at);
  if (at != size) return Status(Code::kCorrupt, "the block list does not add up to the file's size");
  return std::shared_ptr<const FileMap>(std::move(map));
}

FileMapPtr LocalFiles::map_of(const FileEntry& entry) {
  std::vector<BlockListPtr> lists;
  for (const auto& digest : entry.pages) {
    lists.push_back(meta_.known_block_list(digest));
    if (!lists.back()) return nullptr;
  }
  auto map = FileMap::make(lists, entry.size);
  return map.is_ok() ? *map : nullptr;
}

LocalFile LocalFiles::find(const NodeRef& node, std::uint32_t file, const Sha256& manifest_digest) {
  FileId id{node.model.str(), node.number, file};
  LocalFile local;
  {
    MutexLock lock(mutex_);
    auto found = recent_.find(id);
    if (found != recent_.end() && found->second.manifest_digest == manifest_digest) {
      local = {found->second.map, found->second.flat.lock()};
    }
  }
  if (local.flat) return local;
  if (!cache_.has_some(id)) return {};
  if (!local.map) {
    auto manifest = meta_.known_manifest(manifest_digest);
    if (!manifest || file >= manifest->files.size()) return {};
    local.map = map_of(manifest->files[file]);
  }
  if (!local.map) return {};
  auto sizes = local.map->sizes();
  auto flat = cache_.open_file(id, sizes);
  if (!flat.is_ok()) return {};
  local.flat = std::move(flat).value();
  std::map<FileId, Recent> dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  if (recent_.size() >= 4) dropped.swap(recent_);
  recent_.insert_or_assign(id, Recent{manifest_digest, local.map, local.flat});
  return local;
}

bool verify_local(const LocalFile& file, std::size_t block, Bytes& scratch) {
  auto range = file.map->range(block);
  scratch.resize(range.length);
  auto status = file.flat->read(range.offset, scratch);
  if (status.is_ok() && Xxh128::of(scratch) == file.map->blocks[block].digest) {
    file.flat->verified(block, range.length);
    return true;
  }
  const auto& id = file.flat->id();
  spdlog::warn("cache: block {} of file {} of {} commit {} is {}: it will be fetched again", block, id.file, id.model,
               id.number, status.is_ok() ? "damaged" : status.to_string());
  file.flat->damaged(block, range.length);
  return false;
}

}  // namespace weightfs
