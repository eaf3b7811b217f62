// A draft's files, on the disk to stay.
#pragma once

#include <string>

#include "store/base/status.h"

namespace weightfs {

// Flushes every file and directory below `root`, and `root`. Links are not followed. What changes meanwhile may or may
// not be flushed. Blocking (disk).
Status sync_tree(const std::string& root);

}  // namespace weightfs
