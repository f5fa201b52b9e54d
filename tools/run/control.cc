#include "tools/run/control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <sstream>

#include "tools/run/state.h"

namespace canarynet::run {
namespace {

constexpr std::size_t kMaxRequest = 65536;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  path.copy(a.sun_path, sizeof a.sun_path - 1);
  return a;
}

Status perform(const std::string& request, const std::function<Status(const LinkChange&)>& apply) {
  std::istringstream lines(request);
  for (std::string line; std::getline(lines, line);) {
    const auto change = parse_link_change(line);
    if (!change.ok()) return change.status();
    if (auto s = apply(change.value()); !s.ok()) return s.wrap("link " + line);
  }
  return {};
}

}  // namespace

Status ControlServer::listen(const std::string& path) {
  const sockaddr_un a = address_of(path);
  listener_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.open() || ::bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0 ||
      ::listen(listener_.fd(), 16) != 0) {
    return system_error(path, errno);
  }
  return {};
}

void ControlServer::serve(const std::function<Status(const LinkChange&)>& apply) {
  const Descriptor client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client.open()) return;
  const timeval patience{0, 500'000};
  ::setsockopt(client.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string request(kMaxRequest, '\0');
  const ssize_t n = ::recv(client.fd(), request.data(), request.size(), 0);
  if (n <= 0) return;
  request.resize(static_cast<std::size_t>(n));
  const Status s = perform(request, apply);
  const std::string answer = s.ok() ? "ok" : s.text();
  ::send(client.fd(), answer.data(), answer.size(), MSG_NOSIGNAL);
}

Status request_changes(const std::string& state_path, const std::vector<std::string>& changes) {
  std::string request;
  for (const auto& change : changes) {
    if (auto parsed = parse_link_change(change); !parsed.ok()) return parsed.status();
    request += change + "\n";
  }
  if (request.empty() || request.size() > kMaxRequest) {
    return {CANARY_INVALID_ARGUMENT,
            "link takes the state file and at least one change such as host=1,nic=0,rate=125mbit"};
  }
  const auto path = control_path(state_path);
  if (!path.ok()) return path.status();
  const sockaddr_un a = address_of(path.value());
  const Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  char answer[4096];
  if (!fd.open() || ::connect(fd.fd(), reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0 ||
      ::send(fd.fd(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return system_error(path.value(), errno);
  }
  const ssize_t n = ::recv(fd.fd(), answer, sizeof answer, 0);
  if (n <= 0) return {CANARY_SYSTEM, "canary-run ended before it answered"};
  const std::string text(answer, static_cast<std::size_t>(n));
  return text == "ok" ? Status() : Status(CANARY_SYSTEM, text);
}

}  // namespace canarynet::run
