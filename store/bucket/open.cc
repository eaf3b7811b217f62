#include "store/bucket/open.h"

#include "store/bucket/dir_bucket.h"
#include "store/bucket/s3_bucket.h"
#include "store/bucket/url.h"

namespace weightfs {

Result<std::unique_ptr<Bucket>> open_bucket(const std::string& url, const BucketOptions& options) {
  auto parsed = WFS_TRY(parse_bucket_url(url));
  if (const auto* dir = std::get_if<DirUrl>(&parsed)) {
    return DirBucket::open(dir->path, {.url = url, .create = options.create, .bandwidth = options.bandwidth});
  }
  return S3Bucket::open(url, std::get<S3Url>(parsed), options);
}

}  // namespace weightfs
