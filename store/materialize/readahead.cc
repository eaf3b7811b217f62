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
    *stream = Stream{range.end(), range.end(), 0, clock_};
    // Reading from the very start is the loader's way: read ahead at once.
    if (range.offset != 0) return std::nullopt;
  }
  stream->used = clock_;
  if (range.end() > stream->next) stream->next = range.end();
  stream->window = stream->window == 0 ? options_.first : stream->window;
  auto want_to = std::min(size_, stream->next + stream->window);
  // Ask again only when half the window is used up, so that requests are large.
  if (want_to <= stream->fetched || (want_to < size_ && stream->fetched > stream->next + stream->window / 2))
    return std::nullopt;
  ByteRange ahead{std::max(stream->fetched, stream->next), 0};
  if (ahead.offset >= want_to) return std::nullopt;
  ahead.length = want_to - ahead.offset;
  stream->fetched = want_to;
  stream->window = std::min(options_.most, stream->window * 2);
  return ahead;
}

}  // namespace weightfs
