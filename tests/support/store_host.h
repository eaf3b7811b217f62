// One host of a test: a Store with a cache of its own on objects in memory that hosts share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "store/store.h"
#include "tests/support/memory_bucket.h"
#include "tests/support/temp_dir.h"

namespace weightfs::testing {

struct StoreHost {
  explicit StoreHost(const MemoryBucket& shared, std::uint64_t memory = std::uint64_t{256} << 20) {
    StoreOptions options;
    options.bucket_url = "memory://test";
    options.cache_dir = dir / "cache";
    options.memory = memory;
    auto own = shared.another();
    bucket = own.get();
    options.use_bucket = std::move(own);
    auto opened = Store::open(std::move(options));
    if (!opened.is_ok()) throw std::runtime_error(opened.status().to_string());
    store = std::move(opened).value();
  }
  Result<PublishResult> try_publish(const std::string& source, const std::string& version,
                                    const ParentChoice& parent = {}, const CallOptions& options = {}) {
    return store->publish(source, *VersionRef::parse(version), parent, {}, options);
  }
  PublishResult publish(const std::string& source, const std::string& version, const ParentChoice& parent = {}) {
    auto result = try_publish(source, version, parent);
    if (!result.is_ok()) throw std::runtime_error(result.status().to_string());
    return std::move(result).value();
  }
  Status get(const std::string& version, const std::string& dest) {
    auto ref = *VersionRef::parse(version);
    auto found = WFS_TRY(store->find_version(ref.model, ref.version.str()));
    return store->get(found, dest);
  }
  std::uint64_t got() const { return store->counters().at("bucket_get_bytes"); }

  TempDir dir;
  MemoryBucket* bucket = nullptr;  // the store's own view: faults and counts are of this host alone
  std::unique_ptr<Store> store;
};

}  // namespace weightfs::testing
