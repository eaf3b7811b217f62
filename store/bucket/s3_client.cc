#include "store/bucket/s3_client.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <random>
#include <thread>

#include "store/base/digest.h"
#include "store/bucket/s3_xml.h"

namespace weightfs {
namespace {

constexpr int kMaxRedirects = 3;
constexpr int kHurried = 2;     // attempts that are given up early; then the server may be as slow as it is
constexpr int kFewRetries = 2;  // of what is not worth more: answers that make no sense

bool is_one_of(std::string_view code, std::initializer_list<std::string_view> codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// libcurl's parser of URLs, so that what we check is what it will use.
class Url {
 public:
  Url() : handle_(curl_url()) { WFS_CHECK(handle_ != nullptr); }
  ~Url() { curl_url_cleanup(handle_); }
  Url(const Url&) = delete;
  Url& operator=(const Url&) = delete;
  // A second call resolves a relative reference.
  bool set(const std::string& text) { return curl_url_set(handle_, CURLUPART_URL, text.c_str(), 0) == CURLUE_OK; }
  std::string part(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(handle_, part, &text, flags) != CURLUE_OK) return "";
    std::string out = text;
    curl_free(text);
    return out;
  }

 private:
  CURLU* handle_;
};

Duration jittered(Duration duration) {
  thread_local std::minstd_rand random(std::random_device{}());
  return Duration(std::uniform_int_distribution<std::int64_t>(duration.count() / 2, duration.count())(random));
}

}  // namespace

Result<S3Endpoint> S3Endpoint::make(const std::string& url, const std::string& region, const std::string& bucket,
                                    const std::string& hub_namespace) {
  bool amazon = url.empty();
  bool good_region = !region.empty() && std::all_of(region.begin(), region.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!good_region) return Status(Code::kInvalid, "the region is not a legal name");
  Url parsed;
  const Status bad(Code::kInvalid, "the endpoint is no URL like https://host[:port][/path]");
  if (!parsed.set(amazon ? "https://s3." + region + ".amazonaws.com" + (region.starts_with("cn-") ? ".cn" : "")
                         : url)) {
    return bad;
  }
  auto scheme = parsed.part(CURLUPART_SCHEME), host = parsed.part(CURLUPART_HOST);
  if ((scheme != "https" && scheme != "http") || host.empty() || !parsed.part(CURLUPART_USER).empty() ||
      !parsed.part(CURLUPART_PASSWORD).empty() || !parsed.part(CURLUPART_QUERY).empty() ||
      !parsed.part(CURLUPART_FRAGMENT).empty()) {
    return bad;
  }
  auto path = parsed.part(CURLUPART_PATH);
  while (path.ends_with('/')) path.pop_back();
  if (!hub_namespace.empty()) path += "/" + uri_encode(hub_namespace, false);
  bool in_host = (host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")) &&
                 bucket.find_first_of("._") == bucket.npos && path.empty();
  if (in_host) {
    host = bucket + "." + host;
  } else {
    path += "/" + uri_encode(bucket, false);
  }
  // As libcurl writes the Host header: the port only when it is not the scheme's own.
  if (auto port = parsed.part(CURLUPART_PORT, CURLU_NO_DEFAULT_PORT); !port.empty()) host += ":" + port;
  return S3Endpoint{scheme == "https", scheme + "://" + host, host, path};
}

S3Client::S3Client(S3ClientOptions options)
    : options_(std::move(options)), http_(options_.http), keys_(options_.keys) {}

std::string S3Client::describe(const S3Request& request) const {
  return request.method + " " + (request.key.empty() ? "the bucket" : request.key);
}

HttpRequest S3Client::signed_request(const S3Request& request, HttpHeaders headers) {
  auto path = options_.endpoint.base_path + "/" + uri_encode(request.key, true);
  if (request.key.empty() && !options_.endpoint.base_path.empty()) path.pop_back();
  SignInput input{.method = request.method,
                  .host = options_.endpoint.host,
                  .path = path,
                  .query = canonical_query(request.query),
                  .headers = {},
                  .payload_hash = request.payload_hash.empty() ? Sha256::of({}).hex() : request.payload_hash,
                  .region = options_.region};
  S3Keys keys;
  {
    MutexLock lock(mutex_);
    keys = keys_;
    input.time = std::chrono::system_clock::now() + skew_;
  }
  for (auto& header : sign_v4(input, keys)) headers.push_back(std::move(header));
  auto url = options_.endpoint.origin + path + (input.query.empty() ? "" : "?" + input.query);
  return {request.method, url, std::move(headers), request.body, request.sink};
}

// One request and the redirects it meets. Only the first, to the store itself, carries credentials.
S3Client::Outcome S3Client::attempt(const S3Request& request, const HttpLimits& limits, bool hurried) {
  auto headers = request.headers;
  if (request.sink != nullptr) request.sink->start(headers);
  auto http_request = signed_request(request, headers);
  http_request.hurried = hurried;
  auto answer = http_.perform(http_request, limits);
  bool elsewhere = false;
  for (int hops = 0; answer.is_ok(); hops++) {
    int status = answer->head.status();
    auto location = std::string(answer->head.find("location"));
    bool redirect = status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
    if (!redirect || location.empty() || (request.method != "GET" && request.method != "HEAD")) break;
    if (hops == kMaxRedirects) return {Status(Code::kCorrupt, "too many redirects"), true};
    Url url;
    if (!url.set(http_request.url) || !url.set(location) || !url.part(CURLUPART_USER).empty()) {
      return {Status(Code::kCorrupt, "a malformed redirect"), true};
    }
    auto scheme = url.part(CURLUPART_SCHEME);
    if (scheme != "https" && (scheme != "http" || http_request.url.starts_with("https:"))) {
      return {Status(Code::kPermission, "a redirect from https to " + scheme + " is refused"), true};
    }
    elsewhere = true;
    http_request.url = url.part(CURLUPART_URL);
    http_request.headers = headers;
    answer = http_.perform(http_request, limits);
  }
  return {std::move(answer), elsewhere};
}

S3Client::Verdict S3Client::judge_error(const S3Request& request, const HttpAnswer& answer) const {
  int status = answer.head.status();
  auto code = parse_error_code(as_text(answer.body));
  auto text = "HTTP " + std::to_string(status) + (code.empty() ? "" : " " + code);
  auto fail = [&](Code what, const std::string& more = "") {
    return Verdict{Next::kFail, {what, text + (more.empty() ? "" : ": " + more)}, {}};
  };
  if (code == "RequestTimeTooSkewed") {
    return {Next::kResign, {Code::kPermission, text + ": this host's clock is wrong"}, {}};
  }
  // The answer to a HEAD has no body that would tell more.
  bool mute = request.method == "HEAD" && (status == 400 || status == 403);
  if (mute || is_one_of(code, {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})) {
    return {Next::kReload, {Code::kPermission, text}, {}};
  }
  if (code == "NotImplemented" || status == 501) return fail(Code::kUnsupported);
  if (status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504 ||
      is_one_of(code, {"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "OperationAborted"})) {
    auto after = parse_retry_after(answer.head.find("retry-after"), std::chrono::system_clock::now());
    return {Next::kRetry, {Code::kUnavailable, text}, after};
  }
  // Somebody writes or deletes the same key right now; asked again, the store knows who was first.
  if (status == 409 && request.conditional) return {Next::kRetryFew, {Code::kExists, text}, {}};
  if (code == "NoSuchBucket") return fail(Code::kInvalid, "there is no such bucket");
  if (is_one_of(code, {"QuotaExceeded", "InsufficientCapacity"}) || status == 507) return fail(Code::kNoSpace);
  switch (status) {
    case 404:
      return fail(Code::kNotFound);
    case 412:
      return fail(Code::kExists);
    case 401:
    case 403:
    case 405:
    case 407:
      return fail(Code::kPermission);
    case 416:
      return fail(Code::kCorrupt, "the object ends before the range does");
    case 301:
    case 307:
      return fail(Code::kInvalid, "the bucket is in another region: set AWS_REGION" +
                                      (answer.head.find("x-amz-bucket-region").empty()
                                           ? std::string()
                                           : "=" + std::string(answer.head.find("x-amz-bucket-region")).substr(0, 40)));
    default:
      // Those of gateways (520 to 530 …): what is behind them may have done it.
      if (status >= 500) return {Next::kRetryFew, {Code::kUnavailable, text}, {}};
      return fail(status < 400 ? Code::kCorrupt : Code::kInvalid);
  }
}

S3Client::Verdict S3Client::judge(const S3Request& request, const Outcome& outcome) const {
  if (!outcome.answer.is_ok()) {
    const auto& status = outcome.answer.status();
    switch (status.code()) {
      case Code::kUnavailable:
        return {Next::kRetry, status, {}};
      case Code::kCorrupt:
        return {Next::kRetryFew, status, {}};
      default:
        return {Next::kFail, status, {}};
    }
  }
  const auto& answer = *outcome.answer;
  int status = answer.head.status();
  if (request.any_answer && status < 500 && status != 429 && parse_http_date(answer.head.find("date"))) return {};
  bool good = status >= 200 && status < 300;
  // CompleteMultipartUpload may say 200 before it knows.
  if (good && request.sink == nullptr && !parse_error_code(as_text(answer.body)).empty()) {
    return judge_error(request, answer);
  }
  // The page of a gateway on the way, which the store never saw: no store answers a write with one.
  if (good && request.sink == nullptr && request.body != nullptr && !answer.body.empty() &&
      answer.head.find("content-type").find("/html") != std::string_view::npos) {
    return {Next::kRetryFew, {Code::kCorrupt, "HTTP " + std::to_string(status) + " with a page of HTML"}, {}};
  }
  if (good && answer.refused.is_ok()) {
    auto end = request.sink != nullptr ? request.sink->end() : Status();
    return end.is_ok() ? Verdict{} : Verdict{Next::kRetryFew, end, {}};
  }
  bool final = answer.refused.code() != Code::kCorrupt || (request.sink != nullptr && request.sink->is_final());
  if (good && final) return {Next::kFail, answer.refused, {}};
  // An error dressed up as a success, or data that was not asked for.
  if (good && parse_error_code(as_text(answer.body)).empty()) return {Next::kRetryFew, answer.refused, {}};
  if (outcome.elsewhere && status != 416) {
    return {
        Next::kRetryFew, {Code::kUnavailable, "HTTP " + std::to_string(status) + " from where the store sent us"}, {}};
  }
  return judge_error(request, answer);
}

void S3Client::take_date(const HttpAnswer& answer) {
  auto date = parse_http_date(answer.head.find("date"));
  if (!date) return;
  MutexLock lock(mutex_);
  skew_ = std::chrono::duration_cast<Duration>(*date - std::chrono::system_clock::now());
}

bool S3Client::reload() {
  if (!options_.reload_keys) return false;
  auto fresh = options_.reload_keys();
  if (!fresh.is_ok()) return false;
  MutexLock lock(mutex_);
  bool changed = !(*fresh == keys_);
  keys_ = std::move(fresh).value();
  return changed;
}

// In small steps, to notice a cancellation soon.
Status S3Client::sleep(Duration duration, const HttpLimits& limits) {
  auto until = std::chrono::steady_clock::now() + duration;
  while (true) {
    if (limits.cancelled()) return {Code::kInterrupted, "cancelled"};
    auto left = std::chrono::ceil<Duration>(until - std::chrono::steady_clock::now());
    if (left <= Duration(0)) return {};
    std::this_thread::sleep_for(std::min(left, Duration(50)));
  }
}

Result<HttpAnswer> S3Client::call(const S3Request& request, const HttpLimits& limits) {
  auto what = describe(request);
  bool resigned = false, reloaded = false;
  int failures = 0, few = 0, attempts = 0;
  std::string cause;
  while (true) {
    auto kept = request.sink != nullptr ? request.sink->kept() : 0;
    auto outcome = attempt(request, limits, request.sink != nullptr && attempts++ < kHurried);
    auto verdict = judge(request, outcome);
    spdlog::debug("{}: {}", what, verdict.next == Next::kDone ? "ok" : verdict.status.message());
    auto failed = verdict.status.with(what);
    if (!cause.empty() && std::chrono::steady_clock::now() >= limits.deadline) {
      failed = {failed.code(), failed.message() + " (before: " + cause + ")"};
    }
    cause = verdict.status.message();
    if (limits.cancelled() && verdict.next != Next::kDone) return Status(Code::kInterrupted, what + ": cancelled");
    switch (verdict.next) {
      case Next::kDone:
        return std::move(outcome.answer);
      case Next::kFail:
        return failed;
      case Next::kResign:
        if (std::exchange(resigned, true)) return failed;
        take_date(*outcome.answer);
        break;
      case Next::kReload:
        if (std::exchange(reloaded, true) || !reload()) return failed;
        break;
      case Next::kRetryFew:
        if (few++ == kFewRetries) return failed;
        break;
      case Next::kRetry:
        break;
    }
    // What brought bytes was no failure to back off from.
    bool progressed = request.sink != nullptr && request.sink->kept() > kept;
    failures = progressed ? 1 : failures + 1;
    auto longest = options_.first_backoff * (std::int64_t{1} << std::min(failures - 1, 20));
    auto wait = verdict.retry_after.value_or(jittered(std::min(longest, options_.longest_backoff)));
    if (std::chrono::steady_clock::now() + wait >= limits.deadline) {
      return verdict.retry_after ? failed.with("the store asks to wait longer than the deadline") : failed;
    }
    if (options_.counters != nullptr) options_.counters->retries++;
    spdlog::warn("retry {} in {:.1f}s: {}", failures, std::chrono::duration<double>(wait).count(), failed.message());
    WFS_TRY(sleep(wait, limits));
  }
}

}  // namespace weightfs
