#include "store/publish/source_tree.h"

#include <algorithm>
#include <limits>
#include <list>
#include <map>

#include "store/base/mutex.h"
#include "store/base/posix.h"

namespace weightfs {
namespace {

// As far as 64 bits of nanoseconds go (1677 to 2262); what is beyond is moved to the end.
std::int64_t to_ns(const timespec& time) {
  constexpr std::int64_t kSecond = 1'000'000'000, kMost = std::numeric_limits<std::int64_t>::max() / kSecond - 1;
  return std::clamp<std::int64_t>(time.tv_sec, -kMost, kMost) * kSecond + time.tv_nsec;
}

Status add_file(SourceFile& file, SourceTree& tree) {
  auto fd = WFS_TRY(posix::open(file.local_path, O_RDONLY | O_NOFOLLOW));
  auto st = WFS_TRY(posix::fstat(fd.get()));
  if (!S_ISREG(st.st_mode)) return {Code::kInvalid, file.local_path + ": changed while it was read"};
  file.entry.size = static_cast<std::uint64_t>(st.st_size);
  if (file.entry.size > kMaxFileSize) return {Code::kInvalid, file.local_path + ": larger than weightfs can store"};
  if (file.entry.path.leaf().ends_with(".safetensors")) {
    auto header = safetensors::read_header(
        [&](std::uint64_t offset, MutableByteSpan out) { return posix::pread_exact(fd.get(), offset, out); },
        file.entry.size);
    if (header.is_ok()) {
      file.header = std::make_shared<const safetensors::Header>(std::move(header).value());
      for (auto tensor : file.header->tensors) {
        tree.total_elements += tensor.bytes.length / codec::width(safetensors::element_type(tensor.dtype));
      }
    } else if (header.code() != Code::kInvalid && header.code() != Code::kCorrupt) {
      return std::move(header).status().with(file.local_path);
    }
  }
  file.cuts = cut_blocks(file.entry.size, file.header.get());
  tree.plain_bytes += file.entry.size;
  return {};
}

Status scan(const std::string& dir, const std::string& prefix, SourceTree& tree) {
  auto names = WFS_TRY(posix::list_dir(dir));
  for (const auto& name : names) {
    auto path = prefix.empty() ? name : prefix + "/" + name;
    auto local = dir + "/" + name;
    auto st = WFS_TRY(posix::lstat(local));
    SourceFile file{FileEntry{WFS_TRY(FilePath::parse(path).with(local))}, local, {}, nullptr};
    file.entry.mode = st.st_mode & 07777;
    file.entry.mtime_ns = to_ns(st.st_mtim);
    if (S_ISDIR(st.st_mode)) {
      file.entry.kind = FileKind::kDirectory;
      tree.files.push_back(std::move(file));
      WFS_TRY(scan(local, path, tree));
      continue;
    }
    if (S_ISLNK(st.st_mode)) {
      file.entry.kind = FileKind::kSymlink;
      file.entry.target = WFS_TRY(posix::read_link(local));
    } else if (S_ISREG(st.st_mode)) {
      WFS_TRY(add_file(file, tree));
    } else {
      return {Code::kInvalid,
              local + ": neither a file, a directory nor a symlink: remove it, a version cannot hold it"};
    }
    tree.files.push_back(std::move(file));
  }
  return {};
}

}  // namespace

Result<SourceTree> scan_source(const std::string& dir) {
  SourceTree tree;
  WFS_TRY(scan(dir, "", tree));
  std::sort(tree.files.begin(), tree.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.entry.path < b.entry.path; });
  return tree;
}

struct SourceReader::Impl {
  const SourceTree& tree;
  Mutex mutex;
  std::map<std::uint32_t, std::shared_ptr<Fd>> open GUARDED_BY(mutex);
  std::list<std::uint32_t> order GUARDED_BY(mutex);
};

SourceReader::SourceReader(const SourceTree& tree) : impl_(new Impl{tree, {}, {}, {}}) {}
SourceReader::~SourceReader() = default;

Status SourceReader::read(std::uint32_t file, ByteRange range, MutableByteSpan out) {
  std::shared_ptr<Fd> fd;
  {
    MutexLock lock(impl_->mutex);
    auto found = impl_->open.find(file);
    if (found != impl_->open.end()) fd = found->second;
  }
  const auto& path = impl_->tree.files[file].local_path;
  if (!fd) {
    fd = std::make_shared<Fd>(WFS_TRY(posix::open(path, O_RDONLY | O_NOFOLLOW)));
    MutexLock lock(impl_->mutex);
    if (impl_->open.try_emplace(file, fd).second) impl_->order.push_back(file);
    if (impl_->order.size() > 8) {
      impl_->open.erase(impl_->order.front());
      impl_->order.pop_front();
    }
  }
  return posix::pread_exact(fd->get(), range.offset, out).with(path);
}

}  // namespace weightfs
