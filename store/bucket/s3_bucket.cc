#include "store/bucket/s3_bucket.h"

#include <algorithm>

#include "store/base/digest.h"
#include "store/bucket/s3_body.h"
#include "store/bucket/s3_xml.h"

namespace weightfs {
namespace {

constexpr std::size_t kMaxListPage = std::size_t{16} << 20;
constexpr std::size_t kMaxListed = 5'000'000;
constexpr std::uint64_t kSignAlways = std::uint64_t{1} << 20;  // small bodies are signed over TLS, too

HttpLimits limits_of(const CallOptions& options) {
  return {.deadline = std::chrono::steady_clock::now() + options.deadline, .cancel = {options.cancel}};
}

}  // namespace

S3Bucket::S3Bucket(std::string url, std::string prefix, S3ClientOptions client, const S3Tuning& tuning)
    : url_(std::move(url)), prefix_(std::move(prefix)), tuning_(tuning), client_([&] {
        client.counters = &counters_;
        client.http.counters = &counters_;
        return std::move(client);
      }()) {}

Result<std::unique_ptr<Bucket>> S3Bucket::open(const std::string& url, const S3Url& parsed,
                                               const BucketOptions& options, const Environment& environment,
                                               const S3Tuning& tuning) {
  bool hub = !parsed.hub_namespace.empty();
  auto loaded = load_aws_settings(environment);
  if (hub && loaded.code() == Code::kPermission) {
    return Status(Code::kPermission,
                  "a Hub bucket is reached through its S3 gateway, which needs S3 keys: make them at "
                  "https://huggingface.co/settings/tokens and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  auto settings = WFS_TRY(std::move(loaded));
  if (hub) {
    settings.region = "us-east-1";
    settings.endpoint = "https://s3.hf.co";  // AWS_ENDPOINT_URL is meant for s3://
  }
  if (options.endpoint) settings.endpoint = *options.endpoint;
  S3ClientOptions client {
    .endpoint = WFS_TRY(S3Endpoint::make(settings.endpoint, settings.region, parsed.bucket, parsed.hub_namespace))
    , .region = settings.region, .keys = settings.keys,
        .reload_keys = [environment]() -> Result<S3Keys> {
          return WFS_TRY(load_aws_settings(environment))
          .keys;
        },
        .first_backoff = tuning.first_backoff, .http = {
          .stall = options.stall,
          .bandwidth = options.bandwidth,
          .ca_bundle = settings.ca_bundle
        }
  };
  return std::unique_ptr<Bucket>(new S3Bucket(url, parsed.prefix, std::move(client), tuning));
}

Result<std::string> S3Bucket::payload_hash(const HttpBody& body) const {
  if (client_.tls() && body.size() > kSignAlways) return std::string(kUnsignedPayload);
  Sha256Stream hash;
  Bytes buffer(static_cast<std::size_t>(std::min(body.size(), kSignAlways)));
  for (std::uint64_t at = 0; at < body.size();) {
    auto piece = MutableByteSpan(buffer).first(static_cast<std::size_t>(std::min(kSignAlways, body.size() - at)));
    WFS_TRY(body.read(at, piece));
    hash.update(piece);
    at += piece.size();
  }
  return hash.finish().hex();
}

Status S3Bucket::get(const ObjectKey& key, ByteRange range, MutableByteSpan out, const CallOptions& options) {
  WFS_CHECK(out.size() == range.length && range.length > 0);
  if (!checked_add(range.offset, range.length)) return {Code::kCorrupt, key.str() + ": no object is that long"};
  RangeSink sink(range, out);
  auto answer = client_.call({.method = "GET", .key = full(key), .sink = &sink}, limits_of(options));
  return answer.is_ok() ? Status() : std::move(answer).status();
}

Result<Bytes> S3Bucket::get_all(const ObjectKey& key, std::uint64_t limit, const CallOptions& options) {
  WholeSink sink(limit);
  WFS_TRY(client_.call({.method = "GET", .key = full(key), .sink = &sink}, limits_of(options)));
  return sink.take();
}

Result<ObjectInfo> S3Bucket::head(const ObjectKey& key, const CallOptions& options) {
  auto answer = WFS_TRY(client_.call({.method = "HEAD", .key = full(key)}, limits_of(options)));
  auto modified = parse_http_date(answer.head.find("last-modified"));
  if (!answer.head.content_length() || !modified) {
    return Status(Code::kCorrupt, "HEAD " + key.str() + ": the answer lacks Content-Length or Last-Modified");
  }
  return ObjectInfo{*answer.head.content_length(), *modified};
}

Status S3Bucket::put(const ObjectKey& key, ByteSpan bytes, IfExists if_exists, const CallOptions& options) {
  SpanBody body(bytes);
  S3Request request {
    .method = "PUT", .key = full(key), .headers = {{"Content-Type", "application/octet-stream"}}, .body = &body,
    .payload_hash = WFS_TRY(payload_hash(body))
    , .conditional = if_exists == IfExists::kFail
  };
  if (request.conditional) request.headers.emplace_back("If-None-Match", "*");
  auto answer = client_.call(request, limits_of(options));
  if (answer.is_ok()) return {};
  auto status = std::move(answer).status();
  if (request.conditional && status.code() == Code::kUnsupported) {
    return std::move(status).with("the store has no conditional writes");
  }
  return status;
}

Status S3Bucket::put_file(const ObjectKey& key, int fd, std::uint64_t size, const CallOptions& options,
                          const std::function<void(std::uint64_t)>& progress) {
  if (size > tuning_.multipart_above) return put_parts(full(key), fd, size, limits_of(options), progress);
  FileBody body(fd, {0, size});
  S3Request request {
    .method = "PUT", .key = full(key), .headers = {{"Content-Type", "application/octet-stream"}}, .body = &body,
    .payload_hash = WFS_TRY(payload_hash(body))
  };
  WFS_TRY(client_.call(request, limits_of(options)));
  if (progress) progress(size);
  return {};
}

Status S3Bucket::remove(const ObjectKey& key, const CallOptions& options) {
  auto answer = client_.call({.method = "DELETE", .key = full(key)}, limits_of(options));
  if (answer.is_ok() || answer.code() == Code::kNotFound) return {};
  return std::move(answer).status();
}

// Calls visit(page) for each page of a list.
template <typename Visit>
Status S3Bucket::list_pages(const std::string& prefix, bool directories, const CallOptions& options,
                            const Visit& visit) {
  if (!prefix.empty() && (prefix.back() != '/' || !ObjectKey::parse(prefix.substr(0, prefix.size() - 1)).is_ok())) {
    return {Code::kInvalid, "prefix '" + prefix + "' is not made of a key's components and '/'"};
  }
  auto limits = limits_of(options);
  limits.body_limit = kMaxListPage;
  std::optional<std::string> next;
  while (true) {
    S3Request request{.method = "GET", .query = {{"list-type", "2"}, {"encoding-type", "url"}}};
    if (!(prefix_ + prefix).empty()) request.query.emplace_back("prefix", prefix_ + prefix);
    if (directories) request.query.emplace_back("delimiter", "/");
    if (next) request.query.emplace_back("continuation-token", *next);
    auto answer = client_.call(request, limits);
    // Whoever lists wants to know what is wrong, not that a bucket was asked.
    WFS_TRY(answer.is_ok() ? Status() : answer.status().with("list " + (prefix.empty() ? "all" : prefix)));
    auto page = WFS_TRY(parse_list(as_text(answer->body)).with("list " + prefix));
    WFS_TRY(visit(page));
    if (!page.next) return {};
    if (page.next == next) return {Code::kCorrupt, "list " + prefix + ": the store goes round in circles"};
    next = std::move(page.next);
  }
}

Result<std::vector<ListedObject>> S3Bucket::list(const std::string& prefix, const CallOptions& options) {
  std::vector<ListedObject> found;
  WFS_TRY(list_pages(prefix, false, options, [&](const S3ListPage& page) -> Status {
    for (const auto& object : page.objects) {
      if (!object.key.starts_with(prefix_ + prefix))
        return {Code::kCorrupt, "list " + prefix + ": a key outside of it"};
      // What others keep in the bucket may have any name; no key of ours does.
      auto key = ObjectKey::parse(std::string_view(object.key).substr(prefix_.size()));
      if (key.is_ok()) found.push_back({*std::move(key), {object.size, object.modified}});
    }
    return found.size() <= kMaxListed ? Status() : Status(Code::kInvalid, "over 5,000,000 objects in " + url_);
  }));
  return found;
}

Result<std::vector<std::string>> S3Bucket::list_prefixes(const std::string& prefix, const CallOptions& options) {
  std::vector<std::string> found;
  WFS_TRY(list_pages(prefix, true, options, [&](const S3ListPage& page) -> Status {
    for (const auto& name : page.prefixes) {
      auto whole = prefix_ + prefix;
      if (!name.starts_with(whole) || !name.ends_with('/')) {
        return {Code::kCorrupt, "list " + prefix + ": a prefix outside of it"};
      }
      auto leaf = name.substr(whole.size(), name.size() - whole.size() - 1);
      if (leaf.find('/') == leaf.npos && ObjectKey::parse(leaf).is_ok()) found.push_back(std::move(leaf));
    }
    return found.size() <= kMaxListed ? Status() : Status(Code::kInvalid, "over 5,000,000 names in " + url_);
  }));
  return found;
}

Result<WallTime> S3Bucket::server_time(const CallOptions& options) {
  auto answer = WFS_TRY(client_.call({.method = "HEAD", .any_answer = true}, limits_of(options)));
  auto date = parse_http_date(answer.head.find("date"));
  if (!date) return Status(Code::kCorrupt, "the store does not tell the time");
  return *date;
}

}  // namespace weightfs
