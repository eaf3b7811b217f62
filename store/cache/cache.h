// The local cache of one bucket: flat files of plain bytes, metadata blobs, drafts' records, pins, quota. One
// directory, 0700, owned by one process at a time. Losing it loses nothing but unpublished drafts. CACHE.md says what
// is kept when, and every file and table.
//
// Any thread may call. No call touches the network. Calls named with "disk" may wait for the local disk, the others
// look at memory. The SQLite index is written by one thread of the cache's own; what is recorded there is a hint
// (presence of blocks) or is flushed before the call returns (drafts, pins).
//
// A disk that is full, read-only or failing never stops the cache: writes answer kNoSpace, kReadOnly or kIo and the
// caller goes on from memory; what is "best effort" is left out with a line in the log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/clock.h"
#include "store/base/digest.h"
#include "store/base/names.h"
#include "store/base/posix.h"
#include "store/base/status.h"

namespace weightfs {

struct CacheOptions {
  std::string dir;          // created 0700 with its parents when missing
  std::uint64_t quota = 0;  // bytes of flat files, drafts and metadata; 0: no limit of ours
};

// A file of a version, wherever: the cache's key.
struct FileId {
  std::string model;         // ModelName's bytes
  std::uint64_t number = 0;  // of the publishing commit
  std::uint32_t file = 0;    // index in the manifest
  friend auto operator<=>(const FileId&, const FileId&) = default;
};

// The plain bytes of one file, as far as they are here: a sparse local file of the file's full size. While a shared_ptr
// of it lives the file is not evicted. It may outlive the Cache, but belongs to be closed before.
class FlatFile {
 public:
  virtual ~FlatFile() = default;
  virtual const FileId& id() const = 0;
  virtual std::uint64_t size() const = 0;
  virtual std::size_t blocks() const = 0;

  enum class Presence : std::uint8_t {
    kAbsent,
    kUnverified,  // recorded by an earlier run, or adopted from a draft: check its digest before use
    kVerified,    // checked since this process started
  };
  virtual Presence presence(std::size_t block) const = 0;
  virtual bool complete() const = 0;  // every block kVerified; stays true while this object lives
  virtual std::uint64_t cached_bytes() const = 0;

  // Disk. Plain reads of the local file; the caller knows which blocks are present. kCorrupt: the file was cut short
  // underneath; kIo: the disk failed.
  virtual Status read(std::uint64_t offset, MutableByteSpan out) const = 0;
  // Disk. Writes a verified block at its place and records it as kVerified. kNoSpace: quota (after eviction) or disk is
  // full; kReadOnly, kIo, kPermission: it cannot be written: go on from memory. Any threads at once, also the same
  // block. Of a block that is kVerified already nothing is written.
  virtual Status write(std::size_t block, std::uint64_t offset, ByteSpan bytes) = 0;
  // The digest was right / wrong. A wrong block becomes kAbsent. A block also becomes kAbsent by itself when the disk
  // refused it after its write had been accepted.
  virtual void verified(std::size_t block, std::uint64_t length) = 0;
  virtual void damaged(std::size_t block, std::uint64_t length) = 0;
  // A read-only descriptor of the local file; valid while this object lives. For splice and passthrough.
  virtual int fd() const = 0;
};
using FlatFilePtr = std::shared_ptr<FlatFile>;

// What is known of a draft on disk. `id` is random and names its folder; paths are the cache's business.
struct DraftRecord {
  std::string id;  // 32 hex digits
  std::string model;
  std::string name;    // the directory's current name, may be temporary
  std::string parent;  // "", "-" (none) or "MODEL/VERSION" chosen by the user
  std::string state;   // the drafts room's own words, opaque here
  std::string reason;
  std::string commit_id;  // of the publish under way, "" before
  std::string extra;      // JSON of the drafts room, opaque here
};

struct CacheUsage {
  std::uint64_t quota = 0;                      // 0: none
  std::uint64_t flat_bytes = 0;                 // of the blocks in flat files
  std::uint64_t draft_bytes = 0;                // sizes of the files of drafts and their spools
  std::uint64_t blob_bytes = 0;                 // metadata in the index
  std::uint64_t disk_total = 0, disk_free = 0;  // of the filesystem
};

class Cache {
 public:
  // Opens or creates, takes the directory's lock. A damaged or older index is set aside and rebuilt from the files that
  // are there. kBusy: another process owns it (message has its pid). kPermission: not ours, or open to others (mode &
  // 077). Disk.
  static Result<std::unique_ptr<Cache>> open(const CacheOptions& options);
  virtual ~Cache() = default;

