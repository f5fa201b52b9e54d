// run_probe: sends traffic through canary-run's links for its tests.
//
//   run_probe sink PORT                     takes TCP connections, answers each at its end with the rate it saw
//   run_probe blast ADDRESS PORT MS [DEV]   sends for MS ms; prints the rate the sink saw, in Mbit/s
//   run_probe reach PORT DEV ADDRESS...     prints the addresses that accept a connection over DEV
//   run_probe count PORT MS READY SENT      creates the file READY, counts UDP datagrams until the file SENT is there
//                                           and none came for MS ms; prints the count
//   run_probe send ADDRESS PORT COUNT       sends UDP datagrams, 20 per ms
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace {

double seconds() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in);

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&address); }
  int family() const { return address.ss_family; }
};

Endpoint endpoint_of(const char* text, int port) {
  Endpoint e;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&e.address);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&e.address);
  const auto number = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = number;
    e.length = sizeof *v6;
  } else {
    v4->sin_family = AF_INET;
    v4->sin_port = number;
    ::inet_pton(AF_INET, text, &v4->sin_addr);
  }
  return e;
}

int open_socket(int family, int type, const char* device) {
  const int fd = ::socket(family, type, 0);
  if (device != nullptr) ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, static_cast<socklen_t>(strlen(device)));
  if (type == SOCK_STREAM) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  return fd;
}

int listen_on(int type, int port) {
  // Takes both families; kernels without IPv6 have no such socket.
  Endpoint any = endpoint_of("::", port);
  int fd = open_socket(any.family(), type, nullptr);
  if (fd < 0) {
    any = endpoint_of("0.0.0.0", port);
    fd = open_socket(any.family(), type, nullptr);
  }
  const int on = 1, off = 0, big = 32 << 20;
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (type == SOCK_DGRAM && ::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big) != 0)
    perror("SO_RCVBUFFORCE");
  if (::bind(fd, any.raw(), any.length) != 0 || (type == SOCK_STREAM && ::listen(fd, 64) != 0)) {
    perror("bind");
    ::exit(1);
  }
  return fd;
}

// Rate between 100 ms after the first byte, when slow start and the shaper's bucket are over, and the last byte.
void serve(int fd) {
  std::vector<char> buffer(256 << 10);
  double first = 0, begin = 0, last = 0, bytes = 0;
  for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    const double now = seconds();
    if (first == 0) first = now;
    if (begin == 0) {
      if (now > first + 0.1) begin = last = now;
      continue;
    }
    bytes += static_cast<double>(n);
    last = now;
  }
  const double mbit = last > begin ? bytes * 8e-6 / (last - begin) : 0;
  if (::write(fd, &mbit, sizeof mbit) < 0) perror("write");
  ::close(fd);
}

int blast(const char* address, int port, int ms, const char* device) {
  const Endpoint to = endpoint_of(address, port);
  int fd = -1;
  for (int attempt = 0; attempt < 100; ++attempt) {
    fd = open_socket(to.family(), SOCK_STREAM, device);
    if (::connect(fd, to.raw(), to.length) == 0) break;
    ::close(fd);
    fd = -1;
    ::usleep(20'000);
  }
  if (fd < 0) {
    perror("connect");
    return 1;
  }
  const std::vector<char> data(128 << 10);
  const double end = seconds() + ms * 1e-3;
  while (seconds() < end && ::send(fd, data.data(), data.size(), MSG_NOSIGNAL) > 0) {
  }
  ::shutdown(fd, SHUT_WR);
  double mbit = -1;
  if (::recv(fd, &mbit, sizeof mbit, MSG_WAITALL) != sizeof mbit) return 1;
  printf("%.1f\n", mbit);
  return 0;
}

int reach(int port, const char* device, const std::vector<const char*>& addresses) {
  std::vector<pollfd> open;
  int unsettled = 0;
  for (const char* address : addresses) {
    const Endpoint to = endpoint_of(address, port);
    const int fd = open_socket(to.family(), SOCK_STREAM, device);
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    // Poll tells how it went, unless it failed at once, for want of a route.
    const bool begun = ::connect(fd, to.raw(), to.length) == 0 || errno == EINPROGRESS;
    open.push_back({begun ? fd : -1, POLLOUT, 0});
    unsettled += begun ? 1 : 0;
  }
  std::vector<bool> done(open.size(), false);
  for (const double end = seconds() + 0.4; seconds() < end && unsettled > 0;) {
    ::poll(open.data(), open.size(), 50);
    for (std::size_t i = 0; i < open.size(); ++i) {
      int error = 1;
      socklen_t length = sizeof error;
      if (open[i].revents == 0 || ::getsockopt(open[i].fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) continue;
      done[i] = error == 0 && (open[i].revents & POLLOUT) != 0;
      open[i].fd = -1;
      --unsettled;
    }
  }
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (done[i]) printf("%s\n", addresses[i]);
  }
  return 0;
}

// Counts what came over the network, also datagrams for which the socket had no room because this process did not get a
// core in time.
int count(int port, int ms, const char* ready, const char* sent) {
  const int fd = listen_on(SOCK_DGRAM, port);
  ::close(::open(ready, O_WRONLY | O_CREAT, 0644));
  long received = 0;
  char data[64];
  const double limit = seconds() + 60;
  for (pollfd p{fd, POLLIN, 0}; seconds() < limit;) {
    const bool all_sent = ::access(sent, F_OK) == 0;  // checked before the silence that ends it
    if (::poll(&p, 1, ms) == 0 && all_sent) break;
    while (::recv(fd, data, sizeof data, MSG_DONTWAIT) > 0) ++received;
  }
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t length = sizeof memory;
  if (::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &length) != 0) return perror("SO_MEMINFO"), 1;
  printf("%ld\n", received + static_cast<long>(memory[SK_MEMINFO_DROPS]));
  return 0;
}

int send_datagrams(const char* address, int port, int number) {
  const Endpoint to = endpoint_of(address, port);
  const int fd = open_socket(to.family(), SOCK_DGRAM, nullptr);
  for (int i = 0; i < number; ++i) {
    if (::sendto(fd, "0123456789abcdef", 16, 0, to.raw(), to.length) < 0) return perror("sendto"), 1;
    if (i % 20 == 19) ::usleep(1000);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  ::signal(SIGPIPE, SIG_IGN);
  if (verb == "sink" && argc == 3) {
    const int fd = listen_on(SOCK_STREAM, atoi(argv[2]));
    puts("listening");
    fflush(stdout);
    for (;;) {
      const int client = ::accept(fd, nullptr, nullptr);
      if (client >= 0) std::thread(serve, client).detach();
    }
  }
  if (verb == "blast" && argc >= 5) return blast(argv[2], atoi(argv[3]), atoi(argv[4]), argc > 5 ? argv[5] : nullptr);
  if (verb == "reach" && argc >= 5) return reach(atoi(argv[2]), argv[3], {argv + 4, argv + argc});
  if (verb == "count" && argc == 6) return count(atoi(argv[2]), atoi(argv[3]), argv[4], argv[5]);
  if (verb == "send" && argc == 5) return send_datagrams(argv[2], atoi(argv[3]), atoi(argv[4]));
  fprintf(stderr, "run_probe: see the head of run_probe.cc\n");
  return 2;
}
