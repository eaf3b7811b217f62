// A real S3 server (Ceph RADOS Gateway) of a test's own, on 127.0.0.1, by tests/tools/s3-server. It is installed when
// it is missing, and goes away with the test's process.
#pragma once

#include <memory>
#include <string>

#include "store/bucket/credentials.h"
#include "store/bucket/open.h"
#include "tests/support/temp_dir.h"

namespace weightfs {

class S3Server {
 public:
  // Fails with what the script said.
  static Result<std::unique_ptr<S3Server>> start();
  // The one server of this test program, started by the first who asks. Aborts when it cannot be had.
  static S3Server& shared();
  ~S3Server();

  const std::string& endpoint() const { return endpoint_; }
  const std::string& access_key() const { return access_key_; }
  const std::string& secret_key() const { return secret_key_; }
  // An environment with its endpoint and keys, and nothing else.
  Environment environment() const;
  // The same as a child process's environment: "AWS_ENDPOINT_URL=…".
  std::vector<std::string> variables() const;

  // A new bucket of a name that was not used before.
  std::string make_bucket();
  // s3://`bucket`/`prefix` at this server.
  std::unique_ptr<Bucket> open(const std::string& bucket, const std::string& prefix = "",
                               const BucketOptions& options = {}) const;

 private:
  S3Server() = default;
  TempDir dir_;
  std::string endpoint_, access_key_, secret_key_;
};

}  // namespace weightfs
