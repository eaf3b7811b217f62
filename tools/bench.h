// What a delta between two checkpoints would cost, and how fast it is made and undone.
#pragma once

#include <cstdint>
#include <string>

#include "store/store.h"

namespace weightfs::tools {

struct BenchResult {
  std::uint64_t plain_bytes = 0;       // of the new one
  std::uint64_t sent_bytes = 0;        // what publish would send: packs, manifest, log entry
  std::uint64_t changed_elements = 0;  // in tensors that have a base
  std::uint64_t total_elements = 0;
  std::uint64_t zstd_bytes = 0;  // of the new one's blocks, level 3, without a base
  // Plain target bytes a second and thread.
  double encode = 0, decode = 0, memcpy = 0, zstd_encode = 0, zstd_decode = 0;
  double seconds = 0;
};

// Blocking. `old_path` and `new_path` are files or directories. Every frame is decoded and compared: kCorrupt if one is
// wrong, which would be a bug of ours. Memory: about 200 MiB a thread.
Result<BenchResult> bench_delta(const std::string& old_path, const std::string& new_path, std::size_t threads,
                                const Progress& progress, const CallOptions& options);

}  // namespace weightfs::tools
