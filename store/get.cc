#include "store/get.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weightfs {
namespace {

constexpr const char* kPartial = ".weightfs-partial";

// Beside the file while it is incomplete; the same in each run, so that it is found again.
std::string partial_name(const std::string& leaf) {
  auto name = leaf + kPartial;
  return name.size() <= 255 ? name : Sha256::of(as_bytes(leaf)).hex() + kPartial;
}

// Opens the directory of a path of the version below `root`, component by component, following no link.
Result<Fd> open_parent(int root, const FilePath& path) {
  auto dir = WFS_TRY(posix::open_at(root, ".", O_RDONLY | O_DIRECTORY));
  std::string_view rest = path.parent();
  while (!rest.empty()) {
    std::string name(rest.substr(0, rest.find('/')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    dir = WFS_TRY(posix::open_at(dir.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  }
  return dir;
}

Status set_times(int dir, const std::string& name, std::int64_t mtime_ns) {
  auto seconds = mtime_ns / 1'000'000'000, rest = mtime_ns % 1'000'000'000;
  if (rest < 0) seconds--, rest += 1'000'000'000;
  struct timespec times[2] = {{0, UTIME_OMIT}, {seconds, rest}};
  if (::utimensat(dir, name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
    return from_errno(errno, "set the time of " + name);
  return {};
}

class Getter {
 public:
  Getter(Versions& versions, VersionPtr version, Fd root, const Progress& progress, const CallOptions& options)
      : versions_(versions),
        version_(std::move(version)),
        root_(std::move(root)),
        progress_(progress),
        options_(options) {
    for (const auto& file : version_->manifest().files) total_ += file.size;
  }

  Status run() {
    const auto& files = version_->manifest().files;
    for (std::uint32_t i = 0; i < files.size(); i++) {
      WFS_TRY(one(i, files[i]).with(files[i].path.str()));
    }
    // Times and modes of directories last: writing into them changes the one and may need the other.
    for (auto entry = files.rbegin(); entry != files.rend(); ++entry) {
      if (entry->kind != FileKind::kDirectory) continue;
      auto parent = WFS_TRY(open_parent(root_.get(), entry->path));
      std::string leaf(entry->path.leaf());
      auto dir = WFS_TRY(posix::open_at(parent.get(), leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
      WFS_TRY(posix::fsync(dir.get()));
      if (::fchmod(dir.get(), entry->mode & 0777) != 0) return from_errno(errno, "chmod " + entry->path.str());
      WFS_TRY(set_times(parent.get(), leaf, entry->mtime_ns));
    }
    return posix::fsync(root_.get());
  }

 private:
  Status one(std::uint32_t index, const FileEntry& entry) {
    auto parent = WFS_TRY(open_parent(root_.get(), entry.path));
    std::string leaf(entry.path.leaf());
    switch (entry.kind) {
      case FileKind::kDirectory: {
        if (::mkdirat(parent.get(), leaf.c_str(), 0700) != 0 && errno != EEXIST) return from_errno(errno, "mkdir");
        auto dir = WFS_TRY(posix::open_at(parent.get(), leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
        if (::fchmod(dir.get(), 0700) != 0) return from_errno(errno, "chmod");
        return {};
      }
      case FileKind::kSymlink:
        return link(parent.get(), leaf, entry);
      case FileKind::kFile:
        return file(parent.get(), leaf, index, entry);
    }
    return {};
  }

  static Status link(int parent, const std::string& leaf, const FileEntry& entry) {
    std::string there(4096, '\0');
    auto length = ::readlinkat(parent, leaf.c_str(), there.data(), there.size());
    if (length >= 0) {
      there.resize(static_cast<std::size_t>(length));
      if (there == entry.target) return {};
      return {Code::kExists, "a link to somewhere else is in the way"};
    }
    if (::symlinkat(entry.target.c_str(), parent, leaf.c_str()) != 0) return from_errno(errno, "symlink");
    return set_times(parent, leaf, entry.mtime_ns);
  }

  Status file(int parent, const std::string& leaf, std::uint32_t index, const FileEntry& entry) {
    auto opened = WFS_TRY(versions_.open_file(version_, index, options_));
    const auto& map = *opened->target()->map;
    auto there = posix::open_at(parent, leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (there.is_ok()) {
      auto st = WFS_TRY(posix::fstat(there->get()));
      bool same = S_ISREG(st.st_mode) && static_cast<std::uint64_t>(st.st_size) == entry.size;
      for (std::size_t block = 0; same && block < map.blocks.size(); block++) same = is_right(there->get(), map, block);
      if (!same) return {Code::kExists, "another file is in the way: move it, or choose another directory"};
      done(entry.size);
      return {};
    }
    if (there.code() != Code::kNotFound) return std::move(there).status();
    auto partial = partial_name(leaf);
    auto fd = WFS_TRY(posix::open_at(parent, partial, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600));
    auto st = WFS_TRY(posix::fstat(fd.get()));
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1) return {Code::kExists, partial + " is in the way"};
    bool resuming = st.st_size > 0;
    WFS_TRY(posix::truncate(fd.get(), entry.size));
    for (std::size_t block = 0; block < map.blocks.size(); block++) {
      if (options_.cancel && options_.cancel->cancelled())
        return {Code::kInterrupted, "cancelled; run it again to go on"};
      auto range = map.range(block);
      if (!resuming || !is_right(fd.get(), map, block)) {
        buffer_.resize(range.length);
        WFS_TRY(opened->read_now(range, buffer_, options_));
        WFS_TRY(posix::pwrite_exact(fd.get(), range.offset, buffer_));
      }
      done(range.length);
    }
    if (::fchmod(fd.get(), entry.mode & 0777) != 0) return from_errno(errno, "chmod");
    WFS_TRY(set_times(parent, partial, entry.mtime_ns));
    WFS_TRY(posix::fsync(fd.get()));
    if (::renameat2(parent, partial.c_str(), parent, leaf.c_str(), RENAME_NOREPLACE) == 0) return {};
    // NFS and some others lack the flag; the name was free a moment ago.
    if (errno != EINVAL || ::renameat(parent, partial.c_str(), parent, leaf.c_str()) != 0)
      return from_errno(errno, "rename");
    return {};
  }

  bool is_right(int fd, const FileMap& map, std::size_t block) {
    auto range = map.range(block);
    buffer_.resize(range.length);
    return posix::pread_exact(fd, range.offset, buffer_).is_ok() && Xxh128::of(buffer_) == map.blocks[block].digest;
  }

  void done(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  Versions& versions_;
  const VersionPtr version_;
  const Fd root_;
  const Progress& progress_;
  const CallOptions& options_;
  std::uint64_t done_ = 0, total_ = 0;
  Bytes buffer_;
};

}  // namespace

Status get_version(Versions& versions, const VersionPtr& version, const std::string& dest_dir, const Progress& progress,
                   const CallOptions& options) {
  WFS_TRY(posix::make_dirs(dest_dir, 0755));
  auto root = WFS_TRY(posix::open(dest_dir, O_RDONLY | O_DIRECTORY));
  Getter getter(versions, version, std::move(root), progress, options);
  return getter.run().with(dest_dir);
}

}  // namespace weightfs
