#include "fs/kernel_channel.h"

#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "fs/session_data.h"
#include "store/base/posix.h"

namespace weightfs {
namespace {

KernelChannel& channel_of(void* userdata) { return static_cast<SessionData*>(userdata)->channel; }

}  // namespace

Status KernelChannel::take_over(fuse_session* session) {
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
  fuse_init_in init{};
  if (got < static_cast<ssize_t>(sizeof(header) + 16)) return got;  // 16: up to the flags, in every version
  std::memcpy(&header, buffer, sizeof(header));
  if (header.opcode != FUSE_INIT) return got;
  std::memcpy(&init, static_cast<char*>(buffer) + sizeof(header), 16);
  channel.offered_.store(init.flags);
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
  auto* flags = static_cast<char*>(pieces[1].iov_base) + offsetof(fuse_init_out, flags);
  std::uint32_t value;
  std::memcpy(&value, flags, sizeof(value));
  if (value == 0) return ::writev(fd, pieces, count);  // a first answer that only says which version we speak
  value |= channel.offered_.load() & (kParallelDirectories | kKillPrivileges);
  std::memcpy(flags, &value, sizeof(value));
  channel.granted_.store(value);
  channel.init_.store(0);
  return ::writev(fd, pieces, count);
}

}  // namespace weightfs
