// One version: its files, and the digests of their block lists. Key: MODEL/manifests/<SHA-256 of the object, hex>.
// JSON; FORMAT.md.
#pragma once

#include <string>
#include <vector>

#include "store/base/digest.h"
#include "store/base/names.h"
#include "store/codec/codec.h"

namespace weightfs {

inline constexpr std::uint64_t kMaxManifest = 256 << 20;  // bytes
inline constexpr std::size_t kPageBlocks = 4096;          // blocks a page: at most 4 GiB of plain bytes
inline constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 50;
inline constexpr std::size_t kMaxFiles = 1'000'000;  // entries of a manifest

enum class FileKind : std::uint8_t { kFile, kDirectory, kSymlink };

struct FileEntry {
  FilePath path;
  FileKind kind = FileKind::kFile;
  std::uint32_t mode = 0644;  // permission bits as the publisher had them (07777)
  std::int64_t mtime_ns = 0;  // since 1970
  std::uint64_t size = 0;     // of a file
  std::string target;         // of a symlink; any bytes but NUL, 1..4095
  std::vector<Sha256> pages;  // of a file: digest of block list page i, blocks [i * kPageBlocks, (i + 1) * kPageBlocks)
  friend bool operator==(const FileEntry&, const FileEntry&) = default;
};

struct Manifest {
  ModelName model;
  VersionName version;
  // Ascending by path bytes; every parent directory of an entry is an entry and precedes it (as FilePath order gives
  // "a" < "a/b"). At most kMaxFiles.
  std::vector<FileEntry> files;
  // 32 random hex digits, or "": makes the object another one when the same files are published again after their first
  // manifest was collected.
  std::string id;
  const FileEntry* find(std::string_view path) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// What parse_manifest requires of the values: order, parents, sizes, page counts. A publisher may ask before it writes.
Status check_manifest(const Manifest& manifest);  // kCorrupt

// Canonical: one manifest, one string of bytes.   REQUIRES: check_manifest is OK
Bytes serialize(const Manifest& manifest);
Result<Manifest> parse_manifest(ByteSpan json);  // kCorrupt, or kUnsupported for a later format

// A page of a file's block list: what its blocks are, whatever edge builds them. Bytes are canonical; the manifest has
// their SHA-256.
struct ListedBlock {
  std::uint32_t length = 0;  // plain bytes, 1 .. codec::kMaxBlock
  std::uint8_t type = 0;     // codec::ElementType; an unknown one is kept (a later codec's)
  Xxh128 digest;             // of the plain bytes
  friend bool operator==(const ListedBlock&, const ListedBlock&) = default;
};
using BlockList = std::vector<ListedBlock>;
//   REQUIRES: 1 .. kPageBlocks blocks, lengths within their limits
Bytes serialize_block_list(const BlockList& page);
Result<BlockList> parse_block_list(ByteSpan bytes);  // kCorrupt; consumes all of `bytes`

}  // namespace weightfs