  // Metadata blobs by SHA-256. get checks the digest: what it returns is right. Disk.
  virtual std::optional<Bytes> get_blob(const Sha256& digest) = 0;
  virtual void put_blob(const Sha256& digest, ByteSpan bytes) = 0;  // best effort
  // Named state (logs, lists of models): last write wins, checked by its reader. Disk.
  virtual std::optional<Bytes> load_state(const std::string& key) = 0;
  virtual void save_state(const std::string& key, ByteSpan bytes) = 0;  // best effort
  virtual std::vector<std::string> state_keys(const std::string& prefix) = 0;

  // The flat file of `id`, made when missing (kNoSpace: nothing can be made). `sizes` gives the blocks' lengths, in
  // order. One object per id: all callers share it. kInvalid: not a model's name, or open with other sizes. kReadOnly,
  // kIo, kPermission: the disk; read from memory. Disk.
  virtual Result<FlatFilePtr> open_file(const FileId& id, std::span<const std::uint32_t> sizes) = 0;
  // Something of it is here. Memory.
  virtual bool has_some(const FileId& id) const = 0;
  // For path choice: versions of `model` with any cached file. Memory.
  virtual std::vector<std::uint64_t> cached_versions(const std::string& model) const = 0;
  virtual std::uint64_t cached_bytes(const std::string& model, std::uint64_t number) const = 0;
  virtual std::uint64_t cached_bytes(const FileId& id) const = 0;
  // Marks use, for LRU; opening and closing do so, too. `newest` marks the version that is to go last of its model:
  // what is cached of it, or else the highest number below it (CACHE.md, "What goes first"). Memory.
  virtual void touch(const FileId& id) = 0;
  virtual void set_newest(const std::string& model, std::uint64_t number) = 0;
  // Frees everything of a version (removed from the bucket). Open files go when closed. Disk.
  virtual void drop_version(const std::string& model, std::uint64_t number) = 0;

  // Durable; lost only with the index. Files of a pinned version are never evicted; drop_version() unpins. Disk.
  virtual Status set_pinned(const std::string& model, std::uint64_t number, bool pinned) = 0;
  virtual bool pinned(const std::string& model, std::uint64_t number) const = 0;

  // Drafts. Records are durable when the call returns. A folder whose record was lost twice over comes back as a draft
  // of the model "recovered" under a hidden name, with empty `state`, `reason` says why. Disk.
  virtual Result<DraftRecord> create_draft(const std::string& model, const std::string& name) = 0;  // makes draft_dir()
  virtual Status update_draft(const DraftRecord& record) = 0;  // kNotFound: no such draft
  virtual std::vector<DraftRecord> drafts() = 0;
  virtual Status delete_draft(const std::string& id) = 0;  // its folder too; what its files are charged is given back
  virtual std::string draft_dir(const std::string& id) const = 0;        // its files; ordinary directory, 0700
  virtual std::string draft_spool_dir(const std::string& id) const = 0;  // packs on their way to the bucket
  // Moves a draft's file (a path below draft_dir) into place as the flat file of `id`, read-only; its blocks become
  // kUnverified, its charge moves along. No writer may have it open. kInvalid: not a regular file of that size.
  // kUnsupported: it has other names (hard links). kBusy: `id` is open. On error the draft is as it was.
  virtual Status adopt(const std::string& draft_file, const FileId& id, std::span<const std::uint32_t> sizes) = 0;
  // The same with a copy of any regular file, which stays where it is. kNoSpace: it does not fit, also after eviction.
  virtual Status adopt_copy(const std::string& file, const FileId& id, std::span<const std::uint32_t> sizes) = 0;
  // The sizes of files below draft_dir() and draft_spool_dir() are about to grow by so many bytes (or have shrunk:
  // negative): evicts to make room in quota and on disk; kNoSpace when that does not do. At open the cache counts what
  // is there itself.
  virtual Status charge_draft(std::int64_t bytes) = 0;

  // Evicts until `free_bytes` more fit quota and disk, as far as possible. Disk.
  virtual void make_room(std::uint64_t free_bytes) = 0;
  virtual CacheUsage usage() const = 0;
  virtual const std::string& dir() const = 0;
};

// Default directory for a bucket: a subfolder (readable name + hash of the URL) of $WEIGHTFS_CACHE,
// $XDG_CACHE_HOME/weightfs,
// ~/.cache/weightfs, or for root /var/cache/weightfs.
std::string default_cache_dir(const std::string& bucket_url);

}  // namespace weightfs
