#include "tests/support/http2_proxy.h"

#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/certificates.h"

extern char** environ;

namespace weightfs {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// One that nobody listens on now.
int free_port() {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto address = loopback(0);
  socklen_t length = sizeof(address);
  WFS_CHECK(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  WFS_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin_port);
}

bool listens(int port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto address = loopback(port);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

Result<std::unique_ptr<Http2Proxy>> Http2Proxy::start(const std::string& upstream) {
  std::unique_ptr<Http2Proxy> proxy(new Http2Proxy());
  WFS_TRY(make_certificates(proxy->dir_.path()));
  proxy->port_ = free_port();
  auto backend = upstream.substr(upstream.find("//") + 2);
  backend[backend.find(':')] = ',';
  std::vector<std::string> arguments = {"nghttpx",
                                        "--conf=/dev/null",
                                        "--frontend=127.0.0.1," + std::to_string(proxy->port_),
                                        "--backend=" + backend,
                                        "--workers=1",
                                        "--accesslog-file=" + (proxy->dir_ / "access.log"),
                                        "--accesslog-format=$request",
                                        "--errorlog-file=" + (proxy->dir_ / "error.log"),
                                        proxy->dir_ / "key.pem",
                                        proxy->dir_ / "cert.pem"};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int error = ::posix_spawnp(&proxy->child_, "nghttpx", nullptr, nullptr, argv.data(), environ);
  if (error != 0) return from_errno(error, "nghttpx (package nghttp2-proxy)");
  while (!listens(proxy->port_)) {
    if (::waitpid(proxy->child_, nullptr, WNOHANG) != 0) {
      proxy->child_ = -1;
      return Status(Code::kUnavailable, "nghttpx does not start");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return proxy;
}

Http2Proxy::~Http2Proxy() {
  if (child_ <= 0) return;
  ::kill(child_, SIGTERM);
  ::waitpid(child_, nullptr, 0);
}

std::string Http2Proxy::log() const {
  auto bytes = posix::read_file(dir_ / "access.log", std::uint64_t{64} << 20);
  return bytes.is_ok() ? std::string(as_text(*bytes)) : "";
}

}  // namespace weightfs
