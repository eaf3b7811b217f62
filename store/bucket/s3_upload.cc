// Multipart uploads: several parts at once, each with its own retries; all or nothing.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>

#include "store/base/threads.h"
#include "store/bucket/s3_body.h"
#include "store/bucket/s3_bucket.h"
#include "store/bucket/s3_xml.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMaxParts = 10'000;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr Duration kAbortPatience = std::chrono::seconds(10);
constexpr Duration kAbortPatienceCancelled = std::chrono::milliseconds(500);

}  // namespace

// One upload. Its threads take part after part until none is left or one failed.
struct S3Bucket::Upload {
  std::string key, id;
  int fd = -1;
  std::uint64_t size = 0, part_size = 0;
  HttpLimits limits;
  std::shared_ptr<CancelToken> stop = std::make_shared<CancelToken>();  // one part failed: the others end, too
  std::function<void(std::uint64_t)> progress;
  std::atomic<std::uint64_t> next_part = 0;

  std::uint64_t parts() const { return (size + part_size - 1) / part_size; }

  Mutex mutex;  // guards what the threads report
  std::vector<std::string> etags GUARDED_BY(mutex);
  Status failure GUARDED_BY(mutex);
};

Result<std::string> S3Bucket::begin_upload(const std::string& key, const HttpLimits& limits) {
  S3Request request{.method = "POST",
                    .key = key,
                    .query = {{"uploads", ""}},
                    .headers = {{"Content-Type", "application/octet-stream"}}};
  auto answer = WFS_TRY(client_.call(request, limits));
  auto root = WFS_TRY(parse_xml(as_text(answer.body)).with("begin of the upload of " + key));
  std::string id(root.text_of("UploadId"));
  if (id.empty()) return Status(Code::kCorrupt, "begin of the upload of " + key + ": no UploadId");
  return id;
}

Result<std::string> S3Bucket::put_part(const Upload& upload, std::uint64_t number, ByteRange range) {
  FileBody body(upload.fd, range);
  S3Request request {
    .method = "PUT", .key = upload.key, .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.id}},
    .body = &body, .payload_hash = WFS_TRY(payload_hash(body))
  };
  auto answer = WFS_TRY(client_.call(request, upload.limits));
  std::string etag(answer.head.find("etag"));
  if (etag.empty()) return Status(Code::kCorrupt, "a part of " + upload.key + " got no ETag");
  return etag;
}

void S3Bucket::upload_parts(Upload& upload) {
  while (true) {
    auto index = upload.next_part++;
    if (index >= upload.parts()) return;
    ByteRange range{index * upload.part_size, 0};
    range.length = std::min(upload.part_size, upload.size - range.offset);
    auto etag = put_part(upload, index + 1, range);
    MutexLock lock(upload.mutex);
    if (!etag.is_ok()) {
      if (upload.failure.is_ok()) upload.failure = std::move(etag).status();
      upload.stop->cancel();
      return;
    }
    upload.etags[index] = std::move(etag).value();
    if (upload.progress) upload.progress(range.length);  // in turn, so that it need not be thread-safe
  }
}

Status S3Bucket::complete_upload(const Upload& upload, const std::vector<std::string>& etags,
                                 const HttpLimits& limits) {
  std::string xml = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < etags.size(); i++) {
    xml +=
        "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + xml_escape(etags[i]) + "</ETag></Part>";
  }
  xml += "</CompleteMultipartUpload>";
  SpanBody body(as_bytes(xml));
  S3Request request {
    .method = "POST", .key = upload.key, .query = {{"uploadId", upload.id}},
    .headers = {{"Content-Type", "application/xml"}}, .body = &body, .payload_hash = WFS_TRY(payload_hash(body))
  };
  auto answer = client_.call(request, limits);
  // It may have been done by an attempt whose answer got lost; then the object is there, and nobody else writes its
  // key.
  if (answer.code() == Code::kNotFound) {
    auto there = client_.call({.method = "HEAD", .key = upload.key}, limits);
    if (there.is_ok() && there->head.content_length() == upload.size) return {};
    return {Code::kUnavailable, answer.status().message()};
  }
  return answer.is_ok() ? Status() : std::move(answer).status();
}

void S3Bucket::abort_upload(const Upload& upload) {
  HttpLimits limits{.deadline = std::chrono::steady_clock::now() +
                                (upload.limits.cancelled() ? kAbortPatienceCancelled : kAbortPatience)};
  auto answer = client_.call({.method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}}, limits);
  if (!answer.is_ok()) spdlog::debug("the parts of {} stay until the store drops them", upload.key);
}

Status S3Bucket::put_parts(const std::string& key, int fd, std::uint64_t size, const HttpLimits& limits,
                           const std::function<void(std::uint64_t)>& progress) {
  auto needed = (size + kMaxParts - 1) / kMaxParts;
  Upload upload;
  upload.key = key;
  upload.fd = fd;
  upload.size = size;
  upload.part_size = std::max(tuning_.part_size, (needed + kMiB - 1) / kMiB * kMiB);
  upload.progress = progress;
  upload.id = WFS_TRY(begin_upload(key, limits));
  upload.limits = limits;
  upload.limits.cancel.push_back(upload.stop);
  {
    MutexLock lock(upload.mutex);
    upload.etags.resize(upload.parts());
  }
  {
    std::vector<std::jthread> threads;
    auto count = std::min<std::uint64_t>(upload.parts(), static_cast<std::uint64_t>(tuning_.parts_in_flight));
    for (std::uint64_t i = 0; i < count; i++) {
      threads.push_back(start_thread("upload", [this, &upload](const std::stop_token&) { upload_parts(upload); }));
    }
  }  // joined
  Status status;
  std::vector<std::string> etags;
  {
    MutexLock lock(upload.mutex);
    status = upload.failure;
    etags = upload.etags;
  }
  if (status.is_ok()) status = complete_upload(upload, etags, limits);
  if (!status.is_ok()) {
    upload.limits.cancel = limits.cancel;  // whether the user cancelled
    abort_upload(upload);
  }
  return status;
}

}  // namespace weightfs
