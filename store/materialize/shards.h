// The order in which the files of a checkpoint are read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.h"

namespace weightfs {

class Versions;

// "model-00002-of-00004.safetensors" for "model-00001-of-00004.safetensors"; nullopt: not numbered so, or the last.
std::optional<std::string> next_numbered(std::string_view name);

// What follows `file` in a loader's order: the next name of an index (*.index.json) beside it, which is read for that
// when it is small; without one, the next number. nullopt: nothing does. Blocking, not on a thread of the materializer.
std::optional<std::uint32_t> next_shard(Versions& versions, const VersionPtr& version, std::uint32_t file,
                                        const CallOptions& options);

}  // namespace weightfs
