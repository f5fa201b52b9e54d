#include "base/reserved.h"

#include <sys/mman.h>

#include <new>

namespace canarynet {

void* reserved::map(std::size_t bytes) {
  void* row = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (row == MAP_FAILED) throw std::bad_alloc();
  return row;
}

void reserved::unmap(void* row, std::size_t bytes) noexcept { ::munmap(row, bytes); }

Reserved::Reserved(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes != 0) begin_ = static_cast<std::byte*>(reserved::map(bytes));
}

Reserved::~Reserved() {
  if (begin_ != nullptr) reserved::unmap(begin_, bytes_);
}

}  // namespace canarynet
