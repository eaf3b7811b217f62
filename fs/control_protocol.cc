#include "fs/control_protocol.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "store/base/posix.h"

namespace weightfs::control {

Json failure(const Status& status) {
  return {{"ok", false}, {"code", to_string(status.code())}, {"message", status.message()}};
}

Status as_status(const Json& answer) {
  auto text = answer.value("code", "");
  for (int i = 1; i <= static_cast<int>(Code::kIo); i++) {
    auto code = static_cast<Code>(i);
    if (to_string(code) == text) return {code, answer.value("message", "")};
  }
  return {Code::kUnsupported, "the daemon's answer is not understood: " + text};
}

Json to_json(const PublishResult& result) {
  Json json = {{"version", percent_encode(result.version.str())},
               {"plain_bytes", result.plain_bytes},
               {"sent_bytes", result.sent_bytes},
               {"changed_elements", result.changed_elements},
               {"total_elements", result.total_elements},
               {"seconds", result.seconds},
               {"number", result.node.number}};
  json["parent"] = result.parent ? Json(percent_encode(result.parent->str())) : Json(nullptr);
  return json;
}

Json to_json(const ModelState& state) {
  Json versions = Json::array();
  for (const auto* version : state.live_versions()) {
    Json json = {{"name", percent_encode(version->name.str())},
                 {"number", version->number},
                 {"plain_bytes", version->plain_bytes},
                 {"stored_bytes", version->stored_bytes},
                 {"changed_elements", version->changed_elements},
                 {"total_elements", version->total_elements},
                 {"time", to_rfc3339(version->time)}};
    json["parent"] = version->parent && version->parent_version
                         ? Json(percent_encode(version->parent->model.str() + "/" + version->parent_version->str()))
                         : Json(nullptr);
    versions.push_back(std::move(json));
  }
  return versions;
}

Result<std::string> LineReader::next() {
  while (true) {
    auto end = buffer_.find('\n');
    if (end != std::string::npos) {
      auto line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (buffer_.size() > kMaxLine) return Status(Code::kInvalid, "line too long");
    char piece[65536];
    ssize_t got = ::recv(fd_, piece, sizeof(piece), 0);
    if (got == 0) return Status(Code::kUnavailable, "the other side hung up");
    if (got < 0) {
      auto status = from_errno(errno, "read from the control socket");
      if (status.code() == Code::kInterrupted) continue;
      return status;
    }
    buffer_.append(piece, static_cast<std::size_t>(got));
  }
}

namespace {

Status send_text(int fd, std::string_view rest, int flags) {
  while (!rest.empty()) {
    ssize_t sent = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | flags);
    flags = 0;  // half a line is no line
    if (sent < 0) {
      auto status = from_errno(errno, "write to the control socket");
      if (status.code() == Code::kInterrupted) continue;
      return status;
    }
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  return {};
}

std::string line_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

Status send_line(int fd, const Json& line) { return send_text(fd, line_of(line), 0); }

void send_line_if_read(int fd, const Json& line) {
  send_text(fd, line_of(line), MSG_DONTWAIT).ignore("the client has gone, or does not look");
}

Status limit_sends(int fd, std::chrono::seconds time) {
  timeval limit{time.count(), 0};
  if (::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) return from_errno(errno, "setsockopt");
  return {};
}

Result<sockaddr_un> address_of(const std::string& path, Fd* dir) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string short_path = path;
  if (path.size() >= sizeof(address.sun_path)) {
    auto slash = path.rfind('/');
    *dir = WFS_TRY(posix::open(path.substr(0, slash), O_PATH | O_DIRECTORY));
    short_path = "/proc/self/fd/" + std::to_string(dir->get()) + path.substr(slash);
    if (short_path.size() >= sizeof(address.sun_path))
      return Status(Code::kInvalid, path + ": name too long for a socket");
  }
  short_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

}  // namespace weightfs::control
