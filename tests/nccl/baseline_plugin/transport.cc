// The data path: requests, and the helpers that move parts of them.
#include "tests/nccl/baseline_plugin/transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nccltest::baseline {
namespace {

// Moves as much as goes without waiting. Returns 0, or an errno (EPIPE for the end of the stream).
int move(int fd, bool sends, char* data, std::size_t size, std::size_t* offset) {
  while (*offset < size) {
    const ssize_t n = sends ? send(fd, data + *offset, size - *offset, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recv(fd, data + *offset, size - *offset, MSG_DONTWAIT);
    if (n > 0) {
      *offset += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return EPIPE;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return 0;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

// --- helpers ---------------------------------------------------------------------------------------------------------

Helper::Helper(bool polls)
    : polls_(polls), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), thread_([this] { loop(); }) {}

Helper::~Helper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  eventfd_write(wake_, 1);
  thread_.join();
  close(wake_);
}

void Helper::add(Task* task) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(task);
    incoming_.store(true, std::memory_order_release);
  }
  changed_.notify_one();
  if (polls_) eventfd_write(wake_, 1);
}

void Helper::loop() {
  std::vector<Task*> tasks;  // in order; among the tasks of one socket only the first moves
  std::vector<pollfd> waits;
  while (!stop_.load(std::memory_order_acquire)) {
    if (tasks.empty() || incoming_.load(std::memory_order_acquire)) {
      std::unique_lock lock(mutex_);
      if (tasks.empty()) changed_.wait(lock, [&] { return stop_ || !added_.empty(); });
      tasks.insert(tasks.end(), added_.begin(), added_.end());
      added_.clear();
      incoming_.store(false, std::memory_order_release);
    }
    bool moved = false;
    waits.clear();
    for (std::size_t i = 0; i < tasks.size();) {
      Task& task = *tasks[i];
      const auto before = tasks.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::any_of(tasks.begin(), before, [&](const Task* other) { return other->fd == task.fd; })) {
        ++i;
        continue;
      }
      const std::size_t offset = task.offset;
      const int error = move(task.fd, task.sends, task.data, task.size, &task.offset);
      moved = moved || task.offset != offset;
      if (error == 0 && task.offset < task.size) {
        waits.push_back({task.fd, static_cast<short>(task.sends ? POLLOUT : POLLIN), 0});
        ++i;
        continue;
      }
      tasks.erase(before);
      moved = true;
      task.state.store(error ? -error : 1, std::memory_order_release);  // the task is test()'s again
    }
    if (polls_ && !moved && !tasks.empty()) {
      waits.push_back({wake_, POLLIN, 0});
      poll(waits.data(), waits.size(), 100);
      eventfd_t unused;
      eventfd_read(wake_, &unused);
    }
  }
}

// --- connections -----------------------------------------------------------------------------------------------------

Comm::Comm(bool sends, int control, std::vector<int> sockets, int threads, bool polls, std::string peer)
    : sends_(sends), control_(control), sockets_(std::move(sockets)), peer_(std::move(peer)) {
  for (int i = 0; i < threads; ++i) helpers_.push_back(std::make_unique<Helper>(polls));
}

Comm::~Comm() {
  helpers_.clear();  // before the tasks that they may still hold
  for (int socket : sockets_) close(socket);
  close(control_);
}

Request* Comm::take(void* data, std::size_t size) {
  for (Request& request : requests_) {
    if (request.used) continue;
    request.comm = this;
    request.used = true;
    request.data = static_cast<char*>(data);
    request.size = size;
    request.offset = 0;
    request.header_done = false;
    request.tasks.clear();
    return &request;
  }
  return nullptr;
}

Result Comm::broken(const char* what, int error) {
  BASELINE_WARN("NET/Baseline: %s %s: %s", what, peer_.c_str(),
                error == EPIPE ? "the peer closed the connection" : std::strerror(error));
  return kRemoteError;
}

// Sends or receives the size, with small data behind it. When it returns success the header may still be on its way.
Result Comm::header(Request& request) {
  std::uint32_t size = static_cast<std::uint32_t>(request.size);
  if (sends_) {
    const std::size_t inlined = request.size <= kInlineBytes ? request.size : 0;
    if (request.offset == 0) {
      std::memcpy(request.header, &size, 4);
      std::memcpy(request.header + 4, request.data, inlined);
    }
    if (const int error = move(control_, true, request.header, 4 + inlined, &request.offset))
      return broken("sending to", error);
    if (request.offset < 4 + inlined) return kSuccess;
    request.offset = inlined;
  } else {
    if (request.offset < 4) {
      if (const int error = move(control_, false, request.header, 4, &request.offset))
        return broken("receiving from", error);
      if (request.offset < 4) return kSuccess;
      std::memcpy(&size, request.header, 4);
      if (size > request.size) {
        BASELINE_WARN("NET/Baseline: %s sends %u bytes into a receive of %zu", peer_.c_str(), size, request.size);
        return kInvalidUsage;
      }
      request.size = size;
    }
    const std::size_t inlined = request.size <= kInlineBytes ? request.size : 0;
    std::size_t got = request.offset - 4;
    const int error = move(control_, false, request.data, inlined, &got);
    request.offset = 4 + got;
    if (error) return broken("receiving from", error);
    if (got < inlined) return kSuccess;
    request.offset = inlined;
  }
  request.header_done = true;
  if (!sockets_.empty() && request.offset < request.size) split(request);
  return kSuccess;
}

void Comm::split(Request& request) {
  const std::size_t part = std::max(kMinTaskBytes, (request.size + sockets_.size() - 1) / sockets_.size());
  for (std::size_t at = 0; at < request.size; at += part) {
    auto task = std::make_unique<Task>();
    task->fd = sockets_[next_socket_];
    task->data = request.data + at;
    task->size = std::min(part, request.size - at);
    task->sends = sends_;
    helpers_[next_socket_ % helpers_.size()]->add(task.get());
    next_socket_ = (next_socket_ + 1) % sockets_.size();
    request.tasks.push_back(std::move(task));
  }
}

Result Comm::test(Request& request, int* done, int* sizes) {
  *done = 0;
  if (!request.header_done) {
    if (const Result result = header(request); result != kSuccess) return result;
    if (!request.header_done) return kSuccess;
  }
  if (request.tasks.empty()) {
    if (const int error = move(control_, sends_, request.data, request.size, &request.offset)) {
      return broken(sends_ ? "sending to" : "receiving from", error);
    }
    if (request.offset < request.size) return kSuccess;
  }
  for (const auto& task : request.tasks) {
    const int state = task->state.load(std::memory_order_acquire);
    if (state < 0) return broken(sends_ ? "sending to" : "receiving from", -state);
    if (state == 0) return kSuccess;
  }
  *done = 1;
  if (sizes) sizes[0] = static_cast<int>(request.size);
  request.used = false;
  return kSuccess;
}

}  // namespace nccltest::baseline
