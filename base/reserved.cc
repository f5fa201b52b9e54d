#include "base/reserved.h"

#include <sys/mman.h>

#include <new>

namespace canarynet {

namespace {

void* mapped(std::size_t bytes) {
  void* row = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (row == MAP_FAILED) throw std::bad_alloc();
  return row;
}

}  // namespace

void* reserved::map(std::size_t bytes) {
  void* row = mapped(bytes);
  ::madvise(row, bytes, MADV_NOHUGEPAGE);  // fails where the kernel has no huge pages
  return row;
}

// At the process's limit of mappings the kernel may refuse to split one; then the row stays.
void reserved::unmap(void* row, std::size_t bytes) noexcept { ::munmap(row, bytes); }

Reserved::Reserved(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes != 0) begin_ = static_cast<std::byte*>(mapped(bytes));
}

Reserved::~Reserved() {
  if (begin_ != nullptr) reserved::unmap(begin_, bytes_);
}

}  // namespace canarynet
