// nghttpx in front of a server, as a child of the test: TLS with a CA made for it, HTTP/2 and HTTP/1.1.
#pragma once

#include <memory>
#include <string>

#include "store/base/posix.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

class Http2Proxy {
 public:
  // Fails when nghttpx (package nghttp2-proxy) is missing or does not start.
  static Result<std::unique_ptr<Http2Proxy>> start(const std::string& upstream);
  ~Http2Proxy();

  std::string endpoint() const { return "https://127.0.0.1:" + std::to_string(port_); }
  std::string ca_bundle() const { return dir_ / "ca.pem"; }
  // One line for each request: "GET /… HTTP/2".
  std::string log() const;

 private:
  Http2Proxy() = default;
  TempDir dir_;
  int port_ = 0;
  pid_t child_ = -1;
};

}  // namespace weightfs
