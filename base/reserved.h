// base/reserved.h -- reserved address space, whose pages come when they are used.
//
// What: Reserved owns a row of bytes, a ReservedRow one of T, and ReservedAllocator gives containers such rows. malloc
// keeps a header before each block and one behind it, so a large block that nobody touches still dirties its first and
// its last page; these rows dirty none.
// Memory: its own, until it ends. Throws std::bad_alloc when there is no address space left. Thread: whoever owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

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
// Smaller rows come from the heap: a mapping wastes half a page on average, and costs three system calls.
constexpr std::size_t kLeast = 16 * 1024;
// Under AddressSanitizer all rows come from the heap, whose ends it watches.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMapped = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kMapped = false;
#else
constexpr bool kMapped = true;
#endif
#else
constexpr bool kMapped = true;
#endif
// In small pages: of a huge one that a single place touches, nothing would be saved.
void* map(std::size_t bytes);
void unmap(void* row, std::size_t bytes) noexcept;
}  // namespace reserved

// For containers that reserve much more than they commonly use.
template <typename T>
struct ReservedAllocator {
  static_assert(alignof(T) <= 4096, "a mapping begins with a page");
  using value_type = T;

  ReservedAllocator() = default;
  template <typename U>
  ReservedAllocator(const ReservedAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
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
  static bool maps(std::size_t count) { return reserved::kMapped && count * sizeof(T) >= reserved::kLeast; }
};

// Room for `size` of T, none of which is made: whoever uses a place makes what is there.
template <typename T>
class ReservedRow {
  static_assert(std::is_trivially_destructible_v<T>, "places end with the row's memory");

 public:
  ReservedRow() = default;
  explicit ReservedRow(std::size_t size) : places_(ReservedAllocator<T>().allocate(size), Free{size}) {}
  T* begin() const { return places_.get(); }
  std::size_t size() const { return places_ == nullptr ? 0 : places_.get_deleter().size; }
  T& operator[](std::size_t i) const { return places_[i]; }

 private:
  struct Free {
    std::size_t size = 0;
    void operator()(T* places) const { ReservedAllocator<T>().deallocate(places, size); }
  };
  std::unique_ptr<T[], Free> places_;
};

}  // namespace canarynet
