// One request to an S3 store, with everything around it: address, signature, redirects, retries, errors as a Status.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "store/bucket/http.h"
#include "store/bucket/s3_sign.h"

namespace weightfs {

// Where a bucket's requests go.
struct S3Endpoint {
  bool tls = false;
  std::string origin;     // "https://host[:port]"
  std::string host;       // "host[:port]", as the Host header has it
  std::string base_path;  // encoded; "" or "/bucket" or "/namespace/bucket"

  // `url` "" means Amazon's for `region`: then, and for other hosts of Amazon's, a bucket whose name has no dot is part
  // of the host (virtual-host style); else it is part of the path. kInvalid: no http(s) URL, or one with a user or
  // query.
  static Result<S3Endpoint> make(const std::string& url, const std::string& region, const std::string& bucket,
                                 const std::string& hub_namespace = "");
};

// Takes a GET's data, over several attempts.
class S3Sink : public HttpSink {
 public:
  // Before each attempt: forgets what cannot be kept of the one before, and adds its headers.
  virtual void start(HttpHeaders& headers) = 0;
  // The attempt has ended well, says HTTP. kCorrupt: not all has come.
  virtual Status end() = 0;
  // Whether what begin() refused is the plain truth about the object, so that asking again is pointless.
  virtual bool is_final() const { return false; }
  // Bytes kept from earlier attempts.
  virtual std::uint64_t kept() const { return 0; }
};

struct S3Request {
  std::string method;
  std::string key;  // with the bucket's prefix; "": the bucket itself
  StringPairs query;
  HttpHeaders headers;
  const HttpBody* body = nullptr;
  std::string payload_hash;  // "": no body
  S3Sink* sink = nullptr;
  std::size_t body_limit = std::size_t{64} << 10;
  bool conditional = false;  // a PUT with If-None-Match
  bool any_answer = false;   // an error with a Date will do
};

struct S3ClientOptions {
  S3Endpoint endpoint;
  std::string region;
  S3Keys keys;
  std::function<Result<S3Keys>()>
      reload_keys;  // asked once for a call that the store refuses for its keys; may be null
  Duration first_backoff = std::chrono::milliseconds(100);
  Duration longest_backoff = std::chrono::seconds(10);
  HttpOptions http;
  BucketCounters* counters = nullptr;
};

class S3Client {
 public:
  explicit S3Client(S3ClientOptions options);

  // OK: an answer 2xx whose body was taken (any with any_answer). Else, besides the errors of every Bucket call:
  // kNotFound, kExists (412, 409), kUnsupported (NotImplemented), kNoSpace (quota), kInvalid (what the store finds
  // malformed; also: there is no such bucket, or it is in another region).
  Result<HttpAnswer> call(const S3Request& request, const HttpLimits& limits) EXCLUDES(mutex_);

  bool tls() const { return options_.endpoint.tls; }

 private:
  enum class Next : std::uint8_t { kDone, kFail, kRetry, kRetryFew, kResign, kReload };
  struct Verdict {
    Next next = Next::kDone;
    Status status;
    std::optional<Duration> retry_after;
  };
  // An answer, and whether it is from another host than the store.
  struct Outcome {
    Result<HttpAnswer> answer;
    bool elsewhere = false;
  };
  HttpRequest signed_request(const S3Request& request, HttpHeaders headers) EXCLUDES(mutex_);
  Outcome attempt(const S3Request& request, const HttpLimits& limits, bool hurried) EXCLUDES(mutex_);
  Verdict judge(const S3Request& request, const Outcome& outcome) const;
  Verdict judge_error(const S3Request& request, const HttpAnswer& answer) const;
  void take_date(const HttpAnswer& answer) EXCLUDES(mutex_);
  bool reload() EXCLUDES(mutex_);
  static Status sleep(Duration duration, const HttpLimits& limits);
  std::string describe(const S3Request& request) const;

  const S3ClientOptions options_;
  HttpClient http_;
  Mutex mutex_;
  S3Keys keys_ GUARDED_BY(mutex_);
  Duration skew_ GUARDED_BY(mutex_){0};  // the server's clock minus ours, once it complained
};

}  // namespace weightfs
