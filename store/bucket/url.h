// The URLs of buckets, taken apart and checked.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "store/base/status.h"

namespace weightfs {

struct DirUrl {
  std::string path;
};

struct S3Url {
  std::string bucket;         // [A-Za-z0-9._-]{3,255}, neither beginning nor ending with '.'
  std::string prefix;         // "" or "a/b/": no empty, "." or ".." component, no control character
  std::string hub_namespace;  // hf:// only: the bucket is in this namespace of the Hub's gateway
};

using BucketUrl = std::variant<DirUrl, S3Url>;

// kInvalid, with a message that never repeats a user or password that the URL may hold.
Result<BucketUrl> parse_bucket_url(std::string_view url);

}  // namespace weightfs
