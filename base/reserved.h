// base/reserved.h -- reserved address space, whose pages come when they are used.
//
// What: Reserved owns a row of bytes; ReservedAllocator gives containers such rows. What malloc gives begins with a
// header in its first page, and ends in the page of the next one's: of a row that nobody touches it takes two pages.
// Memory: its own, until it ends. Throws std::bad_alloc when there is no address space left. Thread: whoever owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

namespace reserved {
// Fewer bytes come from the heap: by itself a row wastes half a page, and costs two system calls.
constexpr std::size_t kLeast = 16 * 1024;
// A sanitizer watches the ends of what comes from the heap.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kMapped = false;
#else
constexpr bool kMapped = true;
#endif
void* map(std::size_t bytes);
void unmap(void* row, std::size_t bytes) noexcept;
}  // namespace reserved

// For containers that reserve much more than they commonly use.
template <typename T>
struct ReservedAllocator {
  using value_type = T;

  ReservedAllocator() = default;
  template <typename U>
  ReservedAllocator(const ReservedAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (maps(count)) return static_cast<T*>(reserved::map(count * sizeof(T)));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* row, std::size_t count) noexcept {
    if (maps(count)) {
      reserved::unmap(row, count * sizeof(T));
    } else {
      std::allocator<T>().deallocate(row, count);
    }
  }
  friend bool operator==(const ReservedAllocator&, const ReservedAllocator&) { return true; }

 private:
  static bool maps(std::size_t count) { return reserved::kMapped && count >= reserved::kLeast / sizeof(T); }
};

}  // namespace canarynet
