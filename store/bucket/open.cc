#include "store/bucket/open.h"

#include "store/bucket/dir_bucket.h"
#include "store/bucket/url.h"

namespace weightfs {

Result<std::unique_ptr<Bucket>> open_bucket(const std::string& url, const BucketOptions& options) {
  auto parsed = WFS_TRY(parse_bucket_url(url));
  if (const auto* dir = std::get_if<DirUrl>(&parsed)) {
    return DirBucket::open(dir->path, {.url = url, .create = options.create, .bandwidth = options.bandwidth});
  }
  return Status(Code::kUnsupported, "S3 is not built in");
}

}  // namespace weightfs
