// A directory that is going to be a version: what is in it, and how its files are cut.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/format/layout.h"
#include "store/format/manifest.h"
#include "store/format/safetensors.h"

namespace weightfs {

struct SourceFile {
  FileEntry entry;  // pages are not filled in yet
  std::string local_path;
  std::vector<BlockSpan> cuts;                        // of a file
  std::shared_ptr<const safetensors::Header> header;  // null: plain bytes
};

struct SourceTree {
  std::vector<SourceFile> files;  // as in Manifest: ascending by path, parents first
  std::uint64_t plain_bytes = 0;
  std::uint64_t total_elements = 0;  // of all tensors
};

// Reads names, sizes, modes, times, links and safetensors headers. Symlinks are noted, never followed. Blocking (disk).
// kInvalid: a name that no version may have, or something that is neither file, directory nor link. A file called
// *.safetensors that does not parse is taken as plain bytes.
Result<SourceTree> scan_source(const std::string& dir);

// Reads of the source's files, by index in SourceTree::files. Any thread may call. Keeps a few descriptors open.
class SourceReader {
 public:
  explicit SourceReader(const SourceTree& tree);
  ~SourceReader();
  // kCorrupt: the file has become shorter meanwhile.
  Status read(std::uint32_t file, ByteRange range, MutableByteSpan out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs
