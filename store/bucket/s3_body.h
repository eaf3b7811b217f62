// What S3 requests send and receive: spans of memory and of files.
#pragma once

#include "store/base/posix.h"
#include "store/bucket/s3_client.h"

namespace weightfs {

class SpanBody final : public HttpBody {
 public:
  explicit SpanBody(ByteSpan bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return {};
  }

 private:
  ByteSpan bytes_;
};

class FileBody final : public HttpBody {
 public:
  FileBody(int fd, ByteRange range) : fd_(fd), range_(range) {}
  std::uint64_t size() const override { return range_.length; }
  Status read(std::uint64_t offset, MutableByteSpan out) const override {
    auto status = posix::pread_exact(fd_, range_.offset + offset, out);
    // The caller's file, not the store's answer; trying again would not help.
    return status.is_ok() ? status : Status(Code::kIo, "the file to upload: " + status.message());
  }

 private:
  int fd_;
  ByteRange range_;
};

// Not what a store says of an object: an error, or the page of some gateway on the way.
inline bool is_no_data(const HttpHead& head) {
  auto type = head.find("content-type");
  return type.find("/xml") != type.npos || type.find("/html") != type.npos;
}

// A range into the caller's buffer. What has come stays when an attempt is cut, and only the rest is asked for again.
class RangeSink final : public S3Sink {
 public:
  RangeSink(ByteRange range, MutableByteSpan out) : range_(range), out_(out) {}

  void start(HttpHeaders& headers) override {
    auto rest = wanted();
    headers.emplace_back(
        "Range", "bytes=" + std::to_string(rest.offset) + "-" + std::to_string(rest.offset + (rest.length - 1)));
  }
  Status begin(const HttpHead& head) override {
    if (head.status() != 200 && head.status() != 206) return {Code::kCorrupt, "no data"};
    if (is_no_data(head)) return {Code::kCorrupt, "the answer is no object"};
    auto rest = wanted();
    auto length = head.content_length();
    if (head.status() == 200) {
      // Fine where the range is the whole object; else Range was ignored, and what comes is not what was asked for.
      bool whole = rest.offset == 0 && length == rest.length && head.find("content-range").empty();
      return whole ? Status() : Status(Code::kCorrupt, "the whole object, not the range, was sent");
    }
    auto sent = parse_content_range(head.find("content-range"));
    if (sent && sent->range.offset == rest.offset && sent->range.length < rest.length &&
        (!length || *length == sent->range.length) && sent->total == sent->range.end()) {
      ends_early_ = true;
      return {Code::kCorrupt, "the object ends before the range does"};
    }
    if (!sent || sent->range != rest || (length && *length != rest.length)) {
      return {Code::kCorrupt, "another range than asked for was sent"};
    }
    return {};
  }
  Status write(ByteSpan bytes) override {
    if (bytes.size() > out_.size() - received_) return {Code::kCorrupt, "more bytes than asked for were sent"};
    std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<std::ptrdiff_t>(received_));
    received_ += bytes.size();
    return {};
  }
  Status end() override {
    return received_ == out_.size() ? Status() : Status(Code::kCorrupt, "fewer bytes than announced were sent");
  }
  std::uint64_t kept() const override { return received_; }
  bool is_final() const override { return ends_early_; }

 private:
  ByteRange wanted() const { return {range_.offset + received_, range_.length - received_}; }
  const ByteRange range_;
  const MutableByteSpan out_;
  std::size_t received_ = 0;
  bool ends_early_ = false;
};

// A whole object of at most `limit` bytes.
class WholeSink final : public S3Sink {
 public:
  explicit WholeSink(std::uint64_t limit) : limit_(limit) {}

  void start(HttpHeaders&) override { bytes_.clear(); }
  Status begin(const HttpHead& head) override {
    if (head.status() != 200) return {Code::kCorrupt, "no data"};
    if (is_no_data(head)) return {Code::kCorrupt, "the answer is no object"};
    if (head.content_length().value_or(0) > limit_) return too_long();
    return {};
  }
  Status write(ByteSpan bytes) override {
    if (bytes.size() > limit_ - bytes_.size()) return too_long();
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }
  Status end() override { return {}; }
  Bytes take() { return std::move(bytes_); }

 private:
  Status too_long() const { return {Code::kInvalid, "longer than " + std::to_string(limit_) + " bytes"}; }
  const std::uint64_t limit_;
  Bytes bytes_;
};

}  // namespace weightfs
