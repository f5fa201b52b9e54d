#include "tools/run/echo.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "tools/run/process.h"

namespace canarynet::run {
namespace {

constexpr int kPort = 29399;
constexpr int kProbes = 10;

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in);

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Endpoint endpoint_of(const std::string& text) {
  Endpoint e;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&e.address);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&e.address);
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(kPort);
    e.length = sizeof *v6;
  } else {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(kPort);
    ::inet_pton(AF_INET, text.c_str(), &v4->sin_addr);
  }
  return e;
}

Descriptor datagrams_to(const Endpoint& e) { return Descriptor(::socket(e.address.ss_family, SOCK_DGRAM, 0)); }

// Child: sends back everything that comes, until killed.
[[noreturn]] void reflect(int network_fd, const std::string& address, int ready_fd) {
  const Endpoint own = endpoint_of(address);
  const Descriptor fd = ::setns(network_fd, CLONE_NEWNET) == 0 ? datagrams_to(own) : Descriptor();
  if (!fd.open() || ::bind(fd.fd(), own.raw(), own.length) != 0) ::_exit(1);
  write_all(ready_fd, "r", 1);
  for (;;) {
    std::int64_t stamp = 0;
    Endpoint peer;
    peer.length = sizeof peer.address;
    auto* const from = reinterpret_cast<sockaddr*>(&peer.address);
    if (::recvfrom(fd.fd(), &stamp, sizeof stamp, 0, from, &peer.length) == sizeof stamp) {
      ::sendto(fd.fd(), &stamp, sizeof stamp, 0, from, peer.length);
    }
  }
}

// Sends `count` stamps 2 ms apart and gathers the round trips of those that come back.
std::vector<std::int64_t> probe(int fd, int count, Nanos patience) {
  const SystemClock clock;
  std::vector<std::int64_t> times;
  Nanos next = clock.now(), last = next;
  int sent = 0;
  while (static_cast<int>(times.size()) < count) {
    const Nanos now = clock.now();
    if (sent < count && now >= next) {
      const std::int64_t stamp = clock.now().count;
      ::send(fd, &stamp, sizeof stamp, 0);
      ++sent;
      next = now + 2_ms;
      last = now;
    }
    if (sent == count && now - last > patience) break;
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 1) <= 0) continue;
    std::int64_t stamp = 0;
    if (::recv(fd, &stamp, sizeof stamp, MSG_DONTWAIT) == sizeof stamp) times.push_back(clock.now().count - stamp);
  }
  return times;
}

}  // namespace

Result<RoundTrip> measure_round_trip(int from_network_fd, int to_network_fd, const std::string& address,
                                     Nanos expected) {
  auto ready = make_pipe();
  if (!ready.ok()) return ready.status();
  const pid_t reflector = ::fork();
  if (reflector < 0) return system_error("fork", errno);
  if (reflector == 0) {
    become_child();
    reflect(to_network_fd, address, ready.value().write.fd());
  }
  ready.value().write.close();
  char byte = 0;
  RoundTrip result;
  Status status(CANARY_SYSTEM, "the echo could not start");
  if (read_all(ready.value().read.fd(), &byte, 1)) {
    auto results = make_pipe();
    status = !results.ok() ? results.status() : run_in_network(from_network_fd, [&]() -> std::string {
      const Endpoint to = endpoint_of(address);
      const Descriptor fd = datagrams_to(to);
      if (::connect(fd.fd(), to.raw(), to.length) != 0) return strerror(errno);
      const Nanos patience = expected * 2 + 500_ms;
      for (int attempt = 0; attempt < 5 && probe(fd.fd(), 1, patience).empty(); ++attempt) {
      }
      auto times = probe(fd.fd(), kProbes, patience);
      if (times.empty()) return "no echo came back";
      std::sort(times.begin(), times.end());
      const RoundTrip r{{times.front()}, {times[times.size() / 2]}};
      return write_all(results.value().write.fd(), &r, sizeof r) ? "" : "pipe";
    });
    if (status.ok()) read_all(results.value().read.fd(), &result, sizeof result);
  }
  ::kill(reflector, SIGKILL);
  ::waitpid(reflector, nullptr, 0);
  if (!status.ok()) return status.wrap("round trip to " + address);
  return result;
}

}  // namespace canarynet::run
