// Whether a store can be written to at all: everything rests on conditional writes.
#pragma once

#include "store/bucket/bucket.h"

namespace weightfs {

// Puts a scratch key (.weightfs/probe-<random>) twice on the condition that it is not there; the second must be
// refused. Removes it. Asked once before a mount or command writes for the first time.
// kReadOnly, naming the store: it takes the condition for nothing, or does not have it.
// kPermission: these credentials may not write. kUnavailable, kInterrupted: not known.
Status probe_conditional_put(Bucket& bucket, const CallOptions& options = {});

}  // namespace weightfs
