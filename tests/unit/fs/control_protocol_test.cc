#include "fs/control_protocol.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/support/status_matchers.h"

namespace weightfs::control {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    daemon = Fd(ends[0]);
    client = Fd(ends[1]);
  }
  Fd daemon, client;
};

// A stopped client's socket is full soon.
TEST(ControlProtocol, ProgressIsLeftOutWhereNobodyReadsAndNoLineIsCut) {
  Pair pair;
  constexpr int kLines = 20'000;
  for (int i = 0; i < kLines; i++) {
    send_line_if_read(pair.daemon.get(), {{"progress", {{"done", i}, {"total", kLines}}}});
  }
  pair.daemon = Fd();
  LineReader lines(pair.client.get());
  int read = 0;
  while (true) {
    auto line = lines.next();
    if (!line.is_ok()) break;
    EXPECT_EQ(Json::parse(*line)["progress"]["done"], read++);
  }
  EXPECT_GT(read, 10);
  EXPECT_LT(read, kLines);
}

TEST(ControlProtocol, AnAnswerThatNobodyReadsFailsInTime) {
  Pair pair;
  ASSERT_OK(limit_sends(pair.daemon.get(), std::chrono::seconds(1)));
  EXPECT_FALSE(send_line(pair.daemon.get(), {{"text", std::string(4 << 20, 'x')}}).is_ok());
}

}  // namespace
}  // namespace weightfs::control
