// port/memory_ref.h -- memory as a command names it: a numbered region, a place in it, a length.
//
// Region 0 is the address space of whoever gave the command, its offsets are addresses; in the same process nothing
// else is needed. Plain bytes; any thread. Regions live as long as whoever reads commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace canarynet::port {

struct MemoryRef {
  std::uint32_t region = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  // True of the counterpart of a NULL pointer.
  bool nowhere() const { return region == 0 && offset == 0; }
};

// Memory of this process.
inline MemoryRef memory_at(const void* begin, std::uint64_t bytes) {
  return {.offset = reinterpret_cast<std::uintptr_t>(begin), .bytes = bytes};
}

struct Region {
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;
};

class Regions {
 public:
  // Region 0 alone, which is this very process: every address is taken for the caller's own.
  Regions() : Regions({{0, UINT64_MAX}}) {}
  explicit Regions(std::vector<Region> regions) : regions_(std::move(regions)) {}

  // Whether all of it lies in a region that there is.
  bool has(const MemoryRef& m) const {
    if (m.region >= regions_.size()) return false;
    const std::uint64_t size = regions_[m.region].bytes;
    return m.offset <= size && m.bytes <= size - m.offset;
  }
  // To be followed where has() says so; nullptr for what is nowhere, or in no region.
  std::byte* at(const MemoryRef& m) const {
    if (m.nowhere() || m.region >= regions_.size()) return nullptr;
    return reinterpret_cast<std::byte*>(regions_[m.region].begin + m.offset);
  }

 private:
  std::vector<Region> regions_;
};

}  // namespace canarynet::port
