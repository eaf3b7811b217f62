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

class VersionFile final : public OpenFile, public std::enable_shared_from_this<VersionFile> {
 public:
  // `materializer`, `cache` and `clock` outlive this. `version` keeps the manifest alive.
  VersionFile(Materializer& materializer, Cache& cache, Clock& clock, VersionPtr version, TargetFilePtr target,
              ReadPolicy policy);

  const FileEntry& entry() const override { return target_->manifest->files[target_->file]; }
  std::optional<Status> try_read(ByteRange range, MutableByteSpan out) override;
  Ticket read(ByteRange range, bool is_page_fault, std::function<void(Result<Bytes>)> done) override;
  void prefetch(ByteRange range) override;
  bool complete() const override { return target_->flat && target_->flat->complete(); }
  std::uint64_t cached_bytes() const override { return target_->flat ? target_->flat->cached_bytes() : 0; }
  int fd() const override { return target_->flat ? target_->flat->fd() : -1; }

  // Blocking forms for callers with a thread of their own.
  Status read_now(ByteRange range, MutableByteSpan out, const CallOptions& options);
  const TargetFilePtr& target() const { return target_; }

 private:
  struct Read;
  void ahead(ByteRange range);
  void start(const std::shared_ptr<Read>& read);
  bool here(std::size_t block);

  Materializer& materializer_;
  Clock& clock_;
  const VersionPtr version_;
  const TargetFilePtr target_;
  const ReadPolicy policy_;
  ReadAhead readahead_;
};

}  // namespace weightfs
