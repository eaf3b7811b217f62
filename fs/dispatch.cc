#include "fs/dispatch.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace weightfs {
namespace {

constexpr std::size_t kNetworkThreads = 16, kDiskThreads = 4;

SessionData& data_of(fuse_req_t req) { return *static_cast<SessionData*>(fuse_req_userdata(req)); }

// Runs one operation. A request that an exception unwinds answers EIO by itself.
template <typename Body>
void handle(fuse_req_t req, const char* op, Body body) {
  auto& data = data_of(req);
  Request request(req, op, data.in_flight);
  try {
    body(*data.dispatch, std::move(request));
  } catch (const std::exception& error) {
    spdlog::error("{}: {}", op, error.what());
  }
}

// The same for an operation on a node that must be known.
template <typename Body>
void on_node(fuse_req_t req, const char* op, fuse_ino_t ino, Body body) {
  handle(req, op, [&](Dispatch& dispatch, Request request) {
    auto node = dispatch.inodes().find(ino);
    if (!node) return request.fail(answer::kStale);
    body(dispatch, std::move(request), node);
  });
}

// on_node for an operation that takes a name: the kernel lets up to 1,024 bytes through (FUSE_NAME_MAX).
template <typename Body>
void on_name(fuse_req_t req, const char* op, fuse_ino_t ino, const char* name, Body body) {
  on_node(req, op, ino, [&](Dispatch& dispatch, Request request, const NodePtr& node) {
    if (std::strlen(name) > kMaxName) return request.fail(answer::kNameTooLong);
    body(dispatch, std::move(request), node);
  });
}

DraftFile* draft_handle(const fuse_file_info* info) {
  if (info == nullptr || info->fh == 0) return nullptr;
  auto& handle = Handle::of(info);
  return handle.kind == Handle::Kind::kDraft ? static_cast<DraftFile*>(&handle) : nullptr;
}

ByteRange range_of(off_t offset, std::uint64_t length) { return {static_cast<std::uint64_t>(offset), length}; }

}  // namespace

Dispatch::Dispatch(Store& store, FsOptions options, SessionData& data, Notifier& notifier, std::string control_socket,
                   std::size_t draft_inodes, Removals::Remove remove)
    : store_(store),
      options_(options),
      network_("fs-ask", kNetworkThreads),
      disk_("fs-sync", kDiskThreads),
      follower_(store, inodes_, notifier, draft_inodes),
      removals_(store.clock(), data.interrupts, network_, std::move(remove)),
      tree_(store, options_, inodes_, data.interrupts, network_, removals_),
      reads_(store, data.interrupts, network_, disk_),
      directories_(tree_, !options_.allow_remove),
      draft_files_(options_, inodes_, tree_.draft_nodes(), tree_, disk_, data.interrupts),
      draft_names_(store, options_, inodes_, tree_.draft_nodes(), tree_, removals_),
      xattrs_(store, tree_, std::move(control_socket)) {}

Dispatch::~Dispatch() { stop_pools(); }

void Dispatch::stop_pools() {
  network_.stop();
  disk_.stop();
}

void Dispatch::choose_capabilities(fuse_conn_info& connection) {
  unsigned wanted = FUSE_CAP_ASYNC_READ          // read-ahead in parallel: each waits for the network by itself
                    | FUSE_CAP_ASYNC_DIO         // the same for O_DIRECT with libaio and io_uring
                    | FUSE_CAP_PARALLEL_DIROPS   // a lookup that asks the bucket holds up no other one
                    | FUSE_CAP_READDIRPLUS       // ls -l is one request
                    | FUSE_CAP_READDIRPLUS_AUTO  // ls is cheap
                    | FUSE_CAP_CACHE_SYMLINKS    // a link is an inode of its own, `latest` one per version it points to
                    | FUSE_CAP_EXPLICIT_INVAL_DATA;  // nobody changes bytes behind the kernel
  // Not wanted: WRITEBACK_CACHE (writes must come with their writer's thread and be in the draft when write returns),
  // ATOMIC_O_TRUNC (O_RDONLY | O_TRUNC would cut off a running program before the kernel says ETXTBSY),
  // AUTO_INVAL_DATA (would drop the pages at each change of mtime, also our own writer's), SPLICE_* (off anyway where
  // the pipe cannot hold a request, no gain measured), POSIX_ACL, HANDLE_KILLPRIV (its second version is had
  // by KernelChannel), locks (the kernel keeps flock and POSIX locks of one mount by itself), EXPORT_SUPPORT,
  // IOCTL_DIR.
  connection.want = wanted & connection.capable;
  connection.max_write = kMaxTransfer;
  connection.max_read = kMaxTransfer;
  connection.max_readahead = kMaxTransfer;
  // Each of them may wait for the network, so many are needed to fill it.
  connection.max_background = 128;
  connection.congestion_threshold = 96;
}

