#include "transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <string>

namespace canarynet::shm {
namespace {

constexpr std::size_t kControlBytes = 4096;
constexpr std::size_t kReserveBytes = std::size_t{4} << 20;
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
static_assert(2 * sizeof(RingControl) <= kControlBytes);

std::size_t segment_bytes(std::size_t ring_bytes) { return kControlBytes + 2 * ring_bytes; }

}  // namespace

Result<Descriptor> make_sealed_memory(const char* name, std::size_t bytes) {
  Descriptor memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.open()) return system_error("shm: memfd_create", errno);
  if (::ftruncate(memory.fd(), static_cast<off_t>(bytes)) != 0) {
    return system_error("shm: " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  if (::fcntl(memory.fd(), F_ADD_SEALS, kSeals) != 0) return system_error("shm: F_ADD_SEALS", errno);
  return memory;
}

Status reserve(int memory, std::size_t bytes) {
  // More than there is at all is not tried: the system would look for it in other processes first.
  if (const auto all =
          static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      bytes > all) {
    return Status(CANARY_SYSTEM, "shm: " + std::to_string(bytes) + " bytes of shared memory, and this host has " +
                                     std::to_string(all));
  }
  // Step by step: a signal makes the kernel begin the step again.
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t step = std::min(bytes - done, kReserveBytes);
    if (::fallocate(memory, 0, static_cast<off_t>(done), static_cast<off_t>(step)) == 0) {
      done += step;
    } else if (errno != EINTR) {
      return system_error("shm: no more than " + std::to_string(done) + " of " + std::to_string(bytes) +
                              " bytes of shared memory are to be had",
                          errno);
    }
  }
  return {};
}

bool make_present(std::byte* begin, std::size_t bytes) {
  while (::madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL) return true;
    if (errno != EINTR && errno != EAGAIN) return false;
  }
  return true;
}

Status check_sealed_memory(int memory, std::uint64_t bytes) {
  const int seals = ::fcntl(memory, F_GET_SEALS);
  if (seals < 0) return system_error("shm: the peer's memory is no memfd", errno);
  if ((seals & kSeals) != kSeals) return Status(CANARY_SYSTEM, "shm: the peer's memory could change its size");
  struct stat about {};
  if (::fstat(memory, &about) != 0) return system_error("shm: the peer's memory", errno);
  if (static_cast<std::uint64_t>(about.st_size) == bytes) return {};
  return Status(CANARY_SYSTEM, "shm: the peer's memory has " + std::to_string(about.st_size) +
                                   " bytes, announced were " + std::to_string(bytes));
}

Result<Segment> Segment::create(std::size_t ring_bytes, Descriptor* memory) {
  CANARY_CHECK(std::has_single_bit(ring_bytes) && ring_bytes >= kRingBytesMin && ring_bytes <= kRingBytesMax,
               "a ring's size is a power of two within its bounds");
  auto made = make_sealed_memory("canary-lane", segment_bytes(ring_bytes));
  if (!made.ok()) return made.status();
  *memory = made.take();
  auto mapped = map(memory->fd(), ring_bytes);
  if (!mapped.ok()) return mapped;
  if (!make_present(mapped.value().base_, kControlBytes)) return system_error("shm: memory for a lane's rings", errno);
  for (int which = 0; which < 2; ++which) {
    RingControl* control = ::new (mapped.value().ring(which).control) RingControl;
    control->head = control->tail = 0;
    control->reader_wants = control->writer_wants = kAwake;
  }
  return mapped;
}

Result<Segment> Segment::open(int memory, std::uint64_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin || ring_bytes > kRingBytesMax) {
    return Status(CANARY_SYSTEM, "shm: the peer offers a ring of " + std::to_string(ring_bytes) + " bytes");
  }
  if (Status status = check_sealed_memory(memory, segment_bytes(ring_bytes)); !status.ok()) return status;
  return map(memory, ring_bytes);
}

Result<Segment> Segment::map(int memory, std::size_t ring_bytes) {
  Segment segment;
  segment.ring_bytes_ = ring_bytes;
  const std::size_t all = kControlBytes + 4 * ring_bytes;
  void* base = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error("shm: mmap", errno);
  segment.base_ = static_cast<std::byte*>(base);
  const auto place = [&](std::size_t at, std::size_t bytes, std::size_t offset) {
    return ::mmap(segment.base_ + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
                  static_cast<off_t>(offset)) != MAP_FAILED;
  };
  bool placed = place(0, kControlBytes, 0);
  for (std::size_t half = 0; half < 4; ++half) {
    placed = placed && place(kControlBytes + half * ring_bytes, ring_bytes, kControlBytes + half / 2 * ring_bytes);
  }
  if (!placed) return system_error("shm: mmap", errno);
  // A child that outlives its parent by chance must not keep a dead lane's memory.
  ::madvise(base, all, MADV_DONTFORK);
  return segment;
}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    unmap();
    base_ = std::exchange(other.base_, nullptr);
    ring_bytes_ = other.ring_bytes_;
  }
  return *this;
}

void Segment::unmap() {
  if (base_ != nullptr) ::munmap(base_, kControlBytes + 4 * ring_bytes_);
  base_ = nullptr;
}

RingView Segment::ring(int which) const {
  auto* controls = reinterpret_cast<RingControl*>(base_);
  return {controls + which, base_ + kControlBytes + static_cast<std::size_t>(which) * 2 * ring_bytes_, ring_bytes_};
}

}  // namespace canarynet::shm
