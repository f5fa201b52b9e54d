// tests/allocation_counter.h -- counts every heap allocation of the process. Include it in one source file of a test
// program.
//
// What: it replaces malloc and its relatives (operator new and the C library end there as well, those of shared
// libraries too). arm() starts to count; disarm() stops and prints where the first allocation came from. All threads
// are counted. Sanitizers bring an allocator of their own: CANARYNET_COUNTS_MALLOC is 0 there and nothing is counted.
#pragma once

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define CANARYNET_COUNTS_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CANARYNET_COUNTS_MALLOC 0
#else
#define CANARYNET_COUNTS_MALLOC 1
#endif
#else
#define CANARYNET_COUNTS_MALLOC 1
#endif

namespace canarynet::allocation_counter {

inline std::atomic<bool> armed{false};
inline std::atomic<long> allocations{0};
inline std::atomic<int> frames{0};  // of the first allocation
inline void* first[32];

inline void count() {
  if (!armed.load(std::memory_order_relaxed)) return;
  // The first allocation notes where it was made; taking its backtrace may allocate and must not count.
  if (allocations.fetch_add(1) == 0) {
    armed = false;
    frames = backtrace(first, 32);
    armed = true;
  }
}

inline void arm() {
  void* frame[4];
  backtrace(frame, 4);  // its first call loads a library
  allocations = 0;
  frames = 0;
  armed = true;
}

// Returns how many there were since arm().
inline long disarm() {
  armed = false;
  if (allocations > 0) {
    std::fprintf(stderr, "first of %ld allocations:\n", allocations.load());
    backtrace_symbols_fd(first, frames, STDERR_FILENO);
  }
  return allocations;
}

}  // namespace canarynet::allocation_counter

#if CANARYNET_COUNTS_MALLOC
// Shared libraries must see these, so they are exported although a test program hides its symbols.
#pragma GCC visibility push(default)
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t number, std::size_t bytes);
void* __libc_realloc(void* old, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) { return canarynet::allocation_counter::count(), __libc_malloc(bytes); }
void* calloc(std::size_t number, std::size_t bytes) {
  return canarynet::allocation_counter::count(), __libc_calloc(number, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  return canarynet::allocation_counter::count(), __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return canarynet::allocation_counter::count(), __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  *out = memalign(alignment, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
}
#pragma GCC visibility pop
#endif
