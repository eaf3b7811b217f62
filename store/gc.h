// Removes versions, and deletes what no version needs. store/log/gc.h has the rules.
#pragma once

#include <vector>

#include "store/log/gc.h"
#include "store/store.h"

namespace weightfs {

// Blocking. Removes the live version of that name for all, and frees its bytes in the cache. kNotFound: no such
// version.
Status remove_version(Store& store, const VersionRef& version, const CallOptions& options = {});

struct ModelGc {
  ModelName model;
  Result<GcResult> result;
};
// Blocking. gc of every model of the bucket: what one model's damage prevents does not prevent the others'. What was
// sent for a model that has no version yet is left alone.
Result<std::vector<ModelGc>> gc_bucket(Store& store, const GcOptions& options = {});

}  // namespace weightfs
