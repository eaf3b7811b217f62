// FlatFile over an entry of the table and a descriptor.
#pragma once

#include "store/cache/file_table.h"

namespace weightfs {

class CachedFile final : public FlatFile {
 public:
  CachedFile(FileId id, EntryPtr entry, std::shared_ptr<FileTable> table, Fd reader);
  ~CachedFile() override;

  const FileId& id() const override { return id_; }
  std::uint64_t size() const override { return entry_->size; }
  std::size_t blocks() const override { return presence_->blocks(); }
  Presence presence(std::size_t block) const override;
  bool complete() const override;
  std::uint64_t cached_bytes() const override { return entry_->charged; }
  Status read(std::uint64_t offset, MutableByteSpan out) const override;
  Status write(std::size_t block, std::uint64_t offset, ByteSpan bytes) override EXCLUDES(mutex_);
  void verified(std::size_t block, std::uint64_t length) override;
  void damaged(std::size_t block, std::uint64_t length) override;
  int fd() const override { return reader_.get(); }

 private:
  Result<std::shared_ptr<Fd>> writer() EXCLUDES(mutex_);
  Status put(std::uint64_t offset, ByteSpan bytes) EXCLUDES(mutex_);
  void set_verified(std::size_t block, std::uint64_t length, bool charged) EXCLUDES(mutex_);
  void seal() EXCLUDES(mutex_);

  const FileId id_;
  const EntryPtr entry_;
  const std::shared_ptr<weightfs::Presence> presence_;
  const std::shared_ptr<FileTable> table_;
  const Fd reader_;
  mutable std::atomic<bool> was_complete_ = false;
  Mutex mutex_;                                    // guards the pointer only; writes go on through copies of it
  std::shared_ptr<Fd> writer_ GUARDED_BY(mutex_);  // while something is missing
};

// The FlatFile of `id`, opened, made or repaired on disk as needed. As Cache::open_file says.
Result<FlatFilePtr> open_cached_file(const std::shared_ptr<FileTable>& table, const FileId& id, const FileKey& key,
                                     std::span<const std::uint32_t> sizes);
// As Cache::adopt says; `name` in `folder` is the file.
Status adopt_cached_file(const std::shared_ptr<FileTable>& table, const FileKey& key, int folder,
                         const std::string& name, std::span<const std::uint32_t> sizes);

}  // namespace weightfs