void Dispatch::statfs(Request request) {
  constexpr std::uint64_t kBlock = 4096;
  auto usage = store_.cache().usage();
  auto used = usage.flat_bytes + usage.draft_bytes + usage.blob_bytes;
  // Without a quota the disk is the bound; the quota may also be larger than the disk.
  auto total = usage.quota != 0 ? std::min(usage.quota, usage.disk_total) : usage.disk_total;
  auto free = std::min(total - std::min(total, used), usage.disk_free);
  // What is materialized makes room for who writes.
  auto available = std::min(total - std::min(total, usage.draft_bytes), usage.disk_free + usage.flat_bytes);
  struct statvfs st{};
  st.f_bsize = st.f_frsize = kBlock;
  st.f_blocks = total / kBlock;
  st.f_bfree = free / kBlock;
  st.f_bavail = available / kBlock;
  st.f_files = inodes_.size();
  st.f_namemax = kMaxName;
  request.statfs(st);
}

// Only without default_permissions: the mount is of one user, who may read all and change what can be changed.
void Dispatch::access(Request request, const NodePtr& node, int mask) {
  if (node->kind == NodeKind::kDraft) {
    auto& draft = static_cast<DraftNode&>(*node);
    if ((mask & W_OK) != 0 && is_frozen(*draft.draft)) return request.fail(answer::kReadOnly);
    if (::faccessat(AT_FDCWD, proc_path(draft.path.get()).c_str(), mask, AT_EACCESS) != 0) {
      return request.fail(Errno::last());
    }
    return request.ok();
  }
  bool changes = (mask & W_OK) != 0;
  if (changes && (node->kind == NodeKind::kVersion || options_.read_only)) return request.fail(answer::kReadOnly);
  if ((mask & X_OK) != 0) {
    auto attributes = tree_.attributes(*node);
    auto* st = std::get_if<struct stat>(&attributes);
    if (st != nullptr && (st->st_mode & 0111) == 0) return request.fail(answer::kAccess);
  }
  request.ok();
}

// libfuse's callbacks, in the order of fuse_lowlevel_ops.
struct Operations {
  static void init(void* userdata, fuse_conn_info* connection) {
    Dispatch::choose_capabilities(*connection);
    auto* dispatch = static_cast<SessionData*>(userdata)->dispatch;
    if (dispatch->on_init_) dispatch->on_init_();
  }

