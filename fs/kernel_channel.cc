#include "fs/kernel_channel.h"

#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "fs/session_data.h"
#include "store/base/posix.h"

namespace weightfs {
namespace {

// Both messages of INIT from protocol 7.36 on, as linux/fuse.h has them; Debian 12's is older.
constexpr std::size_t kInFlags = 12, kInMoreFlags = 16;
constexpr std::size_t kOutFlags = 12, kOutMoreFlags = 32, kOutStackDepth = 36, kOutSize = 64;

KernelChannel& channel_of(void* userdata) { return static_cast<SessionData*>(userdata)->channel; }

}  // namespace

Status KernelChannel::take_over(fuse_session* session, bool want_passthrough) {
  want_passthrough_.store(want_passthrough);
  fuse_custom_io io{};
  io.read = read;
  io.writev = writev;
  int result = fuse_session_custom_io(session, &io, fuse_session_fd(session));
  return result == 0 ? Status() : from_errno(-result, "fuse_session_custom_io");
}

ssize_t KernelChannel::read(int fd, void* buffer, std::size_t size, void* userdata) {
  ssize_t got = ::read(fd, buffer, size);
  auto& channel = channel_of(userdata);
  if (channel.granted_.load(std::memory_order_relaxed) != 0) return got;  // INIT is long past
  fuse_in_header header;
  if (got < static_cast<ssize_t>(sizeof(header) + 16)) return got;  // 16: up to the flags, in every version
  std::memcpy(&header, buffer, sizeof(header));
  if (header.opcode != FUSE_INIT) return got;
  const auto* init = static_cast<char*>(buffer) + sizeof(header);
  std::uint32_t flags = 0, more = 0;
  std::memcpy(&flags, init + kInFlags, sizeof(flags));
  bool extended = (flags & kExtended) != 0 && got >= static_cast<ssize_t>(sizeof(header) + kInMoreFlags + sizeof(more));
  if (extended) std::memcpy(&more, init + kInMoreFlags, sizeof(more));
  channel.offered_.store(flags);
  channel.offered_more_.store(more);
  channel.init_.store(header.unique);
  return got;
}

ssize_t KernelChannel::writev(int fd, iovec* pieces, int count, void* userdata) {
  auto& channel = channel_of(userdata);
  auto init = channel.init_.load(std::memory_order_relaxed);
  if (init == 0 || count < 2) return ::writev(fd, pieces, count);
  fuse_out_header header;
  std::memcpy(&header, pieces[0].iov_base, sizeof(header));
  if (header.unique != init || header.error != 0 || pieces[1].iov_len < 16) return ::writev(fd, pieces, count);
  auto* init_out = static_cast<char*>(pieces[1].iov_base);
  std::uint32_t value;
  std::memcpy(&value, init_out + kOutFlags, sizeof(value));
  if (value == 0) return ::writev(fd, pieces, count);  // a first answer that only says which version we speak
  value |= channel.offered_.load() & (kParallelDirectories | kKillPrivileges);
  bool passthrough = channel.want_passthrough_.load() && (channel.offered_more_.load() & kPassthrough) != 0 &&
                     pieces[1].iov_len >= kOutSize;
  if (passthrough) {
    value |= kExtended;
    std::uint32_t more, depth = 1;  // backing files are on plain filesystems, and an overlay may lie over us
    std::memcpy(&more, init_out + kOutMoreFlags, sizeof(more));
    more |= kPassthrough;
    std::memcpy(init_out + kOutMoreFlags, &more, sizeof(more));
    std::memcpy(init_out + kOutStackDepth, &depth, sizeof(depth));
  }
  channel.passthrough_.store(passthrough);
  std::memcpy(init_out + kOutFlags, &value, sizeof(value));
  channel.granted_.store(value);
  channel.init_.store(0);
  return ::writev(fd, pieces, count);
}

}  // namespace weightfs
