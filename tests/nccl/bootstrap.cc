#include "tests/nccl/bootstrap.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace nccltest {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMessageBytesMax = 64 << 10;

int left_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<Millis>(end - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

bool readable(int fd, Clock::time_point end) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int n = poll(&entry, 1, left_ms(end));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool address_of(const std::string& path, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (path.size() >= sizeof address->sun_path) return false;
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  return true;
}

}  // namespace

Bootstrap::~Bootstrap() {
  for (int fd : peers_) {
    if (fd >= 0) close(fd);
  }
  if (listener_ >= 0) {
    close(listener_);
    unlink(path_.c_str());
  }
}

bool Bootstrap::join(const std::string& folder, const std::string& name, int rank, int size, Millis limit,
                     std::string* error) {
  rank_ = rank;
  size_ = size;
  peers_.assign(static_cast<std::size_t>(size), -1);
  const auto end = Clock::now() + limit;
  path_ = folder + "/" + name + "." + std::to_string(rank);
  sockaddr_un address;
  if (!address_of(path_, &address)) {
    *error = path_ + " is too long for a socket";
    return false;
  }
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  unlink(path_.c_str());
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0) {
    *error = path_ + ": " + std::strerror(errno);
    return false;
  }
  for (int peer = 0; peer < rank; ++peer) {
    if (!address_of(folder + "/" + name + "." + std::to_string(peer), &address)) return false;
    int fd = -1;
    for (;;) {
      fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) break;
      if (fd >= 0) close(fd);
      if (left_ms(end) == 0) {
        *error = "rank " + std::to_string(peer) + " did not come to " + folder;
        return false;
      }
      std::this_thread::sleep_for(Millis(2));
    }
    peers_[static_cast<std::size_t>(peer)] = fd;
    if (!send(peer, std::to_string(rank))) {
      *error = "rank " + std::to_string(peer) + " left";
      return false;
    }
  }
  for (int missing = size - 1 - rank; missing > 0; --missing) {
    const int fd = readable(listener_, end) ? accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC) : -1;
    char text[16] = {};
    if (fd < 0 || !readable(fd, end) || recv(fd, text, sizeof text - 1, 0) <= 0) {
      if (fd >= 0) close(fd);
      *error = std::to_string(missing) + " ranks did not come to " + folder;
      return false;
    }
    peers_.at(static_cast<std::size_t>(std::stoi(text))) = fd;
  }
  return true;
}

bool Bootstrap::send(int peer, const std::string& message) {
  const int fd = peers_[static_cast<std::size_t>(peer)];
  return fd >= 0 && ::send(fd, message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

bool Bootstrap::receive(int peer, std::string* message, Millis limit) {
  const int fd = peers_[static_cast<std::size_t>(peer)];
  if (fd < 0 || !readable(fd, Clock::now() + limit)) return false;
  message->resize(kMessageBytesMax);
  const ssize_t n = recv(fd, message->data(), message->size(), 0);
  if (n <= 0) return false;  // no message is empty
  message->resize(static_cast<std::size_t>(n));
  return true;
}

bool Bootstrap::all_gather(const std::string& mine, std::vector<std::string>* all, Millis limit) {
  const auto end = Clock::now() + limit;
  all->assign(static_cast<std::size_t>(size_), std::string());
  (*all)[static_cast<std::size_t>(rank_)] = mine;
  bool whole = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) whole = send(peer, mine) && whole;
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) whole = receive(peer, &(*all)[static_cast<std::size_t>(peer)], Millis(left_ms(end))) && whole;
  }
  return whole;
}

bool Bootstrap::barrier(Millis limit) {
  std::vector<std::string> all;
  return all_gather("b", &all, limit);
}

}  // namespace nccltest
