#include "tools/interrupt.h"

#include <csignal>

namespace weightfs::tools {
namespace {

// The token must outlive every thread that may look at it, also at exit.
const std::shared_ptr<CancelToken>& token() {
  static const auto* const kToken = new std::shared_ptr<CancelToken>(std::make_shared<CancelToken>());
  return *kToken;
}

extern "C" void on_signal(int) { token()->cancel(); }  // one relaxed store: safe in a handler

}  // namespace

void install_interrupt_handlers() {
  token();  // made now, not in the handler
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one kills; waits end with EINTR
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A shell starts background jobs with SIGINT ignored: leave that as it is.
    struct sigaction before = {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

std::shared_ptr<const CancelToken> interrupt_token() { return token(); }

bool interrupted() { return token()->cancelled(); }

}  // namespace weightfs::tools
