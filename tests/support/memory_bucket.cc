#include "tests/support/memory_bucket.h"

#include <algorithm>
#include <set>

#include "store/base/posix.h"

namespace weightfs {

Bytes MemoryObjects::contents(const std::string& key) const {
  MutexLock lock(mutex_);
  return *objects_.at(key).bytes;
}

void MemoryObjects::set_contents(const std::string& key, Bytes bytes) {
  MutexLock lock(mutex_);
  objects_[key] = {std::make_shared<const Bytes>(std::move(bytes)), clock_.wall()};
}

void MemoryObjects::flip_byte(const std::string& key, std::size_t at) {
  auto bytes = contents(key);
  bytes.at(at) ^= std::byte{1};
  MutexLock lock(mutex_);
  objects_.at(key).bytes = std::make_shared<const Bytes>(std::move(bytes));
}

void MemoryObjects::set_modified(const std::string& key, WallTime time) {
  MutexLock lock(mutex_);
  objects_.at(key).modified = time;
}

bool MemoryObjects::has(const std::string& key) const {
  MutexLock lock(mutex_);
  return objects_.contains(key);
}

std::vector<std::string> MemoryObjects::keys() const {
  MutexLock lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [key, object] : objects_) out.push_back(key);
  return out;
}

std::uint64_t MemoryObjects::total_bytes() const {
  MutexLock lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [key, object] : objects_) sum += object.bytes->size();
  return sum;
}

Result<MemoryObjects::Object> MemoryObjects::find(const ObjectKey& key) const {
  MutexLock lock(mutex_);
  auto found = objects_.find(key.str());
  if (found == objects_.end()) return Status(Code::kNotFound, key.str() + ": no such object");
  return found->second;
}

Status MemoryObjects::get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions&) {
  WFS_CHECK(out.size() == range.length && range.length > 0);
  auto object = WFS_TRY(find(key));
  auto size = object.bytes->size();
  if (range.offset > size || size - range.offset < range.length) {
    return {Code::kCorrupt, key.str() + ": the object ends before the range does"};
  }
  std::copy_n(object.bytes->begin() + static_cast<std::ptrdiff_t>(range.offset), range.length, out.begin());
  return {};
}

Result<Bytes> MemoryObjects::get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions&) {
  auto object = WFS_TRY(find(key));
  if (object.bytes->size() > limit) {
    return Status(Code::kInvalid, key.str() + ": longer than " + std::to_string(limit) + " bytes");
  }
  return *object.bytes;
}

Result<ObjectInfo> MemoryObjects::head(const ObjectKey& key, const CallOptions&) {
  auto object = WFS_TRY(find(key));
  return ObjectInfo{object.bytes->size(), object.modified};
}

Status MemoryObjects::put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions&) {
  Object object{std::make_shared<const Bytes>(bytes.begin(), bytes.end()), clock_.wall()};
  MutexLock lock(mutex_);
  auto [place, fresh] = objects_.try_emplace(key.str(), object);
  if (fresh) return {};
  if (if_exists == IfExists::kFail) return {Code::kExists, key.str() + ": the object exists"};
  place->second = std::move(object);
  return {};
}

Status MemoryObjects::put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options,
                               const std::function<void(std::uint64_t)>& progress) {
  Bytes bytes(size);
  WFS_TRY(posix::pread_exact(fd, 0, bytes));
  WFS_TRY(put(key, bytes, IfExists::kOverwrite, options));
  if (progress) progress(size);
  return {};
}

Status MemoryObjects::remove(const ObjectKey& key, const CallOptions&) {
  MutexLock lock(mutex_);
  objects_.erase(key.str());
  return {};
}

Result<std::vector<ListedObject>> MemoryObjects::list(const std::string& prefix, const CallOptions&) {
  MutexLock lock(mutex_);
  std::vector<ListedObject> out;
  for (auto at = objects_.lower_bound(prefix); at != objects_.end() && at->first.starts_with(prefix); ++at) {
    out.push_back({ObjectKey::of(at->first), {at->second.bytes->size(), at->second.modified}});
  }
  return out;
}

Result<std::vector<std::string>> MemoryObjects::list_prefixes(const std::string& prefix, const CallOptions&) {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (auto at = objects_.lower_bound(prefix); at != objects_.end() && at->first.starts_with(prefix); ++at) {
    auto slash = at->first.find('/', prefix.size());
    if (slash != std::string::npos) names.insert(at->first.substr(prefix.size(), slash - prefix.size()));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<WallTime> MemoryObjects::server_time(const CallOptions&) { return clock_.wall(); }

}  // namespace weightfs
