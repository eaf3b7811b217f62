#include "store/log/probe.h"

#include "store/base/digest.h"

namespace weightfs {
namespace {

Status read_only(const Bucket& bucket, std::string_view why) {
  return {Code::kReadOnly, bucket.url() + ": can only be read: the store " + std::string(why) +
                               ", so two writers could overwrite each other's versions"};
}

}  // namespace

Status probe_conditional_put(Bucket& bucket, const CallOptions& options) {
  auto key = ObjectKey::of(".weightfs/probe-" + random_id());
  auto content = to_bytes("weightfs asks whether If-None-Match is honoured\n");
  auto first = bucket.put(key, content, IfExists::kFail, options);
  if (first.code() == Code::kUnsupported) return read_only(bucket, "has no conditional writes");
  // kExists of a fresh random key: the answer to our own write got lost on its way, and it was repeated.
  if (!first.is_ok() && first.code() != Code::kExists) return std::move(first).with("probe of " + bucket.url());
  auto second = bucket.put(key, content, IfExists::kFail, options);
  bucket.remove(key, options).ignore("a scratch object of a few bytes");
  if (second.code() == Code::kExists) return {};
  if (second.is_ok()) return read_only(bucket, "ignores If-None-Match");
  return std::move(second).with("probe of " + bucket.url());
}

}  // namespace weightfs
