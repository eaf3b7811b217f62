// One file of one version as blocks: where each begins, what it is, its digest; and the flat file that has those
// already here.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "store/base/mutex.h"
#include "store/cache/cache.h"
#include "store/materialize/meta.h"

namespace weightfs {

struct FileMap {
  std::vector<ListedBlock> blocks;
  std::vector<std::uint64_t> starts;  // blocks.size() + 1: the last is the file's size

  ByteRange range(std::size_t block) const { return {starts[block], starts[block + 1] - starts[block]}; }
  // REQUIRES: offset < the file's size
  std::size_t block_at(std::uint64_t offset) const;
  std::vector<std::uint32_t> sizes() const;
  // kCorrupt when the lists do not add up to `size` bytes.
  static Result<std::shared_ptr<const FileMap>> make(const std::vector<BlockListPtr>& pages, std::uint64_t size);
};
using FileMapPtr = std::shared_ptr<const FileMap>;

// What is here of one file.
struct LocalFile {
  FileMapPtr map;
  FlatFilePtr flat;
};

// Files of other versions that are here, for use as bases. Looks at memory and local disk only. Any thread may call.
class LocalFiles {
 public:
  LocalFiles(Cache& cache, Meta& meta) : cache_(cache), meta_(meta) {}
  // Null map: nothing of it is here, or its block list is not.
  LocalFile find(const NodeRef& node, std::uint32_t file, const Sha256& manifest_digest) EXCLUDES(mutex_);
  FileMapPtr map_of(const FileEntry& entry);  // null unless every block list is here

 private:
  Cache& cache_;
  Meta& meta_;
  Mutex mutex_;
  // A few, so that a run of blocks does not look them up again and again. The files themselves are not held: what is
  // open is not evicted.
  struct Recent {
    Sha256 manifest_digest;
    FileMapPtr map;
    std::weak_ptr<FlatFile> flat;
  };
  std::map<FileId, Recent> recent_ GUARDED_BY(mutex_);
};

// Checks a block that an earlier run left, at its first use: reads it and compares its digest. True: it is kVerified
// now. `scratch` is the caller's buffer.
bool verify_local(const LocalFile& file, std::size_t block, Bytes& scratch);

}  // namespace weightfs
