#include "fs/reads.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/draft_nodes.h"
#include "fs/parking.h"

namespace weightfs {
namespace {

constexpr auto kOpenPatience = std::chrono::seconds(60);

}  // namespace

MutableByteSpan thread_buffer(std::size_t size) {
  thread_local std::unique_ptr<std::byte[]> buffer;
  thread_local std::size_t capacity = 0;
  if (capacity < size) {
    buffer = std::make_unique_for_overwrite<std::byte[]>(size);
    capacity = size;
  }
  return {buffer.get(), size};
}

void Reads::open(Request request, const VersionNodePtr& node, const fuse_file_info& info) {
  if ((info.flags & O_ACCMODE) != O_RDONLY || (info.flags & O_TRUNC) != 0) return request.fail(answer::kReadOnly);
  if (auto file = node->open_file()) return reply_open(std::move(request), node, std::move(file), info);
  auto ask = [this, node](const CallOptions& options) {
    return store_.open_file(node->tree()->version(), node->file, options);
  };
  ask_for(std::move(request), interrupts_, opens_, node->id, kOpenPatience, std::move(ask),
          [this, node, info](Request parked, const Result<OpenFilePtr>& opened) {
            if (!opened.is_ok()) return parked.fail(opened.status(), node->path());
            node->set_open_file(*opened);
            reply_open(std::move(parked), node, *opened, info);
          });
}

void Reads::reply_open(Request request, const VersionNodePtr& node, OpenFilePtr file, fuse_file_info info) {
  auto mode = passthrough_.acquire(node->id, to_pass_through(node->id, file));
  auto handle = std::make_unique<ReadHandle>(node, std::move(file), mode);
  handle->give_to(info);
  info.keep_cache = 1;  // the bytes of an inode never change
  info.noflush = 1;
  bool taken = mode == Passthrough::kCached ? request.open(info) : request.open(Passthrough::answer(info.fh, mode));
  if (taken) {
    handle.release();  // RELEASE takes it
  } else {
    released(*handle);
  }
}

void Reads::released(const ReadHandle& handle) {
  passthrough_.release(handle.node->id, handle.mode);
  if (handle.mode == Passthrough::kCached) to_pass_through(handle.node->id, handle.file);  // the next time
}

std::optional<Reads::Stamp> Reads::stamp_of(int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return std::nullopt;
  return Stamp{st.st_ino, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
}

int Reads::to_pass_through(std::uint64_t inode, const OpenFilePtr& file) {
  // complete() keeps its word also when the disk has refused blocks since; the bytes that are here tell.
  if (!file->complete() || file->cached_bytes() < file->entry().size || passthrough_.state() != "on") return -1;
  auto now = stamp_of(file->fd());
  {
    MutexLock lock(flushed_mutex_);
    auto known = flushed_.find(inode);
    if (now && known != flushed_.end() && known->second == *now) return file->fd();
  }
  if (now) flush_later(inode, file);
  return -1;
}

void Reads::flush_later(std::uint64_t inode, const OpenFilePtr& file) {
  {
    MutexLock lock(flushed_mutex_);
    if (!flushing_.insert(inode).second) return;
  }
  auto done = [this, inode](std::optional<Stamp> stamp) {
    constexpr std::size_t kMost = 65536;
    MutexLock lock(flushed_mutex_);
    flushing_.erase(inode);
    if (flushed_.size() >= kMost) flushed_.clear();
    if (stamp) flushed_.insert_or_assign(inode, *stamp);
  };
  bool posted = disk_.post([file, done] {
    auto stamp = stamp_of(file->fd());
    // By a descriptor of its own: an error of the disk is told once to each, and the cache asks by the other.
    Fd own(::open(proc_path(file->fd()).c_str(), O_RDONLY | O_CLOEXEC));
    bool flushed = stamp && own.valid() && ::fdatasync(own.get()) == 0;
    if (!flushed) {
      auto error = Errno::last();
      auto path = posix::read_link(proc_path(file->fd()));  // in the cache: its folders tell model and version
      spdlog::warn("not passed through: {} cannot be flushed: {}", path.is_ok() ? *path : file->entry().path.str(),
                   error.name());
    }
    done(flushed ? stamp : std::nullopt);
  });
  if (!posted) done(std::nullopt);
}

void Reads::read(Request request, ReadHandle& handle, ByteRange range) {
  auto size = handle.file->entry().size;
  if (range.offset >= size) return request.bytes({});
  range.length = std::min(range.length, size - range.offset);
  auto buffer = thread_buffer(range.length);
  auto tried = handle.file->try_read(range, buffer);
  if (!tried) return park(std::move(request), handle, range);
  from_disk_.fetch_add(1, std::memory_order_relaxed);
  if (!tried->is_ok()) return request.fail(*tried, handle.node->path());
  request.bytes(buffer);
}

void Reads::park(Request request, ReadHandle& handle, ByteRange range) {
  waited_.fetch_add(1, std::memory_order_relaxed);
  auto tid = request.caller().tid;
  bool page_fault = waits_in_page_fault(tid, device_.load(), handle.node->st_ino);
  wait_for<Result<Bytes>>(
      std::move(request), interrupts_, page_fault,
      [&](auto done) { return handle.file->read(range, page_fault, std::move(done)); },
      [node = handle.node](Request& answered, const Result<Bytes>& got) {
        if (got.is_ok()) return answered.bytes(*got);
        answered.fail(got.status(), node->path());
      });
}

void Reads::lseek(Request request, const ReadHandle& handle, off_t offset, int whence) {
  // A version's files have no holes that anyone could rely on: all data, up to the end.
  auto size = static_cast<off_t>(handle.file->entry().size);
  if (offset < 0 || offset >= size) return request.fail(answer::kNoOffset);
  request.lseek(whence == SEEK_HOLE ? size : offset);
}

}  // namespace weightfs
