#include "store/bucket/http.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "store/base/threads.h"

namespace weightfs {
namespace {

// How often transfers are looked after: cancellation, deadlines, stalls.
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr long kBuffer = 256 << 10;
constexpr std::size_t kLimitedPiece = std::size_t{16} << 10;  // with a bandwidth limit
constexpr std::uint64_t kTelling = 256 << 10;                 // bytes of a transfer whose rate says something
constexpr std::size_t kRates = 16, kEnoughRates = 4;

// Safe from any thread (libcurl >= 7.84), and once only: nothing else in the program uses libcurl before.
void init_curl() {
  static std::once_flag once;
  std::call_once(once, [] { WFS_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

CURLM* new_multi() {
  init_curl();
  CURLM* multi = curl_multi_init();
  WFS_CHECK(multi != nullptr);
  curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, 64L);
  // One request at a time on each connection. Once a host has spoken HTTP/2, libcurl 7.88 also puts several requests on
  // its HTTP/1.1 connections and hands the answers to the wrong ones (curl issue 4885): wrong bytes with the right
  // headers.
  curl_multi_setopt(multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
  return multi;
}

// libcurl reads http_proxy in lower case only, against CGI's "Proxy:" header; a command has no such worry.
const char* upper_case_http_proxy(const std::string& url) {
  if (!url.starts_with("http://") || std::getenv("http_proxy") != nullptr) return nullptr;
  return std::getenv("HTTP_PROXY");
}

Status status_of_curl(CURLcode code, const char* detail) {
  std::string text = detail != nullptr && *detail != '\0' ? detail : curl_easy_strerror(code);
  switch (code) {
    case CURLE_URL_MALFORMAT:
      return {Code::kInvalid, text};
    case CURLE_UNSUPPORTED_PROTOCOL:  // URLs are checked before: "HTTP/0.9", as it calls what is no HTTP
    case CURLE_WEIRD_SERVER_REPLY:
      return {Code::kCorrupt, text};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return {Code::kPermission,
              "the server's certificate is not trusted (set AWS_CA_BUNDLE for a private CA): " + text};
    default:
      return {Code::kUnavailable, text};
  }
}

}  // namespace

bool HttpLimits::cancelled() const {
  return std::any_of(cancel.begin(), cancel.end(), [](const auto& token) { return token && token->cancelled(); });
}

// One attempt. Set up and waited for by its caller; everything else happens on the loop thread.
class HttpClient::Transfer {
 public:
  Transfer(const HttpRequest& request, const HttpLimits& limits, const HttpOptions& options, TokenBucket& rate)
      : request_(request), limits_(limits), options_(options), rate_(rate), easy_(curl_easy_init()) {
    WFS_CHECK(easy_ != nullptr);
    set_up();
  }
  ~Transfer() {
    curl_easy_cleanup(easy_);
    curl_slist_free_all(headers_);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CURL* easy() const { return easy_; }
  void begin() { progress_ = begun_ = std::chrono::steady_clock::now(); }
  // Bytes a second so far.
  double rate(SteadyTime now) const {
    return static_cast<double>(received_) / std::max(0.001, std::chrono::duration<double>(now - begun_).count());
  }
  std::uint64_t received_bytes() const { return received_; }

  // The loop has let go of it: `how` says how the transfer itself ended.
  void finish(Status how) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    how_ = std::move(how);
    done_ = true;
    changed_.notify_all();
  }
  Result<HttpAnswer> wait() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      while (!done_) changed_.wait(mutex_);
      if (!how_.is_ok()) return how_;
    }
    return std::move(answer_);
  }

  // What became of it, when libcurl says that it is over.
  Status outcome(CURLcode code) const {
    if (!failure_.is_ok()) return failure_;
    // An error answer is an answer, however much of its text has come.
    if (began_ && (!answer_.refused.is_ok() || answer_.head.status() >= 400)) return {};
    if (code != CURLE_OK) return status_of_curl(code, error_);
    if (!began_) return {Code::kCorrupt, "the answer is no HTTP"};
    return {};
  }

  // Not OK: it must end now.
  Status look_after(SteadyTime now, double usual_rate) {
    if (limits_.cancelled()) return {Code::kInterrupted, "cancelled"};
    if (now >= limits_.deadline) return {Code::kUnavailable, "the deadline passed"};
    if (paused_ || unsent_shrinks()) progress_ = now;
    if (now - progress_ >= options_.stall) return no_progress_for(options_.stall);
    return request_.hurried && !paused_ ? straggles(now, usual_rate) : Status();
  }
  static Status no_progress_for(std::chrono::duration<double> time) {
    return {Code::kUnavailable, "no progress for " + std::to_string(static_cast<int>(time.count() + 0.5)) + " s"};
  }
  Status straggles(SteadyTime now, double usual_rate) const {
    if (now - progress_ >= HttpRequest::kSilent) return no_progress_for(HttpRequest::kSilent);
    if (now - begun_ >= HttpRequest::kSlowAfter && rate(now) * HttpRequest::kSlower < usual_rate && rate_.unlimited()) {
      return {Code::kUnavailable, "much slower than others"};
    }
    return {};
  }
  bool paused() const { return paused_; }
  void go_on() {
    paused_ = false;
    curl_easy_pause(easy_, CURLPAUSE_CONT);  // may call on_write, which may pause again
  }

 private:
  template <typename T>
  void set(CURLoption option, T value) {
    WFS_CHECK(curl_easy_setopt(easy_, option, value) == CURLE_OK);
  }

  void set_up() {
    set(CURLOPT_PRIVATE, this);
    set(CURLOPT_ERRORBUFFER, error_);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_QUICK_EXIT, 1L);  // a slow resolver does not hold up a cancelled request
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_URL, request_.url.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_HTTP_VERSION, static_cast<long>(large_upload() ? CURL_HTTP_VERSION_1_1 : CURL_HTTP_VERSION_2TLS));
    set(CURLOPT_USERAGENT, "weightfs/" WEIGHTFS_VERSION);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::min(options_.connect, options_.stall).count()));
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    set(CURLOPT_BUFFERSIZE, rate_.unlimited() ? kBuffer : static_cast<long>(kLimitedPiece));
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
    if (!options_.ca_bundle.empty()) set(CURLOPT_CAINFO, options_.ca_bundle.c_str());
    if (const char* proxy = upper_case_http_proxy(request_.url)) set(CURLOPT_PROXY, proxy);
    set(CURLOPT_HEADERFUNCTION, &on_header);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &on_write);
    set(CURLOPT_WRITEDATA, this);
    set_method();
    add_header("Expect:");  // no waiting for 100 Continue
    for (const auto& [name, value] : request_.headers) add_header(name + ": " + value);
    set(CURLOPT_HTTPHEADER, headers_);
  }

  // libcurl 7.88 waits for each 64 KiB window of an HTTP/2 upload: 32 MiB took 19 s, 1.7 s by HTTP/1.1 (nghttpx,
  // loopback).
  bool large_upload() const { return request_.body != nullptr && request_.body->size() > (std::uint64_t{1} << 20); }

  void set_method() {
    if (request_.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else if (request_.method == "PUT" || request_.method == "POST") {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body != nullptr ? request_.body->size() : 0));
      set(CURLOPT_READFUNCTION, &on_read);
      set(CURLOPT_READDATA, this);
      set(CURLOPT_SEEKFUNCTION, &on_seek);
      set(CURLOPT_SEEKDATA, this);
    } else if (request_.method != "GET") {
      set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    }
  }

  void add_header(const std::string& line) {
    auto* more = curl_slist_append(headers_, line.c_str());
    WFS_CHECK(more != nullptr);
    headers_ = more;
  }

  // Callbacks of libcurl: no exception may pass through it.
  static std::size_t on_header(char* data, std::size_t, std::size_t size, void* self) noexcept {
    return static_cast<Transfer*>(self)->guard([&](Transfer& t) { return t.header({data, size}); }) ? size : size + 1;
  }
  static std::size_t on_write(char* data, std::size_t, std::size_t size, void* self) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    if (t.must_pause()) return CURL_WRITEFUNC_PAUSE;
    return t.guard([&](Transfer& transfer) { return transfer.received(as_bytes({data, size})); }) ? size : size + 1;
  }
  static std::size_t on_read(char* buffer, std::size_t, std::size_t size, void* self) noexcept {
    auto& t = *static_cast<Transfer*>(self);
    if (t.must_pause()) return CURL_READFUNC_PAUSE;
    if (!t.rate_.unlimited()) size = std::min(size, kLimitedPiece);
    std::size_t filled = 0;
    bool fine = t.guard([&](Transfer& transfer) {
      filled = transfer.send({reinterpret_cast<std::byte*>(buffer), size});
      return transfer.failure_.is_ok();
    });
    return fine ? filled : CURL_READFUNC_ABORT;
  }
  static int on_seek(void* self, curl_off_t offset, int origin) noexcept {
    if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Transfer*>(self)->sent_ = static_cast<std::uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }

  template <typename Do>
  bool guard(Do&& act) noexcept {
    try {
      progress_ = std::chrono::steady_clock::now();
      return act(*this);
    } catch (const std::bad_alloc&) {
      failure_ = Status(Code::kUnavailable, "");  // no memory for a text
      return false;
    }
  }

  bool must_pause() noexcept {
    if (rate_.wait(std::chrono::steady_clock::now()) <= Duration(0)) return false;
    paused_ = true;
    return true;
  }

  bool header(std::string_view line) {
    if (began_) return true;  // a trailer
    if (!answer_.head.add_line(line)) {
      failure_ = {Code::kCorrupt, "the answer's head is malformed or too long"};
      return false;
    }
    bool complete = line == "\r\n" || line == "\n";
    if (complete && answer_.head.status() >= 200) {
      began_ = true;
      if (request_.sink != nullptr) answer_.refused = request_.sink->begin(answer_.head);
      // What lies about its range may lie about its length: the next answer would begin in the middle of this one.
      bool lies = !answer_.refused.is_ok() && answer_.head.status() < 300;
      if (lies) set(CURLOPT_FORBID_REUSE, 1L);
    }
    return true;
  }

  bool received(ByteSpan bytes) {
    received_ += bytes.size();
    rate_.reserve(bytes.size(), progress_);
    if (options_.counters != nullptr) options_.counters->get_bytes += bytes.size();
    if (!began_) {
      failure_ = {Code::kCorrupt, "a body before a head"};
      return false;
    }
    if (request_.sink != nullptr && answer_.refused.is_ok()) {
      failure_ = request_.sink->write(bytes);
      return failure_.is_ok();
    }
    auto room = limits_.body_limit - answer_.body.size();
    auto kept = bytes.first(std::min(room, bytes.size()));
    answer_.body.insert(answer_.body.end(), kept.begin(), kept.end());
    if (kept.size() == bytes.size()) return true;
    // Endless: the transfer is cut here. What there is of an error's text will do.
    if (answer_.refused.is_ok() && answer_.head.status() < 400) failure_ = {Code::kCorrupt, "the answer is too long"};
    return false;
  }

  std::size_t send(MutableByteSpan out) {
    auto size = request_.body != nullptr ? request_.body->size() : 0;
    auto count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size - std::min(sent_, size)));
    if (count == 0) return 0;
    failure_ = request_.body->read(sent_, out.first(count));
    if (!failure_.is_ok()) return 0;
    sent_ += count;
    rate_.reserve(count, progress_);
    if (options_.counters != nullptr) options_.counters->put_bytes += count;
    return count;
  }

  // Bytes that we gave away may wait in the kernel's send buffer for long on a slow link.
  bool unsent_shrinks() {
    if (request_.body == nullptr || sent_ == 0) return false;
    curl_socket_t socket = CURL_SOCKET_BAD;
    if (curl_easy_getinfo(easy_, CURLINFO_ACTIVESOCKET, &socket) != CURLE_OK || socket == CURL_SOCKET_BAD) return false;
    int unsent = 0;
    if (::ioctl(socket, SIOCOUTQ, &unsent) != 0) return false;
    bool shrinks = unsent < unsent_;
    unsent_ = unsent;
    return shrinks;
  }

  const HttpRequest& request_;
  const HttpLimits& limits_;
  const HttpOptions& options_;
  TokenBucket& rate_;
  CURL* const easy_;
  curl_slist* headers_ = nullptr;
  char error_[CURL_ERROR_SIZE] = "";
  HttpAnswer answer_;
  bool began_ = false;  // the final head is complete
  bool paused_ = false;
  Status failure_;  // why a callback stopped the transfer
  std::uint64_t sent_ = 0;
  int unsent_ = 0;
  std::uint64_t received_ = 0;
  SteadyTime progress_, begun_;

  Mutex mutex_;
  CondVar changed_;
  bool done_ GUARDED_BY(mutex_) = false;
  Status how_ GUARDED_BY(mutex_);
};

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)),
      rate_(options_.bandwidth),
      multi_(new_multi()),
      thread_(start_thread("http", [this](const std::stop_token& stop) { loop(stop); })) {}

