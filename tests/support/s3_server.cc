#include "tests/support/s3_server.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "store/base/digest.h"
#include "store/bucket/s3_bucket.h"

namespace weightfs {
namespace {

struct Output {
  int exit_code;
  std::string text;
};

Output run(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return {-1, ""};
  std::string text;
  char buffer[4096];
  while (auto got = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, got);
  int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

std::string script(const std::string& arguments) {
  return (::geteuid() == 0 ? "" : "sudo -n ") + std::string(WEIGHTFS_S3_SERVER) + " " + arguments;
}

std::string value_of(const std::string& text, const std::string& name) {
  auto start = text.find(name + "=");
  if (start == std::string::npos) return "";
  start += name.size() + 1;
  return text.substr(start, text.find('\n', start) - start);
}

}  // namespace

Result<std::unique_ptr<S3Server>> S3Server::start() {
  std::unique_ptr<S3Server> server(new S3Server());
  std::string last;
  // Each server takes 100 ports, below those that the system gives out by itself.
  for (int attempt = 0; attempt < 20; attempt++) {
    int port = 10'000 + (::getpid() + attempt * 37) % 220 * 100;
    auto output = run(script("start --install --dir " + server->dir_.path() + "/s3 --port " + std::to_string(port) +
                             " --owner " + std::to_string(::getpid())) +
                      " 2>&1");
    if (output.exit_code == 0) {
      server->endpoint_ = value_of(output.text, "S3_ENDPOINT");
      server->access_key_ = value_of(output.text, "S3_ACCESS_KEY");
      server->secret_key_ = value_of(output.text, "S3_SECRET_KEY");
      return server;
    }
    last = output.text;
    if (last.find("is in use") == std::string::npos) break;
  }
  return Status(Code::kUnavailable, "the S3 server does not start: " + last);
}

S3Server& S3Server::shared() {
  static std::unique_ptr<S3Server> server = [] {
    auto started = start();
    if (!started.is_ok()) {
      std::fprintf(stderr, "%s\n", started.status().message().c_str());
      std::abort();
    }
    return std::move(started).value();
  }();
  return *server;
}

S3Server::~S3Server() { run(script("stop --dir " + dir_.path() + "/s3")); }

Environment S3Server::environment() const {
  return [endpoint = endpoint_, access = access_key_, secret = secret_key_](const char* name) -> std::string {
    std::string_view wanted = name;
    if (wanted == "AWS_ENDPOINT_URL") return endpoint;
    if (wanted == "AWS_ACCESS_KEY_ID") return access;
    if (wanted == "AWS_SECRET_ACCESS_KEY") return secret;
    return "";
  };
}

std::vector<std::string> S3Server::variables() const {
  return {"AWS_ENDPOINT_URL=" + endpoint_, "AWS_ACCESS_KEY_ID=" + access_key_, "AWS_SECRET_ACCESS_KEY=" + secret_key_};
}

std::string S3Server::make_bucket() {
  auto name = "b" + random_id();
  S3Client client({.endpoint = std::move(S3Endpoint::make(endpoint_, "us-east-1", name)).value(),
                   .region = "us-east-1",
                   .keys = {access_key_, secret_key_, ""}});
  auto made = client.call({.method = "PUT"}, {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30)});
  WFS_CHECK(made.is_ok());
  return name;
}

std::unique_ptr<Bucket> S3Server::open(const std::string& bucket, const std::string& prefix,
                                       const BucketOptions& options) const {
  auto opened =
      S3Bucket::open("s3://" + bucket + (prefix.empty() ? "" : "/" + prefix),
                     {.bucket = bucket, .prefix = prefix.empty() ? "" : prefix + "/"}, options, environment());
  return std::move(opened).value();
}

}  // namespace weightfs
