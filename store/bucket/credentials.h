// Where the keys, region and endpoint for S3 come from: the environment, then the AWS files.
//
//   keys      AWS_ACCESS_KEY_ID + AWS_SECRET_ACCESS_KEY (+ AWS_SESSION_TOKEN), else the profile
//   profile   AWS_PROFILE, else "default"; in AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials), then AWS_CONFIG_FILE
//             (~/.aws/config)
//   region    AWS_REGION, AWS_DEFAULT_REGION, the profile's `region`, else us-east-1
//   endpoint  AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's `endpoint_url`, else Amazon's
//   CA        AWS_CA_BUNDLE, the profile's `ca_bundle`, else the system's
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "store/bucket/s3_sign.h"

namespace weightfs {

struct AwsSettings {
  S3Keys keys;
  std::string region = "us-east-1";
  std::string endpoint;  // "": Amazon's
  std::string ca_bundle;
};

// An environment; tests bring their own. Absent and empty are the same.
using Environment = std::function<std::string(const char* name)>;
std::string process_environment(const char* name);

// kPermission: no keys, with what to set. kInvalid: a file is malformed (its line is named, not repeated).
Result<AwsSettings> load_aws_settings(const Environment& environment);

}  // namespace weightfs
