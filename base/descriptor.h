// base/descriptor.h -- owns a file descriptor and closes it when it ends. Move only.
//
// A forked child closes its copies at once if the process asked for that (base/fork.h). An owner that it inherited then
// closes nothing, since the number may be another file's by then.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/fork.h"

namespace canarynet {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd), process_(process_number()) { remember_descriptor(fd); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), process_(other.process_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
      process_ = other.process_;
    }
    return *this;
  }
  ~Descriptor() { close(); }
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close() {
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || process_ != process_number()) return;
    forget_descriptor(fd);  // first: another thread may get the number the moment it is closed
    ::close(fd);
  }

 private:
  int fd_ = -1;
  std::uint32_t process_ = 0;  // the process that opened it
};

}  // namespace canarynet