  static void lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
    on_name(req, "lookup", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.tree_.lookup(std::move(request), node, name);
      d.follower_.bound_draft_inodes();
    });
  }

  static void forget(fuse_req_t req, fuse_ino_t ino, std::uint64_t count) {
    data_of(req).dispatch->inodes().forget(ino, count);
    fuse_reply_none(req);
  }

  static void forget_multi(fuse_req_t req, std::size_t count, fuse_forget_data* forgets) {
    for (std::size_t i = 0; i < count; i++) {
      data_of(req).dispatch->inodes().forget(forgets[i].ino, forgets[i].nlookup);
    }
    fuse_reply_none(req);
  }

  static void getattr(fuse_req_t req, fuse_ino_t ino, fuse_file_info* /*info*/) {
    on_node(req, "getattr", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      auto attributes = d.tree_.attributes(*node);
      if (auto* error = std::get_if<Errno>(&attributes)) return request.fail(*error);
      request.attr(std::get<struct stat>(attributes), d.tree_.attr_timeout(*node));
    });
  }

  static void setattr(fuse_req_t req, fuse_ino_t ino, struct stat* wanted, int what, fuse_file_info* info) {
    on_node(req, "setattr", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      switch (node->kind) {
        case NodeKind::kDraft:
          return d.draft_files_.set_attributes(std::move(request), std::static_pointer_cast<DraftNode>(node), *wanted,
                                               what, draft_handle(info));
        case NodeKind::kRoot:
        case NodeKind::kModel:
          return request.fail(d.options_.read_only ? answer::kReadOnly : answer::kNotPermitted);
        case NodeKind::kLatest:
        case NodeKind::kVersion:
          return request.fail(answer::kReadOnly);
      }
    });
  }

  static void readlink(fuse_req_t req, fuse_ino_t ino) {
    on_node(req, "readlink", ino, [&](Dispatch&, Request request, const NodePtr& node) {
      if (node->kind == NodeKind::kLatest) return request.readlink(static_cast<LatestNode&>(*node).target.str());
      if (node->kind == NodeKind::kDraft) {
        return DraftNames::readlink(std::move(request), static_cast<DraftNode&>(*node));
      }
      if (node->kind == NodeKind::kVersion) {
        auto& version = static_cast<VersionNode&>(*node);
        if (version.file != VersionTree::kTop) return request.readlink(version.tree()->entry(version.file).target);
      }
      request.fail(answer::kInvalid);
    });
  }

  static void mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t /*device*/) {
    on_name(req, "mknod", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.draft_names_.mknod(std::move(request), node, name, mode);
    });
  }

  static void mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
    on_name(req, "mkdir", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.draft_names_.mkdir(std::move(request), node, name, mode);
    });
  }

  static void unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
    on_name(req, "unlink", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.draft_names_.unlink(std::move(request), node, name);
    });
  }

  static void rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
    on_name(req, "rmdir", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.draft_names_.rmdir(std::move(request), node, name);
    });
  }

  static void symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
    on_name(req, "symlink", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.draft_names_.symlink(std::move(request), node, name, target);
    });
  }

  static void rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
                     unsigned flags) {
    on_name(req, "rename", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      auto new_node = d.inodes().find(new_parent);
      if (!new_node) return request.fail(answer::kStale);
      if (std::strlen(new_name) > kMaxName) return request.fail(answer::kNameTooLong);
      d.draft_names_.rename(std::move(request), node, name, new_node, new_name, flags);
    });
  }

  static void link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char* new_name) {
    on_name(req, "link", ino, new_name, [&](Dispatch& d, Request request, const NodePtr& node) {
      auto new_node = d.inodes().find(new_parent);
      if (!new_node) return request.fail(answer::kStale);
      d.draft_names_.link(std::move(request), node, new_node, new_name);
    });
  }

  static void open(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
    on_node(req, "open", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      if (node->kind == NodeKind::kVersion) {
        return d.reads_.open(std::move(request), std::static_pointer_cast<VersionNode>(node), *info);
      }
      if (node->kind == NodeKind::kDraft) {
        return d.draft_files_.open(std::move(request), std::static_pointer_cast<DraftNode>(node), *info);
      }
      request.fail(answer::kIsDirectory);
    });
  }

  static void read(fuse_req_t req, fuse_ino_t /*ino*/, std::size_t size, off_t offset, fuse_file_info* info) {
    handle(req, "read", [&](Dispatch& d, Request request) {
      auto& opened = Handle::of(info);
      if (opened.kind == Handle::Kind::kRead) {
        return d.reads_.read(std::move(request), static_cast<ReadHandle&>(opened), range_of(offset, size));
      }
      d.draft_files_.read(std::move(request), static_cast<DraftFile&>(opened), range_of(offset, size));
    });
  }

  static void write(fuse_req_t req, fuse_ino_t /*ino*/, const char* bytes, std::size_t size, off_t offset,
                    fuse_file_info* info) {
    handle(req, "write", [&](Dispatch& d, Request request) {
      auto* draft = draft_handle(info);
      if (draft == nullptr) return request.fail(answer::kReadOnly);
      d.draft_files_.write(std::move(request), *draft, static_cast<std::uint64_t>(offset), as_bytes({bytes, size}));
    });
  }

  static void flush(fuse_req_t req, fuse_ino_t /*ino*/, fuse_file_info* info) {
    handle(req, "flush", [&](Dispatch& d, Request request) {
      auto* draft = draft_handle(info);
      if (draft == nullptr) return request.ok();
      d.draft_files_.flush(std::move(request), *draft);
    });
  }

  static void release(fuse_req_t req, fuse_ino_t /*ino*/, fuse_file_info* info) {
    handle(req, "release", [&](Dispatch& d, Request request) {
      auto closed = Handle::take(info);
      if (closed->kind == Handle::Kind::kRead) d.reads_.released(static_cast<ReadHandle&>(*closed));
      if (closed->kind == Handle::Kind::kDraft) DraftFiles::released(static_cast<DraftFile&>(*closed));
      request.ok();
    });
  }

  static void fsync(fuse_req_t req, fuse_ino_t /*ino*/, int data_only, fuse_file_info* info) {
    handle(req, "fsync", [&](Dispatch& d, Request request) {
      auto* draft = draft_handle(info);
      if (draft == nullptr) return request.ok();  // a version is in the bucket
      d.draft_files_.fsync(std::move(request), *draft, data_only != 0);
    });
  }

  static void opendir(fuse_req_t req, fuse_ino_t ino, fuse_file_info* info) {
    on_node(req, "opendir", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.directories_.open(std::move(request), node, *info);
    });
  }

  static void read_directory(fuse_req_t req, const char* op, std::size_t size, off_t offset, fuse_file_info* info,
                             bool plus) {
    handle(req, op, [&](Dispatch& d, Request request) {
      auto& directory = static_cast<DirectoryHandle&>(Handle::of(info));
      d.directories_.read(std::move(request), directory, size, static_cast<std::size_t>(offset), plus);
      if (plus) d.follower_.bound_draft_inodes();
    });
  }
  static void readdir(fuse_req_t req, fuse_ino_t /*ino*/, std::size_t size, off_t offset, fuse_file_info* info) {
    read_directory(req, "readdir", size, offset, info, false);
  }
  static void readdirplus(fuse_req_t req, fuse_ino_t /*ino*/, std::size_t size, off_t offset, fuse_file_info* info) {
    read_directory(req, "readdirplus", size, offset, info, true);
  }

  static void releasedir(fuse_req_t req, fuse_ino_t /*ino*/, fuse_file_info* info) {
    handle(req, "releasedir", [&](Dispatch&, Request request) {
      auto closed = Handle::take(info);
      request.ok();
    });
  }

  static void fsyncdir(fuse_req_t req, fuse_ino_t ino, int /*data_only*/, fuse_file_info* /*info*/) {
    on_node(req, "fsyncdir", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      // Names of drafts are durable when mkdir and rename return.
      if (node->kind != NodeKind::kDraft) return request.ok();
      d.draft_files_.fsync_directory(std::move(request), std::static_pointer_cast<DraftNode>(node));
    });
  }

  static void statfs(fuse_req_t req, fuse_ino_t /*ino*/) {
    handle(req, "statfs", [&](Dispatch& d, Request request) { d.statfs(std::move(request)); });
  }

  static void setxattr(fuse_req_t req, fuse_ino_t ino, const char* name, const char* value, std::size_t size,
                       int flags) {
    on_node(req, "setxattr", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.xattrs_.set(std::move(request), node, name, std::string(value, size), flags);
    });
  }

  static void getxattr(fuse_req_t req, fuse_ino_t ino, const char* name, std::size_t size) {
    on_node(req, "getxattr", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.xattrs_.get(std::move(request), node, name, size);
    });
  }

  static void listxattr(fuse_req_t req, fuse_ino_t ino, std::size_t size) {
    on_node(req, "listxattr", ino,
            [&](Dispatch&, Request request, const NodePtr& node) { Xattrs::list(std::move(request), node, size); });
  }

  static void removexattr(fuse_req_t req, fuse_ino_t ino, const char* name) {
    on_node(req, "removexattr", ino, [&](Dispatch& d, Request request, const NodePtr& node) {
      d.xattrs_.remove(std::move(request), node, name);
    });
  }

  static void access(fuse_req_t req, fuse_ino_t ino, int mask) {
    on_node(req, "access", ino,
            [&](Dispatch& d, Request request, const NodePtr& node) { d.access(std::move(request), node, mask); });
  }

  static void create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
    on_name(req, "create", parent, name, [&](Dispatch& d, Request request, const NodePtr& node) {
      if (auto error = d.draft_names_.refusal(node, name, "create")) return request.fail(*error);
      d.draft_files_.create(std::move(request), std::static_pointer_cast<DraftNode>(node), name, mode, *info);
      d.follower_.bound_draft_inodes();
    });
  }

  static void fallocate(fuse_req_t req, fuse_ino_t /*ino*/, int mode, off_t offset, off_t length,
                        fuse_file_info* info) {
    handle(req, "fallocate", [&](Dispatch& d, Request request) {
      auto* draft = draft_handle(info);
      if (draft == nullptr) return request.fail(answer::kReadOnly);
      d.draft_files_.allocate(std::move(request), *draft, mode, range_of(offset, static_cast<std::uint64_t>(length)));
    });
  }

  static void copy_file_range(fuse_req_t req, fuse_ino_t /*from*/, off_t from_offset, fuse_file_info* from,
                              fuse_ino_t /*to*/, off_t to_offset, fuse_file_info* to, std::size_t length,
                              int /*flags*/) {
    handle(req, "copy_file_range", [&](Dispatch& d, Request request) {
      auto *source = draft_handle(from), *target = draft_handle(to);
      // Out of a version: the kernel reads and writes, as it does between two filesystems.
      if (source == nullptr || target == nullptr) return request.fail(answer::kOtherDevice);
      d.draft_files_.copy(std::move(request), *source, from_offset, *target, to_offset, length);
    });
  }

  static void lseek(fuse_req_t req, fuse_ino_t /*ino*/, off_t offset, int whence, fuse_file_info* info) {
    handle(req, "lseek", [&](Dispatch&, Request request) {
      auto& opened = Handle::of(info);
      if (opened.kind == Handle::Kind::kRead) {
        return Reads::lseek(std::move(request), static_cast<ReadHandle&>(opened), offset, whence);
      }
      DraftFiles::lseek(std::move(request), static_cast<DraftFile&>(opened), offset, whence);
    });
  }

  static fuse_lowlevel_ops table() {
    fuse_lowlevel_ops ops{};
    ops.init = init;
    ops.lookup = lookup;
    ops.forget = forget;
    ops.forget_multi = forget_multi;
    ops.getattr = getattr;
    ops.setattr = setattr;
    ops.readlink = readlink;
    ops.mknod = mknod;
    ops.mkdir = mkdir;
    ops.unlink = unlink;
    ops.rmdir = rmdir;
    ops.symlink = symlink;
    ops.rename = rename;
    ops.link = link;
    ops.open = open;
    ops.read = read;
    ops.write = write;
    ops.flush = flush;
    ops.release = release;
    ops.fsync = fsync;
    ops.opendir = opendir;
    ops.readdir = readdir;
    ops.readdirplus = readdirplus;
    ops.releasedir = releasedir;
    ops.fsyncdir = fsyncdir;
    ops.statfs = statfs;
    ops.setxattr = setxattr;
    ops.getxattr = getxattr;
    ops.listxattr = listxattr;
    ops.removexattr = removexattr;
    ops.access = access;
    ops.create = create;
    ops.fallocate = fallocate;
    ops.copy_file_range = copy_file_range;
    ops.lseek = lseek;
    return ops;
  }
};

const fuse_lowlevel_ops& Dispatch::operations() {
  static const fuse_lowlevel_ops ops = Operations::table();
  return ops;
}

}  // namespace weightfs
