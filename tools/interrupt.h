// Ctrl-C and TERM: the first asks the running call to stop, the second ends the process.
#pragma once

#include <memory>

#include "store/bucket/bucket.h"

namespace weightfs::tools {

// Installs the handlers once; REQUIRES: called before other threads start.
void install_interrupt_handlers();

// Cancelled by the first signal. The same token for the whole process.
std::shared_ptr<const CancelToken> interrupt_token();

bool interrupted();

}  // namespace weightfs::tools
