// One file of a version, open for reading: OpenFile of store.h on the materializer.
#pragma once

#include <atomic>
#include <memory>

#include "store/materialize/materializer.h"
#include "store/materialize/readahead.h"
#include "store/store.h"

namespace weightfs {

struct ReadPolicy {
  Duration fault_patience = std::chrono::minutes(10);  // a page fault goes on trying for so long
  Duration fault_pause = std::chrono::seconds(1);      // between its attempts
  std::uint64_t readahead = 64 << 20;                  // 0: none
};

// Whoever knows what is read after a file.
class NextFiles {
 public:
  virtual ~NextFiles() = default;
  // A reader of `file` in order, who has read `trust` bytes so far, is about to come to its end. Returns at once.
  virtual void reader_leaves(const VersionPtr& version, std::uint32_t file, std::uint64_t trust,
                             std::uint64_t window) = 0;
};

class VersionFile final : public OpenFile, public std::enable_shared_from_this<VersionFile> {
 public:
  // `materializer`, `cache`, `clock` and `next` outlive this. `version` keeps the manifest alive.
  VersionFile(Materializer& materializer, Cache& cache, Clock& clock, NextFiles& next, VersionPtr version,
              TargetFilePtr target, ReadPolicy policy);

  const FileEntry& entry() const override { return target_->manifest->files[target_->file]; }
  std::optional<Status> try_read(ByteRange range, MutableByteSpan out) override;
  Ticket read(ByteRange range, bool is_page_fault, std::function<void(Result<Bytes>)> done) override;
  void prefetch(ByteRange range) override;
  bool complete() const override { return target_->flat && target_->flat->complete(); }
  std::uint64_t cached_bytes() const override { return target_->flat ? target_->flat->cached_bytes() : 0; }
  int fd() const override { return target_->flat ? target_->flat->fd() : -1; }

  // A reader who has read `trust` bytes of files before this one will read it next: `window` bytes of it are fetched.
  void expect_reader(std::uint64_t trust, std::uint64_t window);

  // Blocking forms for callers with a thread of their own.
  Status read_now(ByteRange range, MutableByteSpan out, const CallOptions& options);
  const TargetFilePtr& target() const { return target_; }

 private:
  struct Read;
  void ahead(ByteRange range);
  void start(const std::shared_ptr<Read>& read);
  bool here(std::size_t block);
  void learn_tensors();
  std::uint64_t fetch_ahead(ByteRange range);

  Materializer& materializer_;
  Clock& clock_;
  NextFiles& next_;
  const VersionPtr version_;
  const TargetFilePtr target_;
  const ReadPolicy policy_;
  ReadAhead readahead_;
  std::atomic<bool> tensors_looked_for_ = false;
};

}  // namespace weightfs
