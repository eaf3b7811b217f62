// What libfuse hands to every callback.
#pragma once

#include "fs/interrupts.h"
#include "fs/kernel_channel.h"
#include "fs/request.h"

namespace weightfs {

class Dispatch;

struct SessionData {
  KernelChannel channel;
  Interrupts interrupts;
  InFlight in_flight;
  Dispatch* dispatch = nullptr;
};

}  // namespace weightfs
