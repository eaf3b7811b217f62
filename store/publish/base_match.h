// What a new version's blocks build on: tensors are matched by name, dtype and shape, wherever in which shard they are
// now; other bytes by path and offset.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/format/manifest.h"
#include "store/format/pack.h"
#include "store/publish/source_tree.h"

namespace weightfs {

class BaseMatcher {
 public:
  using ReadBase = std::function<Status(std::uint32_t file, ByteRange range, MutableByteSpan out)>;
  // Reads the headers of the base's safetensors files through `read`. Blocking. `base` outlives this.
  static Result<std::unique_ptr<BaseMatcher>> make(const Manifest& base, const ReadBase& read);

  // The base of one block of a file; empty: none.
  std::vector<BaseSegment> segments(const FileEntry& entry, const safetensors::Header* header,
                                    const BlockSpan& block) const;

 private:
  struct Place {
    std::uint32_t file = 0;
    safetensors::Tensor tensor;  // a view into headers_
  };
  explicit BaseMatcher(const Manifest& base) : base_(base) {}
  std::vector<BaseSegment> bytes_at(const FileEntry& entry, const BlockSpan& block, std::uint64_t header_end) const;
  const Place* find(const safetensors::Tensor& tensor, std::uint32_t same_path) const;

  const Manifest& base_;
  std::vector<std::unique_ptr<safetensors::Header>> headers_;
  std::map<std::string, std::vector<Place>, std::less<>> tensors_;
  std::map<std::uint32_t, std::uint64_t> header_ends_;  // of base files that parse
};

}  // namespace weightfs
