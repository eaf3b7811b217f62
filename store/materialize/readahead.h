// Who reads in order, and what to fetch next. Several streams a file: threads that fault pages of different tensors are
// streams of their own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "store/base/bytes.h"
#include "store/base/mutex.h"

namespace weightfs {

// Any thread may call.
class ReadAhead {
 public:
  struct Options {
    std::uint64_t first = 1 << 20;  // bytes ahead when a stream is recognized
    std::uint64_t most =
        64 << 20;  // bytes ahead of a stream that keeps going; never more than half of what it has read
  };
  explicit ReadAhead(std::uint64_t file_size) : ReadAhead(file_size, Options()) {}
  ReadAhead(std::uint64_t file_size, Options options) : size_(file_size), options_(options) {}

  // A read of `range` happens. Returns what to fetch now, beyond it, if anything: whole pieces, so that calls are few.
  std::optional<ByteRange> read(ByteRange range) EXCLUDES(mutex_);

 private:
  struct Stream {
    std::uint64_t start = 0;    // where it began
    std::uint64_t next = 0;     // where it is expected to go on
    std::uint64_t fetched = 0;  // asked for up to here
    std::uint64_t used = 0;     // for replacing the oldest
  };
  const std::uint64_t size_;
  const Options options_;
  Mutex mutex_;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;
  std::array<Stream, 16> streams_ GUARDED_BY(mutex_);
};

}  // namespace weightfs
