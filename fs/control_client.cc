#include "fs/control_client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>

#include "fs/mount_table.h"

namespace weightfs {

Result<ControlClient> ControlClient::connect(const std::string& socket_path) {
  Fd dir;
  auto reached = control::address_of(socket_path, &dir);
  if (reached.code() == Code::kNotFound) return Status(Code::kNotFound, "no daemon answers at " + socket_path);
  sockaddr_un address = WFS_TRY(std::move(reached));
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return from_errno(errno, "socket");
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    auto status = from_errno(errno, "connect to " + socket_path);
    if (status.code() == Code::kUnavailable) return Status(Code::kNotFound, "no daemon answers at " + socket_path);
    return status;
  }
  return ControlClient(std::move(fd));
}

Result<std::pair<ControlClient, std::string>> ControlClient::connect_for(const std::string& path) {
  auto absolute = posix::absolute(path);
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  auto mount = mount_of(absolute);
  if (!mount) {
    char real[PATH_MAX];  // a link into the mount
    if (::realpath(absolute.c_str(), real) != nullptr) mount = mount_of(real);
  }
  if (!mount) return Status(Code::kNotFound, path + " is not in a weightfs mount");
  char socket_path[PATH_MAX];
  ssize_t length =
      ::getxattr(mount->first.mountpoint.c_str(), "user.weightfs.control", socket_path, sizeof(socket_path));
  if (length < 0) return from_errno(errno, mount->first.mountpoint + ": ask for the control socket");
  auto client = WFS_TRY(connect({socket_path, static_cast<std::size_t>(length)}));
  return std::pair(std::move(client), percent_encode(mount->second));
}

Result<control::Json> ControlClient::call(const control::Json& request, const Progress& progress) {
  WFS_TRY(control::send_line(socket_.get(), request));
  control::LineReader lines(socket_.get());
  while (true) {
    auto line = WFS_TRY(lines.next().with("the daemon ended before it answered"));
    auto answer = control::Json::parse(line, nullptr, false);
    if (!answer.is_object()) return Status(Code::kUnsupported, "the daemon's answer is not understood");
    if (answer.contains("progress")) {
      const auto& step = answer["progress"];
      if (progress && step.is_object()) {
        progress(step.value("done", std::uint64_t{0}), step.value("total", std::uint64_t{0}));
      }
      continue;
    }
    if (answer.value("ok", false)) return answer;
    return control::as_status(answer);
  }
}

}  // namespace weightfs
