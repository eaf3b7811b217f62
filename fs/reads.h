// Open and read of committed files. What is on the local disk is answered by the worker; for the rest the request waits
// in the store, and no worker with it.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "fs/handles.h"
#include "fs/options.h"
#include "fs/passthrough.h"
#include "fs/request.h"

namespace weightfs {

class Reads {
 public:
  // `disk`: for flushing files.
  Reads(Store& store, Interrupts& interrupts, WorkerPool& pool, WorkerPool& disk)
      : store_(store), interrupts_(interrupts), opens_(pool, store.clock(), Duration(0)), disk_(disk) {}

  void open(Request request, const VersionNodePtr& node, const fuse_file_info& info);
  void read(Request request, ReadHandle& handle, ByteRange range);
  void released(const ReadHandle& handle);
  static void lseek(Request request, const ReadHandle& handle, off_t offset, int whence);

  // The mount's device number, by which /proc/PID/maps knows our files. Once, before the first read matters.
  void set_device(dev_t device) { device_.store(device); }
  Passthrough& passthrough() { return passthrough_; }
  const Passthrough& passthrough() const { return passthrough_; }
  std::uint64_t reads_from_disk() const { return from_disk_.load(); }
  std::uint64_t reads_waited() const { return waited_.load(); }

 private:
  void reply_open(Request request, const VersionNodePtr& node, OpenFilePtr file, fuse_file_info info);
  void park(Request request, ReadHandle& handle, ByteRange range);
  // The descriptor to be passed through, -1: not (yet). The kernel reads by itself then and nobody checks, so only what
  // is on the disk for sure: complete now, and flushed since it was written to.
  int to_pass_through(std::uint64_t inode, const OpenFilePtr& file) EXCLUDES(flushed_mutex_);
  void flush_later(std::uint64_t inode, const OpenFilePtr& file) EXCLUDES(flushed_mutex_);

  Store& store_;
  Interrupts& interrupts_;
  Flights<std::uint64_t, OpenFilePtr> opens_;  // by the node's id
  WorkerPool& disk_;
  Passthrough passthrough_;
  struct Stamp {  // of a local file's content
    std::uint64_t inode = 0;
    std::int64_t seconds = 0, nanoseconds = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  static std::optional<Stamp> stamp_of(int fd);
  Mutex flushed_mutex_;
  std::map<std::uint64_t, Stamp> flushed_ GUARDED_BY(flushed_mutex_);
  std::set<std::uint64_t> flushing_ GUARDED_BY(flushed_mutex_);
  std::atomic<dev_t> device_ = 0;
  std::atomic<std::uint64_t> from_disk_ = 0, waited_ = 0;
};

}  // namespace weightfs
