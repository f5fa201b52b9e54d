// Interfaces, and how a connection's sockets are made.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "tests/nccl/baseline_plugin/transport.h"

namespace nccltest::baseline {
namespace {

std::atomic<Logger> g_log{nullptr};
constexpr std::uint64_t kConnectLimitNs = 60'000'000'000;  // the built-in's retries end after about as long

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoi(value) : otherwise;
}

bool chosen(const std::string& name, std::string list) {
  if (list.empty()) return true;
  const bool exclude = list[0] == '^';
  if (exclude) list.erase(0, 1);
  const bool exact = !list.empty() && list[0] == '=';
  if (exact) list.erase(0, 1);
  bool found = false;
  std::size_t at = 0;
  while (at <= list.size()) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, comma - at);
    found = found || (exact ? name == part : !part.empty() && name.rfind(part, 0) == 0);
    at = comma + 1;
  }
  return found != exclude;
}

std::uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

void set_options(int fd, const std::string& congestion) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!congestion.empty()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion.c_str(), static_cast<socklen_t>(congestion.size()));
  }
}

std::string peer_text(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  char text[INET_ADDRSTRLEN] = "?";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  }
  return std::string(text) + ":" + std::to_string(ntohs(address.sin_port));
}

}  // namespace

void set_logger(Logger log) { g_log = log; }
Logger logger() { return g_log.load(); }

std::vector<Nic> find_nics() {
  std::vector<Nic> nics, loopback;
  const std::string list = setting("BASELINE_SOCKET_IFNAME");
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return nics;
  for (const ifaddrs* entry = all; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET || !(entry->ifa_flags & IFF_RUNNING)) continue;
    const std::string name = entry->ifa_name;
    const auto known = [&](const Nic& nic) { return nic.name == name; };
    if (!chosen(name, list) || std::any_of(nics.begin(), nics.end(), known) ||
        std::any_of(loopback.begin(), loopback.end(), known))
      continue;
    int speed = 0;
    std::ifstream("/sys/class/net/" + name + "/speed") >> speed;
    Nic nic{name, reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, speed > 0 ? speed : 10000};
    (entry->ifa_flags & IFF_LOOPBACK ? loopback : nics).push_back(std::move(nic));
  }
  freeifaddrs(all);
  if (nics.empty() || (!list.empty() && list[0] != '^')) nics.insert(nics.end(), loopback.begin(), loopback.end());
  if (nics.size() > kMaxNics) nics.resize(kMaxNics);
  return nics;
}

Config read_config(std::size_t nics) {
  Config config;
  config.threads = std::clamp(number("BASELINE_NTHREADS", 0), 0, 16);
  config.all_nics = number("BASELINE_ALL_NICS", 0) != 0;
  if (config.all_nics) config.threads = std::max(config.threads, static_cast<int>(nics));
  const int each = config.threads > 0 ? std::max(1, number("BASELINE_NSOCKS_PERTHREAD", 1)) : 0;
  config.sockets = std::min(config.threads * each, kMaxSockets);
  config.helpers_poll = std::strcmp(setting("BASELINE_HELPER"), "poll") == 0;
  config.congestion =
      *setting("BASELINE_TCP_CONGESTION") ? setting("BASELINE_TCP_CONGESTION") : setting("CANARY_TCP_CONGESTION");
  return config;
}

Listener::~Listener() {
  for (const Half& half : halves) close(half.fd);
  for (int socket : sockets) {
    if (socket >= 0) close(socket);
  }
  if (fd >= 0) close(fd);
}

Connecting::~Connecting() {
  for (int socket : sockets) {
    if (socket >= 0) close(socket);
  }
}

