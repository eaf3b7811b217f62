// Checks that everything the commit logs reach is in the bucket and sound: log entries and their chain of digests, the
// newest snapshot, manifests, indexes, pages, frames. Reads all of it from the bucket; only bases that decoding needs
// come through the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/store.h"

namespace weightfs {

struct VerifyScope {
  std::optional<ModelName> model;  // none: every model
  std::string version;             // of it; "": all, and the log itself; "latest"
  bool deep = false;               // also decode every frame and check the digests of the plain bytes
};

struct Damage {
  std::string object;   // key in the bucket, or "MODEL/VERSION", or a file of the cache
  std::string problem;  // "digest mismatch", "missing", …
  friend auto operator<=>(const Damage&, const Damage&) = default;
};

struct VerifyReport {
  std::uint64_t models = 0, versions = 0, edges = 0;
  std::uint64_t objects = 0;      // read whole or in part
  std::uint64_t bytes = 0;        // read and checked
  std::uint64_t plain_bytes = 0;  // decoded and checked
  std::vector<Damage> damaged;    // sorted
};

// Blocking. What is damaged or missing is in the report, and does not end the walk; an error is returned only when the
// walk itself cannot go on: kUnavailable, kPermission, kInterrupted, kNotFound for a scope that is not there.
// With `deep`, open the store on an empty cache: what is cached is not read from the bucket.
Result<VerifyReport> verify(Store& store, const VerifyScope& scope, const Progress& progress = {},
                            const CallOptions& options = {});

// Blocking; disk only. Reads every block that the cache has of the live versions as they are known, and drops those
// whose digest is wrong, so that they are fetched again when they are wanted. The report has those (bytes: checked).
Result<VerifyReport> verify_cache(Store& store, const VerifyScope& scope, const Progress& progress = {},
                                  const CallOptions& options = {});

}  // namespace weightfs
