#include "tests/support/fault_proxy.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/bucket/http.h"
#include "store/bucket/s3_body.h"
#include "tests/support/certificates.h"

extern char** environ;

namespace weightfs {
Result<std::unique_ptr<FaultProxy>> FaultProxy::start(const std::string& upstream, const FaultProxyOptions& options) {
  std::unique_ptr<FaultProxy> proxy(new FaultProxy());
  proxy->tls_ = options.tls;
  std::vector<std::string> arguments = {"python3", WEIGHTFS_FAULT_PROXY, "--upstream", upstream};
  if (options.tls) {
    WFS_TRY(make_certificates(proxy->dir_.path()));
    arguments.insert(arguments.end(), {"--tls", proxy->dir_ / "cert.pem", proxy->dir_ / "key.pem"});
  }
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return Status(Code::kUnavailable, "no pipe");
  Fd child_in(in[0]), child_out(out[1]);
  proxy->stdin_ = Fd(in[1]);
  proxy->stdout_ = Fd(out[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_in.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int error = ::posix_spawnp(&proxy->child_, "python3", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return from_errno(error, "python3");
  WFS_TRY(child_out.close());
  std::string line;
  for (char c = 0; c != '\n'; line.push_back(c)) {
    if (::read(proxy->stdout_.get(), &c, 1) != 1) return Status(Code::kUnavailable, "the proxy does not start");
  }
  auto ports = nlohmann::json::parse(line);
  proxy->port_ = ports.at("port");
  proxy->control_ = ports.at("control");
  proxy->elsewhere_ = ports.at("elsewhere");
  return proxy;
}

FaultProxy::~FaultProxy() {
  stdin_ = Fd();  // it ends when this does
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
}

nlohmann::json FaultProxy::control(const std::string& method, const std::string& path, const std::string& body) {
  HttpClient http({});
  SpanBody sent(as_bytes(body));
  auto answer = http.perform(
      {.method = method,
       .url = "http://127.0.0.1:" + std::to_string(control_) + path,
       .headers = {},
       .body = method == "GET" ? nullptr : &sent},
      {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30), .body_limit = std::size_t{256} << 20});
  WFS_CHECK(answer.is_ok() && answer->head.status() == 200);
  return nlohmann::json::parse(as_text(answer->body));
}

void FaultProxy::set_rules(const nlohmann::json& rules) { control("PUT", "/rules", rules.dump()); }
void FaultProxy::set_link(std::uint64_t bytes_per_second, double delay) {
  control("PUT", "/link", nlohmann::json{{"rate", bytes_per_second}, {"delay", delay}}.dump());
}
nlohmann::json FaultProxy::log() { return control("GET", "/log"); }
nlohmann::json FaultProxy::counters() { return control("GET", "/counters"); }
void FaultProxy::reset() { control("POST", "/reset"); }

}  // namespace weightfs
