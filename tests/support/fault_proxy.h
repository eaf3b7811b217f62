// tests/fault/fault_proxy.py in front of a server, as a child of the test. Rules, log and counters are its JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

#include "store/base/posix.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

struct FaultProxyOptions {
  bool tls = false;  // with a certificate for 127.0.0.1 by a CA made for it
};

class FaultProxy {
 public:
  static Result<std::unique_ptr<FaultProxy>> start(const std::string& upstream, const FaultProxyOptions& options = {});
  ~FaultProxy();

  std::string endpoint() const { return (tls_ ? "https" : "http") + ("://127.0.0.1:" + std::to_string(port_)); }
  std::string elsewhere() const { return "127.0.0.1:" + std::to_string(elsewhere_); }
  std::string ca_bundle() const { return dir_ / "ca.pem"; }  // TLS

  void set_rules(const nlohmann::json& rules);                      // counted from now
  void set_link(std::uint64_t bytes_per_second, double delay = 0);  // of all connections together
  nlohmann::json log();
  nlohmann::json counters();
  void reset();  // log and counters

 private:
  FaultProxy() = default;
  nlohmann::json control(const std::string& method, const std::string& path, const std::string& body = "");

  TempDir dir_;
  bool tls_ = false;
  int port_ = 0, control_ = 0, elsewhere_ = 0;
  pid_t child_ = -1;
  Fd stdin_, stdout_;
};

}  // namespace weightfs
