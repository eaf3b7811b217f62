// What an open file or directory of the kernel's stands for: fuse_file_info::fh points to one.
#pragma once

#include <memory>

#include "fs/fuse.h"
#include "fs/inodes.h"
#include "fs/tree.h"

namespace weightfs {

struct Handle {
  enum class Kind : std::uint8_t { kRead, kDraft, kDirectory };
  explicit Handle(Kind handle_kind) : kind(handle_kind) {}
  virtual ~Handle() = default;
  const Kind kind;

  static Handle& of(const fuse_file_info* info) { return *reinterpret_cast<Handle*>(info->fh); }
  static std::unique_ptr<Handle> take(const fuse_file_info* info) {
    return std::unique_ptr<Handle>(reinterpret_cast<Handle*>(info->fh));
  }
  void give_to(fuse_file_info& info) { info.fh = reinterpret_cast<std::uint64_t>(this); }
};

// A file of a version.
struct ReadHandle : Handle {
  ReadHandle(VersionNodePtr of_node, OpenFilePtr opened, std::int32_t read_mode)
      : Handle(Kind::kRead), node(std::move(of_node)), file(std::move(opened)), mode(read_mode) {}
  const VersionNodePtr node;
  const OpenFilePtr file;
  const std::int32_t mode;  // of Passthrough
};

// A file of a draft.
struct DraftFile : Handle {
  DraftFile(DraftNodePtr of_node, Fd opened, std::uint64_t writer_number)
      : Handle(Kind::kDraft), node(std::move(of_node)), fd(std::move(opened)), writer(writer_number) {}
  const DraftNodePtr node;
  const Fd fd;
  const std::uint64_t writer;  // the draft knows a writable handle by this; 0: it is not writable
};

struct DirectoryHandle : Handle {
  explicit DirectoryHandle(NodePtr of_node) : Handle(Kind::kDirectory), node(std::move(of_node)) {}
  const NodePtr node;
  // The kernel asks for one piece at a time of one handle; a rewind replaces it.
  Mutex mutex;
  std::shared_ptr<const Listing> listing GUARDED_BY(mutex);
  bool begun GUARDED_BY(mutex) = false;  // something was read
};

// A buffer of the calling thread's own, for one answer.
MutableByteSpan thread_buffer(std::size_t size);

}  // namespace weightfs
