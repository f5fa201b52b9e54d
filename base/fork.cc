#include "base/fork.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>

namespace canarynet {
namespace {

// A bit for each descriptor; untouched pages cost nothing. Descriptors beyond these are closed only by their owners.
constexpr std::size_t kDescriptors = std::size_t{1} << 20;
constexpr std::size_t kBits = 64;
std::array<std::atomic<std::uint64_t>, kDescriptors / kBits> g_open;
std::atomic<std::size_t> g_words{0};  // all our descriptors have their bits in these words
std::atomic<std::uint32_t> g_process{1};

// Runs in the child's only thread. A lock of the parent's may be held, so nothing here takes one.
void begin_child() {
  g_process.fetch_add(1, std::memory_order_relaxed);
  const std::size_t words = g_words.load(std::memory_order_relaxed);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = g_open[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) ::close(static_cast<int>(word * kBits) + std::countr_zero(bits));
  }
}

}  // namespace

void close_descriptors_in_children() {
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, begin_child);
}

std::uint32_t process_number() { return g_process.load(std::memory_order_relaxed); }

void remember_descriptor(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  if (fd < 0 || at >= kDescriptors) return;
  g_open[at / kBits].fetch_or(std::uint64_t{1} << at % kBits, std::memory_order_relaxed);
  std::size_t words = g_words.load(std::memory_order_relaxed);
  while (words <= at / kBits && !g_words.compare_exchange_weak(words, at / kBits + 1, std::memory_order_relaxed)) {
  }
}

void forget_descriptor(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  if (fd >= 0 && at < kDescriptors)
    g_open[at / kBits].fetch_and(~(std::uint64_t{1} << at % kBits), std::memory_order_relaxed);
}

}  // namespace canarynet
