// A link between clients and a server on this machine: one rate and one delay for all connections together, each
// direction on its own.
//
//   weightfs_bench_link SERVER_PORT BYTES_PER_SECOND ROUND_TRIP_MS
//
// Listens on 127.0.0.1 and prints one line of JSON with its port. Each line on standard input is answered by one with
// the counters since the last line "reset"; "link BYTES_PER_SECOND ROUND_TRIP_MS" changes the link. Ends with its
// standard input. Rate 0: no limit. A connection's first bytes wait a round trip for the handshake.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <list>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kPiece = 64 << 10;
constexpr std::size_t kQueued = 8 << 20;  // of one connection: more than rate x delay of any link worth emulating
constexpr Seconds kAhead{0.004};          // how much of its future the link sells; more would be unfair to others

Time after(Time from, double seconds) { return from + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); }

struct Lane {  // one direction of the link
  Time free_at = Clock::now();
  std::uint64_t bytes = 0;
};

struct Link {
  double rate = 0, delay = 0;  // bytes a second; seconds one way
  Lane up, down;
  std::uint64_t requests = 0, connections = 0;
};

struct Piece {
  std::vector<char> bytes;
  std::size_t sent = 0;
  Time due;
};

struct Flow {  // one direction of a connection
  int from, to;
  Lane* lane;
  Time not_before;
  std::deque<Piece> queue;
  bool open = true, closed_behind = false;
  std::size_t queued = 0;
};

struct Connection {
  int client, server;
  Flow up, down;
  bool dead = false;
};

int fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void prepare(int fd) {
  int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool is_request(const char* bytes, std::size_t size) {
  for (const char* method : {"GET ", "PUT ", "POST ", "HEAD ", "DELETE "}) {
    if (size >= std::strlen(method) && std::memcmp(bytes, method, std::strlen(method)) == 0) return true;
  }
  return false;
}

// Whether this flow may take more from its sender now.
bool may_read(const Link& link, const Flow& flow, Time now) {
  return flow.open && flow.queued < kQueued && (link.rate == 0 || flow.lane->free_at < after(now, kAhead.count()));
}

void take(Link& link, Flow& flow, Time now, bool& dead) {
  Piece piece;
  piece.bytes.resize(kPiece);
  auto got = ::read(flow.from, piece.bytes.data(), kPiece);
  if (got < 0) {
    if (errno != EAGAIN && errno != EINTR) dead = true;
    return;
  }
  if (got == 0) {
    flow.open = false;
    return;
  }
  piece.bytes.resize(static_cast<std::size_t>(got));
  auto& lane = *flow.lane;
  lane.free_at = std::max(lane.free_at, now);
  if (link.rate > 0) lane.free_at = after(lane.free_at, static_cast<double>(got) / link.rate);
  piece.due = std::max(after(lane.free_at, link.delay), flow.not_before);
  lane.bytes += static_cast<std::uint64_t>(got);
  if (&lane == &link.up && is_request(piece.bytes.data(), piece.bytes.size())) link.requests++;
  flow.queued += piece.bytes.size();
  flow.queue.push_back(std::move(piece));
}

void give(Flow& flow, Time now, bool& dead) {
  while (!flow.queue.empty() && flow.queue.front().due <= now) {
    auto& piece = flow.queue.front();
    auto sent = ::send(flow.to, piece.bytes.data() + piece.sent, piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) dead = true;
      return;
    }
    piece.sent += static_cast<std::size_t>(sent);
    if (piece.sent < piece.bytes.size()) return;
    flow.queued -= piece.bytes.size();
    flow.queue.pop_front();
  }
  if (flow.queue.empty() && !flow.open && !flow.closed_behind) {
    ::shutdown(flow.to, SHUT_WR);
    flow.closed_behind = true;
  }
}

