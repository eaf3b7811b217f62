#include "fs/draft_files.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/parking.h"

namespace weightfs {
namespace {

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

// Flags that the local open is to see. The kernel has dealt with O_APPEND (offsets), O_DIRECT needs alignment that
// requests do not have, and the rest is about names.
int local_flags(int flags) { return (flags & (O_ACCMODE | O_TRUNC | O_NOATIME)) | O_CLOEXEC; }

// A change of a file's bytes. Room for them is reserved before and settled by what the file really occupies after; and
// the file loses its set-user-id and set-group-id bits, as the kernel leaves to us (kernel_channel.h).
class Growth {
 public:
  Growth(DraftNode& node, int fd) : node_(node), fd_(fd) {}
  Status reserve(std::uint64_t bytes) {
    auto status = node_.draft->charge(static_cast<std::int64_t>(bytes));
    if (status.is_ok()) reserved_ = static_cast<std::int64_t>(bytes);
    return status;
  }
  ~Growth() {
    struct stat st;
    bool known = ::fstat(fd_, &st) == 0;
    std::int64_t grown = known ? node_.set_charged(st.st_blocks * 512) : 0;
    bool runs_as_group = known && (st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
    if (known && ((st.st_mode & S_ISUID) != 0 || runs_as_group)) {
      mode_t dropped = S_ISUID | (runs_as_group ? S_ISGID : 0u);
      (void)!::fchmod(fd_, st.st_mode & 07777 & ~dropped);
    }
    if (grown != reserved_) node_.draft->charge(grown - reserved_).ignore("what is written is written");
  }

 private:
  DraftNode& node_;
  int fd_;
  std::int64_t reserved_ = 0;
};

// Answers with the local call's own error. Where the disk failed the writer, the draft is told: what he wrote may be
// incomplete although he seems to be done. What he asked for wrongly is his to deal with.
void fail_writer(Request& request, const DraftNode& node, Errno error) {
  auto why = from_errno(error.value(), request.op());
  if (why.code() == Code::kNoSpace || why.code() == Code::kIo) {
    spdlog::error("{} {} {}: {}", request.op(), error.name(), node.full_path(), why.message());
    node.draft->writer_failed(node.inode, why);
  }
  request.fail(error);
}

// What is written is uploaded behind the writer; where the file may not be read, at the commit.
void read_behind(const DraftNode& node) {
  Fd readable(::open(proc_path(node.path.get()).c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME));
  if (!readable.valid()) readable = Fd(::open(proc_path(node.path.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (readable.valid()) node.draft->read_behind(node.inode, std::move(readable));
}

}  // namespace

void give_to_caller(const FsOptions& options, int directory, int fd, const Caller& caller) {
  if (!options.may_chown) return;
  struct stat st, dir;
  if (::fstat(fd, &st) != 0 || ::fstat(directory, &dir) != 0) return;
  gid_t gid = (dir.st_mode & S_ISGID) != 0 ? dir.st_gid : caller.gid;
  if (st.st_uid == caller.uid && st.st_gid == gid) return;
  if (::fchownat(fd, "", caller.uid, gid, AT_EMPTY_PATH) != 0) {
    spdlog::warn("chown of a new file to {}:{}: {}", caller.uid, gid, Errno::last().name());
  }
}

void DraftFiles::open(Request request, const DraftNodePtr& node, fuse_file_info info) {
  auto& draft = *node->draft;
  bool writable = writes(info.flags), truncates = (info.flags & O_TRUNC) != 0;
  std::unique_ptr<DraftFile> handle;
  if (writable || truncates) {
    auto tid = request.caller().tid;
    Change change(draft, tid);
    if (!change.allowed()) return request.fail(change.status(), node->full_path());
    Fd fd(::open(proc_path(node->path.get()).c_str(), local_flags(info.flags)));
    if (!fd.valid()) return request.fail(Errno::last());
    if (truncates) Growth settle(*node, fd.get());
    auto writer = writable ? next_writer() : 0;
    if (writable) {
      auto told = draft.writer_opened(writer, node->inode, tid);
      if (!told.is_ok()) return request.fail(told, node->full_path());
      read_behind(*node);
    }
    handle = std::make_unique<DraftFile>(node, std::move(fd), writer);
  } else {
    Fd fd(::open(proc_path(node->path.get()).c_str(), local_flags(info.flags)));
    if (!fd.valid()) return request.fail(Errno::last());
    handle = std::make_unique<DraftFile>(node, std::move(fd), 0);
  }
  handle->give_to(info);
  info.keep_cache = 1;  // nobody but the kernel itself changes the file, so its pages stay right
  info.noflush = writable ? 0 : 1;
  if (request.open(info)) {
    handle.release();
  } else {
    released(*handle);
  }
}

void DraftFiles::create(Request request, const DraftNodePtr& parent, const std::string& name, mode_t mode,
                        fuse_file_info info) {
  auto caller = request.caller();
  auto made = create_local(request, parent, name, mode, info.flags, caller);
  if (!made) return;
  info.keep_cache = 1;
  info.noflush = made->writer != 0 ? 0 : 1;
  made->give_to(info);
  auto node = made->node;
  if (request.create(tree_.entry(node), info)) {
    made.release();
  } else {
    released(*made);
    inodes_.forget(node->id, 1);
  }
}

// Null: the request is answered.
std::unique_ptr<DraftFile> DraftFiles::create_local(Request& request, const DraftNodePtr& parent,
                                                    const std::string& name, mode_t mode, int flags,
                                                    const Caller& caller) {
  auto& draft = *parent->draft;
  Change change(draft, caller.tid);
  if (!change.allowed()) {
    request.fail(change.status(), parent->full_path());
    return nullptr;
  }
  Fd fd(::openat(parent->path.get(), name.c_str(), local_flags(flags) | (flags & O_EXCL) | O_CREAT | O_NOFOLLOW,
                 mode & 07777));
  if (!fd.valid()) {
    fail_writer(request, *parent, Errno::last());
    return nullptr;
  }
  give_to_caller(options_, parent->path.get(), fd.get(), caller);
  auto found = nodes_.of_descriptor(parent, name, fd.get());
  if (auto* error = std::get_if<Errno>(&found)) {
    request.fail(*error);
    return nullptr;
  }
  auto node = std::get<DraftNodePtr>(found);
  auto writer = writes(flags) ? next_writer() : 0;
  if (writer != 0) {
    auto told = draft.writer_opened(writer, node->inode, caller.tid);
    if (!told.is_ok()) {
      inodes_.forget(node->id, 1);
      request.fail(told, node->full_path());
      return nullptr;
    }
    read_behind(*node);
  }
  return std::make_unique<DraftFile>(node, std::move(fd), writer);
}

void DraftFiles::read(Request request, const DraftFile& handle, ByteRange range) {
  auto buffer = thread_buffer(range.length);
  std::size_t done = 0;
  while (done < range.length) {
    ssize_t got =
        ::pread(handle.fd.get(), buffer.data() + done, range.length - done, static_cast<off_t>(range.offset + done));
    if (got < 0) return request.fail(Errno::last());
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  request.bytes(buffer.first(done));
}

void DraftFiles::write(Request request, const DraftFile& handle, std::uint64_t offset, ByteSpan bytes) {
  auto& node = *handle.node;
  std::size_t done = 0;
  std::optional<Errno> error;
  {
    Growth growth(node, handle.fd.get());
    auto room = growth.reserve(bytes.size());
    if (!room.is_ok()) {
      node.draft->writer_failed(node.inode, room);
      return request.fail(room, node.full_path());
    }
    while (done < bytes.size() && !error) {
      ssize_t put =
          ::pwrite(handle.fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (put < 0) {
        error = Errno::last();
      } else {
        done += static_cast<std::size_t>(put);
      }
    }
  }
  if (done == 0 && error) return fail_writer(request, node, *error);
  node.draft->wrote(request.caller().tid, node.inode, {offset, done});
  request.written(done);
}

void DraftFiles::set_attributes(Request request, const DraftNodePtr& node, const struct stat& wanted, int what,
                                const DraftFile* handle) {
  Change change(*node->draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), node->full_path());
  int path = node->path.get();
  auto by_name = proc_path(path);
  if ((what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0) {
    auto uid = (what & FUSE_SET_ATTR_UID) != 0 ? wanted.st_uid : static_cast<uid_t>(-1);
    auto gid = (what & FUSE_SET_ATTR_GID) != 0 ? wanted.st_gid : static_cast<gid_t>(-1);
    if (::fchownat(path, "", uid, gid, AT_EMPTY_PATH) != 0) return request.fail(Errno::last());
  }
  if ((what & FUSE_SET_ATTR_MODE) != 0) {
    if (::fchmodat(AT_FDCWD, by_name.c_str(), wanted.st_mode & 07777, 0) != 0) return request.fail(Errno::last());
  }
  if ((what & FUSE_SET_ATTR_SIZE) != 0) {
    Fd opened;
    int fd = handle != nullptr && handle->writer != 0 ? handle->fd.get() : -1;
    if (fd < 0) {
      opened = Fd(::open(by_name.c_str(), O_WRONLY | O_CLOEXEC));
      if (!opened.valid()) return request.fail(Errno::last());
      fd = opened.get();
    }
    Growth settle(*node, fd);  // a hole costs nothing; what is cut off is given back
    if (::ftruncate(fd, wanted.st_size) != 0) return fail_writer(request, *node, Errno::last());
  }
  if ((what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) != 0) {
    timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
    if ((what & FUSE_SET_ATTR_ATIME_NOW) != 0) {
      times[0].tv_nsec = UTIME_NOW;
    } else if ((what & FUSE_SET_ATTR_ATIME) != 0) {
      times[0] = wanted.st_atim;
    }
    if ((what & FUSE_SET_ATTR_MTIME_NOW) != 0) {
      times[1].tv_nsec = UTIME_NOW;
    } else if ((what & FUSE_SET_ATTR_MTIME) != 0) {
      times[1] = wanted.st_mtim;
    }
    if (::utimensat(path, "", times, AT_EMPTY_PATH) != 0) return request.fail(Errno::last());
  }
  change.end();
  auto attributes = DraftNodes::attributes(*node);
  if (auto* error = std::get_if<Errno>(&attributes)) return request.fail(*error);
  request.attr(std::get<struct stat>(attributes), kDraftFor);
}

void DraftFiles::allocate(Request request, const DraftFile& handle, int mode, ByteRange range) {
  auto& node = *handle.node;
  std::optional<Errno> error;
  {
    Growth growth(node, handle.fd.get());
    auto room = (mode & FALLOC_FL_PUNCH_HOLE) != 0 ? Status() : growth.reserve(range.length);
    if (!room.is_ok()) {
      node.draft->writer_failed(node.inode, room);
      return request.fail(room, node.full_path());
    }
    if (::fallocate(handle.fd.get(), mode, static_cast<off_t>(range.offset), static_cast<off_t>(range.length)) != 0) {
      error = Errno::last();
    }
  }
  if (error) return fail_writer(request, node, *error);
  node.draft->wrote(request.caller().tid, node.inode, range);
  request.ok();
}

void DraftFiles::copy(Request request, const DraftFile& from, off_t from_offset, const DraftFile& to, off_t to_offset,
                      std::size_t length) {
  auto& node = *to.node;
  ssize_t copied = -1;
  std::optional<Errno> error;
  {
    Growth growth(node, to.fd.get());
    auto room = growth.reserve(length);
    if (!room.is_ok()) {
      node.draft->writer_failed(node.inode, room);
      return request.fail(room, node.full_path());
    }
    copied = ::copy_file_range(from.fd.get(), &from_offset, to.fd.get(), &to_offset, length, 0);
    if (copied < 0) error = Errno::last();
  }
  if (error) return request.fail(*error);  // the caller falls back to read and write
  auto start = static_cast<std::uint64_t>(to_offset) - static_cast<std::uint64_t>(copied);  // it was moved on
  node.draft->wrote(request.caller().tid, node.inode, {start, static_cast<std::uint64_t>(copied)});
  request.written(static_cast<std::size_t>(copied));
}

void DraftFiles::lseek(Request request, const DraftFile& handle, off_t offset, int whence) {
  off_t at = ::lseek(handle.fd.get(), offset, whence);
  if (at < 0) return request.fail(Errno::last());
  request.lseek(at);
}

void DraftFiles::flush(Request request, const DraftFile& handle) {
  if (handle.writer == 0) return request.ok();
  auto tid = request.caller().tid;
  bool exiting = is_exiting(tid);
  handle.node->draft->flushed(handle.writer, tid, exiting);
  if (exiting) return request.ok();
  auto node = handle.node;  // with the answer the handle may go
  wait_for<Status>(
      std::move(request), interrupts_, false,
      [&node](auto done) { return node->draft->close_file(node->inode, std::move(done)); },
      [node](Request& answered, const Status& status) {
        if (status.is_ok()) return answered.ok();
        // Who sees that, or dies of the signal that ended it, may not have written all he meant to.
        node->draft->writer_failed(node->inode, status);
        answered.fail(status, node->full_path());
      });
}

void DraftFiles::fsync(Request request, const DraftFile& handle, bool data_only) {
  auto parked = std::make_shared<Request>(std::move(request));
  // RELEASE of the handle comes after this request's answer, so the handle outlives the job.
  bool posted = disk_.post([parked, &handle, data_only] {
    int result = data_only ? ::fdatasync(handle.fd.get()) : ::fsync(handle.fd.get());
    if (result == 0) return parked->ok();
    auto error = Errno::last();
    fail_writer(*parked, *handle.node, error);
  });
  if (!posted) parked->fail(answer::kInterrupted);
}

void DraftFiles::fsync_directory(Request request, const DraftNodePtr& node) {
  auto parked = std::make_shared<Request>(std::move(request));
  bool posted = disk_.post([parked, node] {
    Fd fd(::openat(node->path.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) return parked->fail(Errno::last());
    parked->ok();
  });
  if (!posted) parked->fail(answer::kInterrupted);
}

void DraftFiles::released(const DraftFile& handle) {
  if (handle.writer != 0) handle.node->draft->released(handle.writer);
}

}  // namespace weightfs
