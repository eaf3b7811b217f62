// URL -> Bucket.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/bucket/bucket.h"

namespace weightfs {

struct BucketOptions {
  std::optional<std::string> endpoint;        // S3: beats AWS_ENDPOINT_URL
  std::uint64_t bandwidth = 0;                // bytes a second over all connections, 0 = no limit
  Duration stall = std::chrono::seconds(30);  // no progress for so long fails an attempt
  bool create = true;                         // a directory bucket: create the last component when its parent exists
};

// `/dir`, `file:///dir`, `s3://bucket/prefix`, `hf://buckets/<namespace>/<bucket>[/prefix]`.
// Credentials come from the environment and the usual files (docs: S3), never from the URL: one with a user or password
// is kInvalid, and not repeated in the message. kInvalid: malformed or unknown scheme. kPermission: no credentials to
// be found. Makes no request.
Result<std::unique_ptr<Bucket>> open_bucket(const std::string& url, const BucketOptions& options = {});

}  // namespace weightfs
