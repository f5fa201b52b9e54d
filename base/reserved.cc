#include "base/reserved.h"

#include <sys/mman.h>

#include <new>

namespace canarynet {

Reserved::Reserved(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  begin_ = static_cast<std::byte*>(p);
}

Reserved::~Reserved() {
  if (begin_ != nullptr) munmap(begin_, bytes_);
}

}  // namespace canarynet
