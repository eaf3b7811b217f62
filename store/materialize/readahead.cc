#include "store/materialize/readahead.h"

#include <algorithm>

namespace weightfs {
namespace {

// Readers of one stream arrive a little out of order: the kernel's own read-ahead, several FUSE workers.
constexpr std::uint64_t kSlack = 2 << 20;

}  // namespace

std::optional<ByteRange> ReadAhead::read(ByteRange range) {
  MutexLock lock(mutex_);
  clock_++;
  Stream* stream = nullptr;
  for (auto& one : streams_) {
    if (one.used > 0 && range.offset + kSlack >= one.next && range.offset <= one.next + kSlack) {
      if (stream == nullptr || one.used > stream->used) stream = &one;
    }
  }
  if (stream == nullptr) {
    stream = std::min_element(streams_.begin(), streams_.end(),
                              [](const Stream& a, const Stream& b) { return a.used < b.used; });
    *stream = Stream{range.offset, range.end(), range.end(), clock_};
    return std::nullopt;
  }
  stream->used = clock_;
  if (range.end() > stream->next) stream->next = range.end();
  // What is read in vain at a stream's end stays below half of what was wanted.
  auto window = std::min(options_.most, std::max(options_.first, (stream->next - stream->start) / 2));
  auto want_to = std::min(size_, stream->next + window);
  // Ask again only when half the window is used up, so that requests are large.
  if (want_to <= stream->fetched || (want_to < size_ && stream->fetched > stream->next + window / 2))
    return std::nullopt;
  ByteRange ahead{std::max(stream->fetched, stream->next), 0};
  if (ahead.offset >= want_to) return std::nullopt;
  ahead.length = want_to - ahead.offset;
  stream->fetched = want_to;
  return ahead;
}

}  // namespace weightfs
