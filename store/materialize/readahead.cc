#include "store/materialize/readahead.h"

#include <algorithm>
#include <utility>

namespace weightfs {
namespace {

// Readers of one stream arrive a little out of order: the kernel's own read-ahead, several FUSE workers.
constexpr std::uint64_t kSlack = 2 << 20;
constexpr std::uint64_t kPage = 4096;
// A fault is read around by the kernel: this much before its page.
constexpr std::uint64_t kAround[] = {0, 64 << 10, 512 << 10};
// Who began within the first bytes, with a header perhaps, reads the file from its beginning.
constexpr std::uint64_t kBeginning = 1 << 20;

}  // namespace

ReadAhead::Stream* ReadAhead::find(ByteRange range) {
  Stream* stream = nullptr;
  for (auto& one : streams_) {
    if (one.used > 0 && range.offset + kSlack >= one.next && range.offset <= one.next + kSlack) {
      if (stream == nullptr || one.used > stream->used) stream = &one;
    }
  }
  return stream;
}

std::uint64_t ReadAhead::tensor_end(std::uint64_t offset) const {
  auto after = std::upper_bound(tensors_.begin(), tensors_.end(), offset);
  return after == tensors_.end() ? 0 : *after;
}

// Where the tensor ends whose first byte is in the page that is wanted of `range`: the first such one, for a small
// tensor's reader does not want its large neighbour.
std::optional<std::uint64_t> ReadAhead::begun_tensor(ByteRange range) const {
  for (auto around : kAround) {
    auto page = range.offset + around;
    if (page >= range.end()) break;
    if (page == 0) continue;  // the header: every loader reads that, whatever it wants
    auto start = std::lower_bound(tensors_.begin(), tensors_.end(), page);
    if (start != tensors_.end() && *start < page + kPage) return tensor_end(*start);
  }
  return std::nullopt;
}

std::uint64_t ReadAhead::window(const Stream& stream) const {
  auto read = stream.next - stream.start + stream.trust;
  if (tensors_.empty()) read /= 2;  // nothing tells where its reader will stop
  return std::min(options_.most, std::max(options_.first, read));
}

std::optional<ByteRange> ReadAhead::begin(ByteRange range) {
  auto& stream = *std::min_element(streams_.begin(), streams_.end(),
                                   [](const Stream& a, const Stream& b) { return a.used < b.used; });
  stream = Stream{range.offset, range.end(), range.end(), 0, 0, clock_};
  if (range.offset < kBeginning && trust_ > 0) {
    stream.trust = std::exchange(trust_, 0);
    stream.fetched = std::max(stream.fetched, std::min(expected_, size_));
    return std::nullopt;
  }
  if (tensors_.empty()) return std::nullopt;
  // In the kernel's pieces: the last one reaches into the next tensor.
  auto begun = begun_tensor(range);
  auto rest = std::max(begun.value_or(tensor_end(range.end() - 1)), range.end()) - range.offset;
  stream.within = std::min(size_, range.offset + (rest + range.length - 1) / range.length * range.length);
  if (!begun) return std::nullopt;
  auto to = std::min(stream.within, range.end() + options_.tensor);
  if (to <= range.end()) return std::nullopt;
  stream.fetched = to;
  return ByteRange{range.end(), to - range.end()};
}

std::optional<ByteRange> ReadAhead::read(ByteRange range) {
  MutexLock lock(mutex_);
  clock_++;
  auto* stream = find(range);
  if (stream == nullptr) return begin(range);
  stream->used = clock_;
  if (range.end() <= stream->next) return std::nullopt;  // the same again
  stream->next = range.end();
  auto window = this->window(*stream);
  // The kernel reads one piece further than its reader.
  if (range.offset > stream->within) stream->within = 0;
  auto limit = stream->within > 0 ? stream->within : size_;
  auto reach = stream->next + window;
  if (stream->start < kBeginning && !left_ && reach > size_) {
    left_ = true;
    leaving_ = Leaving{stream->next - stream->start + stream->trust, window};
  }
  auto want_to = std::min(limit, reach);
  // Ask again only when half the window is used up, so that requests are large.
  if (want_to <= stream->fetched || (want_to < limit && stream->fetched > stream->next + window / 2)) {
    return std::nullopt;
  }
  ByteRange ahead{std::max(stream->fetched, stream->next), 0};
  if (ahead.offset >= want_to) return std::nullopt;
  ahead.length = want_to - ahead.offset;
  stream->fetched = want_to;
  return ahead;
}

void ReadAhead::refused(ByteRange ahead, std::uint64_t from) {
  MutexLock lock(mutex_);
  for (auto& stream : streams_) {
    if (stream.used > 0 && stream.fetched == ahead.end()) stream.fetched = std::min(stream.fetched, from);
  }
}

void ReadAhead::set_tensors(TensorStarts starts) {
  MutexLock lock(mutex_);
  tensors_ = std::move(starts);
  tensors_known_ = true;
}

bool ReadAhead::knows_tensors() const {
  MutexLock lock(mutex_);
  return tensors_known_;
}

void ReadAhead::expect(std::uint64_t trust, std::uint64_t fetched) {
  MutexLock lock(mutex_);
  trust_ = trust;
  expected_ = fetched;
}

std::optional<ReadAhead::Leaving> ReadAhead::leaving() {
  MutexLock lock(mutex_);
  return std::exchange(leaving_, std::nullopt);
}

}  // namespace weightfs