void accept_all(Link& link, int listener, int server_port, std::list<Connection>& connections) {
  while (true) {
    int client = ::accept(listener, nullptr, nullptr);
    if (client < 0) return;
    int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(server_port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (server < 0 || ::connect(server, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) {
      ::close(client);
      if (server >= 0) ::close(server);
      continue;
    }
    prepare(client);
    prepare(server);
    link.connections++;
    Connection one{client, server, {}, {}};
    one.up = Flow{client, server, &link.up, after(Clock::now(), 2 * link.delay), {}};
    one.down = Flow{server, client, &link.down, Clock::now(), {}};
    connections.push_back(std::move(one));
  }
}

// One line of standard input. False: it has ended.
bool answer(Link& link, std::string& input) {
  char buffer[256];
  auto got = ::read(0, buffer, sizeof(buffer));
  if (got <= 0) return false;
  input.append(buffer, static_cast<std::size_t>(got));
  for (std::size_t end; (end = input.find('\n')) != std::string::npos; input.erase(0, end + 1)) {
    auto line = input.substr(0, end);
    std::printf("{\"received\": %llu, \"sent\": %llu, \"requests\": %llu, \"connections\": %llu}\n",
                static_cast<unsigned long long>(link.down.bytes), static_cast<unsigned long long>(link.up.bytes),
                static_cast<unsigned long long>(link.requests), static_cast<unsigned long long>(link.connections));
    std::fflush(stdout);
    double rate = 0, trip = 0;
    if (std::sscanf(line.c_str(), "link %lf %lf", &rate, &trip) == 2) {
      link.rate = rate;
      link.delay = trip / 2000;
    } else if (line == "reset") {
      link.down.bytes = link.up.bytes = link.requests = link.connections = 0;
    }
  }
  return true;
}

void serve(Link& link, int listener, int server_port) {
  std::list<Connection> connections;
  std::string input;
  std::vector<pollfd> fds;
  while (true) {
    auto now = Clock::now();
    auto next = after(now, 1.0);
    fds.assign({{0, POLLIN, 0}, {listener, POLLIN, 0}});
    for (auto& one : connections) {
      for (int end = 0; end < 2; end++) {
        auto& in = end == 0 ? one.up : one.down;   // read from this end
        auto& out = end == 0 ? one.down : one.up;  // written to this end
        short events = 0;
        if (may_read(link, in, now)) {
          events |= POLLIN;
        } else if (in.open && in.queued < kQueued) {
          next = std::min(next, after(in.lane->free_at, -kAhead.count()));
        }
        if (!out.queue.empty()) {
          if (out.queue.front().due <= now) {
            events |= POLLOUT;
          } else {
            next = std::min(next, out.queue.front().due);
          }
        }
        fds.push_back({events != 0 ? in.from : -1, events, 0});  // else a hang-up would wake us all the time
      }
    }
    auto wait = std::max(Clock::duration(0), next - now);
    timespec timeout{static_cast<time_t>(wait / std::chrono::seconds(1)),
                     static_cast<long>(std::chrono::nanoseconds(wait % std::chrono::seconds(1)).count())};
    if (::ppoll(fds.data(), fds.size(), &timeout, nullptr) < 0 && errno != EINTR) fail("ppoll");
    if (fds[0].revents != 0 && !answer(link, input)) return;
    now = Clock::now();
    std::size_t at = 2;
    for (auto& one : connections) {
      if ((fds[at].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && may_read(link, one.up, now)) {
        take(link, one.up, now, one.dead);
      }
      if ((fds[at + 1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && may_read(link, one.down, now)) {
        take(link, one.down, now, one.dead);
      }
      at += 2;
      give(one.up, now, one.dead);
      give(one.down, now, one.dead);
      if (one.up.closed_behind && one.down.closed_behind) one.dead = true;
    }
    if (fds[1].revents != 0) accept_all(link, listener, server_port, connections);
    for (auto& one : connections) {
      if (!one.dead) continue;
      ::close(one.client);
      ::close(one.server);
    }
    connections.remove_if([](const Connection& one) { return one.dead; });
    if (!connections.empty()) connections.splice(connections.end(), connections, connections.begin());  // turns
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: weightfs_bench_link SERVER_PORT BYTES_PER_SECOND ROUND_TRIP_MS\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  Link link;
  link.rate = std::atof(argv[2]);
  link.delay = std::atof(argv[3]) / 2000;
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(here);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&here), size) != 0 || ::listen(listener, 512) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &size) != 0) {
    return fail("listen");
  }
  std::printf("{\"port\": %d}\n", ntohs(here.sin_port));
  std::fflush(stdout);
  serve(link, listener, std::atoi(argv[1]));
  return 0;
}
