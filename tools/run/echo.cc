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

sockaddr_in address_of(const std::string& text) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(kPort);
  ::inet_pton(AF_INET, text.c_str(), &a.sin_addr);
  return a;
}

// Child: sends back what comes, until killed.
[[noreturn]] void reflect(int network_fd, const std::string& address, int ready_fd) {
  const sockaddr_in own = address_of(address);
  const Descriptor fd(::setns(network_fd, CLONE_NEWNET) == 0 ? ::socket(AF_INET, SOCK_DGRAM, 0) : -1);
  if (!fd.open() || ::bind(fd.fd(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) ::_exit(1);
  write_all(ready_fd, "r", 1);
  for (;;) {
    std::int64_t stamp = 0;
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (::recvfrom(fd.fd(), &stamp, sizeof stamp, 0, reinterpret_cast<sockaddr*>(&peer), &length) == sizeof stamp) {
      ::sendto(fd.fd(), &stamp, sizeof stamp, 0, reinterpret_cast<sockaddr*>(&peer), length);
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
      const Descriptor fd(::socket(AF_INET, SOCK_DGRAM, 0));
      const sockaddr_in to = address_of(address);
      if (::connect(fd.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return strerror(errno);
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
