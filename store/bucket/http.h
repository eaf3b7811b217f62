// HTTP by libcurl: one attempt of one request at a time for each caller, many at once over few connections.
//
// One thread, owned by HttpClient, drives all transfers. Callers block in perform() until their attempt has ended; the
// loop touches their buffers only until then. Redirects and retries are the caller's business (s3_client).
// libcurl's global state is set up once in a process, by the first HttpClient.
#pragma once

#include <curl/curl.h>

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/base/mutex.h"
#include "store/bucket/bucket.h"
#include "store/bucket/http_head.h"
#include "store/bucket/token_bucket.h"

namespace weightfs {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// What a request sends. Read by the loop thread, from any offset, also again for a retry.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `out`, which lies inside the body.
  virtual Status read(std::uint64_t offset, MutableByteSpan out) const = 0;
};

// Takes the body of an answer. Called by the loop thread.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  // The head of the final answer has come. OK: what follows is data, for write(). An error: it is not; its first bytes
  // are kept as HttpAnswer::body, and the rest is dropped.
  virtual Status begin(const HttpHead& head) = 0;
  // An error ends the attempt with that error.
  virtual Status write(ByteSpan bytes) = 0;
};

struct HttpRequest {
  std::string method;
  std::string url;  // encoded
  HttpHeaders headers;
  const HttpBody* body = nullptr;  // PUT, POST; outlives perform()
  HttpSink* sink = nullptr;        // null: the body is kept as HttpAnswer::body whatever the status
  // The attempt ends with kUnavailable when it is a straggler: silent for kSilent, or after kSlowAfter at less than a
  // kSlower-th of the rate that others had lately. For what can be asked for again where it was cut.
  bool hurried = false;
  static constexpr Duration kSilent = std::chrono::seconds(3), kSlowAfter = std::chrono::seconds(2);
  static constexpr int kSlower = 8;
};

struct HttpAnswer {
  HttpHead head;
  Status refused;  // what the sink's begin() said
  Bytes body;      // at most body_limit; not what the sink took
};

// When an attempt must end early.
struct HttpLimits {
  SteadyTime deadline;
  std::vector<std::shared_ptr<const CancelToken>> cancel;
  std::size_t body_limit = std::size_t{64} << 10;  // kErrorBody; more of it is dropped (with a sink), or kCorrupt
  bool cancelled() const;
};

struct HttpOptions {
  Duration stall = std::chrono::seconds(30);
  Duration connect = std::chrono::seconds(10);  // at most `stall` is used
  std::uint64_t bandwidth = 0;
  std::string ca_bundle;               // a file of PEM certificates, "": the system's
  BucketCounters* counters = nullptr;  // outlives the client
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();  // no perform() may be running
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // OK: an answer came whole, whatever its status. kUnavailable: the attempt failed on the way (connection, reset, cut,
  // stall, deadline); trying again may help. kPermission: the server's certificate is not trusted. kInvalid: the URL.
  // kInterrupted: cancelled. Else what the body or sink said, or kCorrupt: the answer is no HTTP.
  Result<HttpAnswer> perform(const HttpRequest& request, const HttpLimits& limits) EXCLUDES(mutex_);

 private:
  class Transfer;
  void loop(const std::stop_token& stop);
  void start_new(std::list<std::shared_ptr<Transfer>>& active) EXCLUDES(mutex_);
  void finish_done(std::list<std::shared_ptr<Transfer>>& active);
  void look_after(std::list<std::shared_ptr<Transfer>>& active);
  void finish(Transfer& transfer, Status status);
  double usual_rate() const;  // bytes a second of transfers that ended lately; 0: too few of them

  const HttpOptions options_;
  TokenBucket rate_;
  CURLM* const multi_;
  std::deque<double> rates_;  // the loop's own
  Mutex mutex_;
  std::deque<std::shared_ptr<Transfer>> arrivals_ GUARDED_BY(mutex_);
  std::jthread thread_;  // the loop
};

}  // namespace weightfs
