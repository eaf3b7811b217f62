// Files of drafts: every call goes through to the local file, and the draft is told what its writers do. Errors of the
// local call are answered as they are.
#pragma once

#include <atomic>

#include "fs/draft_nodes.h"
#include "fs/handles.h"
#include "fs/options.h"
#include "fs/request.h"

namespace weightfs {

class DraftFiles {
 public:
  // `disk` takes what may last: fsync of gigabytes must not hold a worker.
  DraftFiles(const FsOptions& options, Inodes& inodes, DraftNodes& nodes, Tree& tree, WorkerPool& disk,
             Interrupts& interrupts)
      : options_(options), inodes_(inodes), nodes_(nodes), tree_(tree), disk_(disk), interrupts_(interrupts) {}

  void open(Request request, const DraftNodePtr& node, fuse_file_info info);
  void create(Request request, const DraftNodePtr& parent, const std::string& name, mode_t mode, fuse_file_info info);
  void read(Request request, const DraftFile& handle, ByteRange range);
  void write(Request request, const DraftFile& handle, std::uint64_t offset, ByteSpan bytes);
  void set_attributes(Request request, const DraftNodePtr& node, const struct stat& wanted, int what,
                      const DraftFile* handle);
  void allocate(Request request, const DraftFile& handle, int mode, ByteRange range);
  void copy(Request request, const DraftFile& from, off_t from_offset, const DraftFile& to, off_t to_offset,
            std::size_t length);
  static void lseek(Request request, const DraftFile& handle, off_t offset, int whence);
  // Waits, off the worker, for the upload of what was written.
  void flush(Request request, const DraftFile& handle);
  void fsync(Request request, const DraftFile& handle, bool data_only);
  void fsync_directory(Request request, const DraftNodePtr& node);
  static void released(const DraftFile& handle);

 private:
  std::unique_ptr<DraftFile> create_local(Request& request, const DraftNodePtr& parent, const std::string& name,
                                          mode_t mode, int flags, const Caller& caller);
  std::uint64_t next_writer() { return writers_.fetch_add(1, std::memory_order_relaxed) + 1; }
  const FsOptions& options_;
  Inodes& inodes_;
  DraftNodes& nodes_;
  Tree& tree_;
  WorkerPool& disk_;
  Interrupts& interrupts_;
  std::atomic<std::uint64_t> writers_ = 0;
};

// What is new in a draft belongs to who made it, where the daemon may say so; a setgid directory passes its group on.
void give_to_caller(const FsOptions& options, int directory, int fd, const Caller& caller);

}  // namespace weightfs
