// base/reserved.h -- reserved address space, whose pages come when they are used.
//
// Memory: its own, until it ends. Throws std::bad_alloc when there is no address space left. Thread: whoever owns it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace canarynet {

class Reserved {
 public:
  Reserved() = default;
  explicit Reserved(std::uint64_t bytes);
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved();
  std::byte* begin() const { return begin_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* begin_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace canarynet
