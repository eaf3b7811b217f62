// A bucket in an S3 store: Amazon's, Ceph RGW, MinIO, the Hub's gateway. docs/S3.md says what it needs of a store.
//
// What differs from Bucket's contract: kInvalid when there is no such bucket (the store says NoSuchBucket), or it is in
// another region; kNoSpace when a quota is reached. Attributes of HTTP have whole seconds, and so have times.
#pragma once

#include <memory>
#include <string>

#include "store/bucket/bucket.h"
#include "store/bucket/credentials.h"
#include "store/bucket/open.h"
#include "store/bucket/s3_client.h"
#include "store/bucket/url.h"

namespace weightfs {

struct S3Tuning {
  Duration first_backoff = std::chrono::milliseconds(100);
  std::uint64_t multipart_above = std::uint64_t{64} << 20;
  std::uint64_t part_size = std::uint64_t{16} << 20;  // at least 5 MiB; larger for objects of over 10,000 parts
  int parts_in_flight = 4;
};

class S3Bucket final : public Bucket {
 public:
  // kPermission: no keys. kInvalid: the endpoint or region. Makes no request.
  static Result<std::unique_ptr<Bucket>> open(const std::string& url, const S3Url& parsed, const BucketOptions& options,
                                              const Environment& environment = process_environment,
                                              const S3Tuning& tuning = {});

  Status get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options = {}) override;
  Result<Bytes> get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options = {}) override;
  Result<ObjectInfo> head(const ObjectKey& key, const CallOptions& options = {}) override;
  Status put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options = {}) override;
  Status put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options = {},
                  const std::function<void(std::uint64_t)>& progress = {}) override;
  Status remove(const ObjectKey& key, const CallOptions& options = {}) override;
  Result<std::vector<ListedObject>> list(const std::string& prefix, const CallOptions& options = {}) override;
  Result<std::vector<std::string>> list_prefixes(const std::string& prefix, const CallOptions& options = {}) override;
  Result<WallTime> server_time(const CallOptions& options = {}) override;
  const std::string& url() const override { return url_; }

 private:
  struct Upload;
  S3Bucket(std::string url, std::string prefix, S3ClientOptions client, const S3Tuning& tuning);
  std::string full(const ObjectKey& key) const { return prefix_ + key.str(); }
  // SHA-256 of the body, or that it is not signed.
  Result<std::string> payload_hash(const HttpBody& body) const;
  template <typename Visit>
  Status list_pages(const std::string& prefix, bool directories, const CallOptions& options, const Visit& visit);

  Result<std::string> begin_upload(const std::string& key, const HttpLimits& limits);
  void upload_parts(Upload& upload);
  Result<std::string> put_part(const Upload& upload, std::uint64_t number, ByteRange range);
  Status complete_upload(const Upload& upload, const std::vector<std::string>& etags, const HttpLimits& limits);
  void abort_upload(const Upload& upload);
  Status put_parts(const std::string& key, int fd, std::uint64_t size, const HttpLimits& limits,
                   const std::function<void(std::uint64_t)>& progress);

  const std::string url_;
  const std::string prefix_;  // "" or "a/b/"
  const S3Tuning tuning_;
  S3Client client_;
};

}  // namespace weightfs
