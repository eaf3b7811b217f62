// The SQLite index: its schema and every statement. One thread uses an Index (index_thread.h). What a file of it holds
// is hostile until checked: rows that cannot be ours are skipped, lengths bounded, and nothing in it makes a block
// verified.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "store/cache/cache_dir.h"
#include "store/cache/sqlite.h"

namespace weightfs {

// One flat file as it was last recorded. `present` has a bit for each block, lowest first; a hint.
struct FileRow {
  FileKey key;
  std::uint64_t size = 0;
  std::uint64_t blocks = 0;  // 0 with an empty `present`: not known which
  Bytes present;
  std::uint64_t used = 0;  // LRU tick
};

class Index {
 public:
  static constexpr int kSchema = 1;
  static constexpr std::uint64_t kMaxMetadataBytes = 64 << 20;  // of one value

  enum class Kind : std::uint8_t { kBlob = 0, kState = 1 };
  struct Caps {
    std::uint64_t blobs = 0, states = 0;  // bytes
  };

  // Opens or creates, checks that it is sound and has exactly our schema. kCorrupt: set it aside (also for another
  // schema version).
  static Result<Index> open(const std::string& path, Caps caps);
  Status close();

  struct Contents {
    std::vector<FileRow> files;
    std::vector<std::pair<std::string, std::uint64_t>> pins;  // model component, number
    std::map<std::string, Bytes> drafts;                      // id, encoded record
    bool clean = false;                                       // closed in order: its hints are complete
    std::size_t skipped = 0;                                  // rows that cannot be ours
  };
  Result<Contents> load();

  Status set_clean(bool clean);
  // Hints: in one transaction, not flushed.
  Status store_files(const std::vector<FileRow>& changed, const std::vector<FileKey>& gone);
  // Durable when they return.
  Status set_pin(const std::string& model, std::uint64_t number, bool pinned);
  Status store_draft(const std::string& id, ByteSpan record);
  Status remove_draft(const std::string& id);

  // kNotFound when it is not there. Marks its use.
  Result<Bytes> get(Kind kind, ByteSpan key);
  // Replaces; removes the longest unused while the kind is over its cap.
  Status put(Kind kind, ByteSpan key, ByteSpan bytes);
  Status remove(Kind kind, ByteSpan key);
  Result<std::vector<Bytes>> keys(Kind kind, ByteSpan prefix);
  // Writes marks of use collected by get().
  Status flush_uses();
  std::uint64_t metadata_bytes() const { return bytes_[0] + bytes_[1]; }

 private:
  Index(sqlite::Database database, Caps caps) : database_(std::move(database)), caps_(caps) {}
  Status check_schema();
  Status create_schema();
  Status count_metadata();
  Status evict(Kind kind);
  Status durably(const std::function<Status()>& change);
  Result<std::uint64_t> stored_length(Kind kind, ByteSpan key);
  std::uint64_t& bytes_of(Kind kind) { return bytes_[static_cast<int>(kind)]; }
  std::uint64_t cap_of(Kind kind) const { return kind == Kind::kBlob ? caps_.blobs : caps_.states; }

  sqlite::Database database_;
  Caps caps_;
  std::uint64_t bytes_[2] = {0, 0};
  std::int64_t tick_ = 0;
  std::map<std::pair<Kind, Bytes>, std::int64_t> uses_;  // not yet written
};

}  // namespace weightfs
