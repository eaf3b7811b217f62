// Who reads in order, and what to fetch next. Several streams a file: threads that fault pages of different tensors are
// streams of their own.
//
// A stream is trusted with as much as it has read: what is fetched in vain at its end stays below that. In a file of
// tensors it is not followed past the tensor that it began in until it has read past it by itself; but who begins at a
// tensor's first byte most likely wants all of it, so that comes in one round trip.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/mutex.h"

namespace weightfs {

// Where a file's tensors begin, ascending; the last is the file's size. Empty: not a file of tensors.
using TensorStarts = std::vector<std::uint64_t>;

// Any thread may call.
class ReadAhead {
 public:
  struct Options {
    std::uint64_t first = 1 << 20;    // bytes ahead when a stream is recognized
    std::uint64_t most = 64 << 20;    // bytes ahead of a stream that keeps going
    std::uint64_t tensor = 32 << 20;  // of a tensor whose beginning is read, at once
  };
  explicit ReadAhead(std::uint64_t file_size) : ReadAhead(file_size, Options()) {}
  ReadAhead(std::uint64_t file_size, Options options) : size_(file_size), options_(options) {}

  // A read of `range` happens. Returns what to fetch now, beyond it, if anything: whole pieces, so that calls are few.
  std::optional<ByteRange> read(ByteRange range) EXCLUDES(mutex_);
  // Of what the last call returned, what lies from `from` on could not be fetched: it will be asked for again.
  void refused(ByteRange ahead, std::uint64_t from) EXCLUDES(mutex_);

  // Known from the first read of the header on.
  void set_tensors(TensorStarts starts) EXCLUDES(mutex_);
  bool knows_tensors() const EXCLUDES(mutex_);

  // The file continues a checkpoint whose reader has read `trust` bytes in order: its first stream is trusted with
  // them, and `fetched` bytes are asked for already.
  void expect(std::uint64_t trust, std::uint64_t fetched) EXCLUDES(mutex_);
  // Once, when the window of the stream that began with the file has reached the file's end: time to look at the next
  // file.
  struct Leaving {
    std::uint64_t trust = 0;   // bytes read in order, of earlier files too
    std::uint64_t window = 0;  // bytes to fetch of the next file
    friend bool operator==(const Leaving&, const Leaving&) = default;
  };
  std::optional<Leaving> leaving() EXCLUDES(mutex_);

 private:
  struct Stream {
    std::uint64_t start = 0;    // where it began
    std::uint64_t next = 0;     // where it is expected to go on
    std::uint64_t fetched = 0;  // asked for up to here
    std::uint64_t trust = 0;    // read in earlier files
    std::uint64_t within = 0;   // end of the tensor it began in; 0: it has left it, or that is not known
    std::uint64_t used = 0;     // for replacing the oldest
  };
  Stream* find(ByteRange range) REQUIRES(mutex_);
  std::optional<ByteRange> begin(ByteRange range) REQUIRES(mutex_);
  std::uint64_t window(const Stream& stream) const REQUIRES(mutex_);
  std::uint64_t tensor_end(std::uint64_t offset) const REQUIRES(mutex_);
  std::optional<std::uint64_t> begun_tensor(ByteRange range) const REQUIRES(mutex_);

  const std::uint64_t size_;
  const Options options_;
  mutable Mutex mutex_;
  std::uint64_t clock_ GUARDED_BY(mutex_) = 0;
  std::array<Stream, 64> streams_ GUARDED_BY(mutex_);
  TensorStarts tensors_ GUARDED_BY(mutex_);
  bool tensors_known_ GUARDED_BY(mutex_) = false;
  std::uint64_t trust_ GUARDED_BY(mutex_) = 0, expected_ GUARDED_BY(mutex_) = 0;
  std::optional<Leaving> leaving_ GUARDED_BY(mutex_);
  bool left_ GUARDED_BY(mutex_) = false;
};

}  // namespace weightfs
