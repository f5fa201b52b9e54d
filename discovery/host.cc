#include "discovery/host.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

namespace canarynet {

std::string default_host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char net[128];
  const ssize_t n = readlink("/proc/self/ns/net", net, sizeof net);
  return boot + "/" + std::string(net, n > 0 ? static_cast<std::size_t>(n) : 0);
}

Address shared_memory_name(const std::string& host_id, std::uint64_t own) {
  char user[128];
  const ssize_t n = readlink("/proc/self/ns/user", user, sizeof user);
  const std::string who = host_id + "|" + default_host_id() + "|" +
                          std::string(user, n > 0 ? static_cast<std::size_t>(n) : 0) + "|" + std::to_string(geteuid());
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : who) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  Address a;
  a.family = Address::Family::kSharedMemory;
  a.prefix_bits = 64;
  for (std::size_t i = 0; i < 8; ++i) {
    a.bytes[i] = static_cast<std::uint8_t>(hash >> (8 * i));
    a.bytes[8 + i] = static_cast<std::uint8_t>(own >> (8 * i));
  }
  return a;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

ProcessPulse pulse_of(std::int64_t pid) {
  ProcessPulse pulse;
  if (pid <= 0 || pid == getpid()) return pulse;  // our own number there is another process in another PID namespace
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(tasks.c_str()), closedir);
  if (folder == nullptr) return pulse;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] == '.') continue;
    std::uint64_t ran = 0;
    std::ifstream(tasks + entry->d_name + "/schedstat") >> ran;
    pulse.ran_ns += ran;
    std::string stat;
    std::getline(std::ifstream(tasks + entry->d_name + "/stat"), stat);
    const std::size_t name_end = stat.rfind(')');  // "7 (name) R ...", and the name may hold anything
    const char state = name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
    pulse.wants_core |= state == 'R' || state == 'D';
  }
  return pulse;
}

Result<Address> resolve_join(const std::string& url, const std::string& source) {
  const auto bad = [&](const std::string& why) {
    return Status(CANARY_INVALID_SETTING, source + "=\"" + url + "\": " + why + "; takes tcp://host:port");
  };
  constexpr std::string_view kScheme = "tcp://";
  if (!url.starts_with(kScheme)) return bad("does not begin with tcp://");
  const std::string rest = url.substr(kScheme.size());
  const auto colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad("has no port");
  std::string host = rest.substr(0, colon);
  const std::string port_text = rest.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port < 1 || port > 65535) {
    return bad("the port \"" + port_text + "\" is not between 1 and 65535");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int rc = getaddrinfo(host.c_str(), nullptr, &hints, &found); rc != 0) {
    return bad("the host \"" + host + "\" is not known (" + gai_strerror(rc) + ")");
  }
  Address a;
  a.port = static_cast<std::uint16_t>(port);
  for (const addrinfo* i = found; i != nullptr && !a.valid(); i = i->ai_next) {
    if (i->ai_family == AF_INET) {
      a.family = Address::Family::kIPv4;
      std::memcpy(a.bytes.data(), &reinterpret_cast<const sockaddr_in*>(i->ai_addr)->sin_addr, 4);
    } else if (i->ai_family == AF_INET6) {
      a.family = Address::Family::kIPv6;
      std::memcpy(a.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(i->ai_addr)->sin6_addr, 16);
    }
  }
  freeaddrinfo(found);
  if (!a.valid()) return bad("the host \"" + host + "\" has no IP address");
  return a;
}

}  // namespace canarynet