HttpClient::~HttpClient() {
  thread_.request_stop();
  curl_multi_wakeup(multi_);
  thread_.join();
  curl_multi_cleanup(multi_);
}

Result<HttpAnswer> HttpClient::perform(const HttpRequest& request, const HttpLimits& limits) {
  if (limits.cancelled()) return Status(Code::kInterrupted, "cancelled");
  if (std::chrono::steady_clock::now() >= limits.deadline) return Status(Code::kUnavailable, "the deadline passed");
  if (options_.counters != nullptr) options_.counters->requests++;
  auto transfer = std::make_shared<Transfer>(request, limits, options_, rate_);
  {
    MutexLock lock(mutex_);
    arrivals_.push_back(transfer);
  }
  curl_multi_wakeup(multi_);
  return transfer->wait();
}

void HttpClient::loop(const std::stop_token& stop) {
  std::list<std::shared_ptr<Transfer>> active;
  while (!stop.stop_requested()) {
    start_new(active);
    int running = 0;
    curl_multi_perform(multi_, &running);
    finish_done(active);
    look_after(active);
    Duration wait = active.empty() ? Duration(std::chrono::minutes(10)) : kTick;
    if (std::any_of(active.begin(), active.end(), [](const auto& t) { return t->paused(); })) {
      wait = std::clamp(rate_.wait(std::chrono::steady_clock::now()), Duration(1), kTick);
    }
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
  WFS_CHECK(active.empty());
}

void HttpClient::start_new(std::list<std::shared_ptr<Transfer>>& active) {
  std::deque<std::shared_ptr<Transfer>> fresh;
  {
    MutexLock lock(mutex_);
    fresh.swap(arrivals_);
  }
  for (auto& transfer : fresh) {
    transfer->begin();
    WFS_CHECK(curl_multi_add_handle(multi_, transfer->easy()) == CURLM_OK);
    active.push_back(std::move(transfer));
  }
}

void HttpClient::finish(Transfer& transfer, Status status) {
  curl_multi_remove_handle(multi_, transfer.easy());
  transfer.finish(std::move(status));
}

void HttpClient::finish_done(std::list<std::shared_ptr<Transfer>>& active) {
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    auto found = std::find_if(active.begin(), active.end(),
                              [&](const auto& transfer) { return transfer->easy() == message->easy_handle; });
    WFS_CHECK(found != active.end());
    auto transfer = *found;
    active.erase(found);
    if (transfer->received_bytes() >= kTelling) {
      rates_.push_back(transfer->rate(std::chrono::steady_clock::now()));
      if (rates_.size() > kRates) rates_.pop_front();
    }
    finish(*transfer, transfer->outcome(message->data.result));
  }
}

double HttpClient::usual_rate() const {
  if (rates_.size() < kEnoughRates) return 0;
  std::vector<double> sorted(rates_.begin(), rates_.end());
  auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

// Ends what must end, and lets those that wait for bandwidth go on: who waited longest first.
void HttpClient::look_after(std::list<std::shared_ptr<Transfer>>& active) {
  auto now = std::chrono::steady_clock::now();
  const auto usual = usual_rate();
  for (auto at = active.begin(); at != active.end();) {
    auto status = (*at)->look_after(now, usual);
    if (status.is_ok()) {
      ++at;
      continue;
    }
    auto transfer = *at;
    at = active.erase(at);
    finish(*transfer, std::move(status));
  }
  for (std::size_t i = 0; i < active.size(); i++) {
    if (rate_.wait(now) > Duration(0)) break;
    auto transfer = active.front();
    active.pop_front();
    active.push_back(transfer);
    if (transfer->paused()) transfer->go_on();
  }
}

}  // namespace weightfs