std::unique_ptr<Listener> listen_on(const std::vector<Nic>& nics, int dev, const Config& config, Result* result) {
  auto listener = std::make_unique<Listener>();
  listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  set_options(listener->fd, config.congestion);  // accepted sockets inherit them
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (!config.all_nics) address.sin_addr = nics[static_cast<std::size_t>(dev)].address;
  socklen_t length = sizeof address;
  if (bind(listener->fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener->fd, 1024) != 0 ||
      getsockname(listener->fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    BASELINE_WARN("NET/Baseline: listening on %s: %s", nics[static_cast<std::size_t>(dev)].name.c_str(),
                  std::strerror(errno));
    *result = kSystemError;
    return nullptr;
  }
  Handle& handle = listener->handle;
  handle.magic = kMagic;
  std::random_device random;
  handle.nonce = (static_cast<std::uint64_t>(random()) << 32) | random();
  handle.port = address.sin_port;
  handle.sockets = static_cast<std::uint8_t>(config.sockets);
  handle.threads = static_cast<std::uint8_t>(config.threads);
  handle.nics = static_cast<std::uint8_t>(config.all_nics ? nics.size() : 1);
  for (std::size_t i = 0; i < handle.nics; ++i) {
    handle.addresses[i] = nics[config.all_nics ? i : static_cast<std::size_t>(dev)].address.s_addr;
  }
  listener->sockets.assign(static_cast<std::size_t>(config.sockets) + 1, -1);
  listener->polls = config.helpers_poll;
  listener->congestion = config.congestion;
  *result = kSuccess;
  return listener;
}

std::unique_ptr<Comm> accept_from(Listener& listener, Result* result) {
  *result = kSuccess;
  for (;;) {
    const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      set_options(fd, listener.congestion);
      listener.halves.push_back({fd, {}, 0});
      continue;
    }
    if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) break;
    BASELINE_WARN("NET/Baseline: accept: %s", std::strerror(errno));
    *result = kSystemError;
    return nullptr;
  }
  for (std::size_t i = 0; i < listener.halves.size();) {
    Listener::Half& half = listener.halves[i];
    const ssize_t n =
        recv(half.fd, reinterpret_cast<char*>(&half.hello) + half.got, sizeof half.hello - half.got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      ++i;
      continue;
    }
    if (n > 0) half.got += static_cast<std::size_t>(n);
    if (n > 0 && half.got < sizeof half.hello) continue;
    const std::size_t index = half.hello.index;
    if (n > 0 && half.hello.nonce == listener.handle.nonce && index < listener.sockets.size() &&
        listener.sockets[index] < 0) {
      listener.sockets[index] = half.fd;
    } else {
      close(half.fd);  // a stranger
    }
    listener.halves.erase(listener.halves.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (std::count(listener.sockets.begin(), listener.sockets.end(), -1) > 0) return nullptr;
  std::vector<int> sockets = std::exchange(listener.sockets, {});
  const int control = sockets.back();
  sockets.pop_back();
  return std::make_unique<Comm>(false, control, std::move(sockets), listener.handle.threads, listener.polls,
                                peer_text(control));
}

std::unique_ptr<Connecting> begin_connect(const Handle& handle, const Config& config, Result* result) {
  if (handle.magic != kMagic || handle.nics == 0 || handle.nics > kMaxNics || handle.sockets > kMaxSockets ||
      handle.threads > 16 || (handle.sockets > 0) != (handle.threads > 0)) {
    BASELINE_WARN(
        "NET/Baseline: the peer's handle is not one of this plugin's: does every rank load the same net plugin?");
    *result = kInvalidUsage;
    return nullptr;
  }
  auto connecting = std::make_unique<Connecting>();
  connecting->handle = handle;
  connecting->begin_ns = monotonic_ns();
  const std::size_t count = static_cast<std::size_t>(handle.sockets) + 1;
  connecting->said.assign(count, 0);
  connecting->up.assign(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    connecting->sockets.push_back(fd);
    set_options(fd, config.congestion);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = handle.addresses[i % handle.nics];
    address.sin_port = handle.port;
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS) {
      BASELINE_WARN("NET/Baseline: connecting to %s: %s", inet_ntoa(address.sin_addr), std::strerror(errno));
      *result = errno == ECONNREFUSED ? kRemoteError : kSystemError;
      return nullptr;
    }
  }
  *result = kSuccess;
  return connecting;
}

std::unique_ptr<Comm> go_on_connecting(Connecting& connecting, const Config& config, Result* result) {
  *result = kSuccess;
  bool all = true;
  for (std::size_t i = 0; i < connecting.sockets.size(); ++i) {
    const int fd = connecting.sockets[i];
    if (!connecting.up[i]) {
      pollfd entry{fd, POLLOUT, 0};
      if (poll(&entry, 1, 0) <= 0) {
        all = false;
        continue;
      }
      int error = 0;
      socklen_t length = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        BASELINE_WARN("NET/Baseline: connecting to the peer: %s", std::strerror(error));
        *result = kRemoteError;
        return nullptr;
      }
      connecting.up[i] = true;
    }
    const Hello hello{connecting.handle.nonce, static_cast<std::uint32_t>(i), 0};
    while (connecting.said[i] < sizeof hello) {
      const ssize_t n = send(fd, reinterpret_cast<const char*>(&hello) + connecting.said[i],
                             sizeof hello - connecting.said[i], MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (n < 0) {
        BASELINE_WARN("NET/Baseline: greeting the peer: %s", std::strerror(errno));
        *result = kRemoteError;
        return nullptr;
      }
      connecting.said[i] += static_cast<std::size_t>(n);
    }
    all = all && connecting.said[i] == sizeof hello;
  }
  if (!all) {
    if (monotonic_ns() - connecting.begin_ns > kConnectLimitNs) {
      BASELINE_WARN("NET/Baseline: the peer did not answer for 60 s");
      *result = kRemoteError;
    }
    return nullptr;
  }
  std::vector<int> sockets = std::exchange(connecting.sockets, {});
  const int control = sockets.back();
  sockets.pop_back();
  return std::make_unique<Comm>(true, control, std::move(sockets), connecting.handle.threads, config.helpers_poll,
                                peer_text(control));
}

}  // namespace nccltest::baseline
