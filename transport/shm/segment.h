// transport/shm/segment.h -- the memory that two processes share for one lane: a ring of frames in each direction.
//
//   page 0        counters of ring 0 (dialler to accepter) and ring 1 (back), each counter on cache lines of its own
//   ring 0, ring 1   `ring_bytes` each (a power of two), mapped twice in a row: what lies across the end is contiguous
//
// A ring holds records: a FrameRecord of 64 bytes, then, in the form kInline, the payload, filled up to 64 bytes.
// Positions count the bytes since the beginning and never wrap. One producer (moves `head`), one consumer (moves
// `tail`). A side that waits notes the position in "wants" and sleeps; the one that moves a counter past
// it takes that note away and rings the other's bell, so a busy lane costs no system call.
//
// Everything in here may be written by the peer at any time: counters are believed as far as they make sense, headers
// are copied out before they are looked at.
// Memory: a sealed memfd (it can't shrink under a reader's feet); gone with the last process that has it mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "transport/lane.h"
#include "transport/shm/ipc.h"
#include "transport/wire.h"

namespace canarynet::shm {

inline constexpr std::size_t kRecordBytes = 64;
inline constexpr std::uint64_t kAwake = ~std::uint64_t{0};  // a "wants" of nobody who sleeps
inline constexpr std::size_t kRingBytesMin = std::size_t{64} << 10;
inline constexpr std::size_t kRingBytesMax = std::size_t{64} << 20;

struct RingControl {
  alignas(128) std::atomic<std::uint64_t> head;          // the producer's
  alignas(128) std::atomic<std::uint64_t> tail;          // the consumer's
  alignas(128) std::atomic<std::uint64_t> reader_wants;  // head that wakes the consumer
  alignas(128) std::atomic<std::uint64_t> writer_wants;  // tail that wakes the producer
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(RingControl) == 512);

// The form of a frame in a ring.
struct FrameRecord {
  wire::Header header;
  std::uint32_t form = 0;    // Form; of a reference, both sides change it atomically
  std::uint32_t arena = 0;   // kReference: where the payload lies
  std::uint64_t offset = 0;  // in the arena
};
static_assert(sizeof(FrameRecord) == kRecordBytes && std::has_unique_object_representations_v<FrameRecord>);

// Behind a payload that is copied in in several steps: what became of it. Without a CRC nothing else tells half a
// payload from a whole one.
struct Trailer {
  std::uint32_t ending = 0;  // Ending
  std::uint32_t reserved[15] = {};
};
static_assert(sizeof(Trailer) == kRecordBytes && std::has_unique_object_representations_v<Trailer>);

enum Ending : std::uint32_t {
  kWhole = 0x600d0e4d,
  kGivenUp = 0x0bad0e4d,  // its sender took it back half written: the rest is whatever lay there
};

constexpr bool has_trailer(std::uint32_t payload_bytes) { return payload_bytes > kInlinePayloadBytes; }

enum Form : std::uint32_t {
  kInline = 1,     // the payload follows, and a Trailer where has_trailer()
  kReference = 2,  // the payload lies in one of the sender's arenas
  kTaken = 3,      // a reference that the receiver is reading from
  kRevoked = 4,    // a reference that the sender took back before it was read
};

constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kRecordBytes - 1) & ~std::uint64_t{kRecordBytes - 1};
}

// One direction, as both of its ends see it. A plain view.
struct RingView {
  RingControl* control = nullptr;
  std::byte* bytes = nullptr;  // mapped twice
  std::size_t size = 0;
  std::byte* at(std::uint64_t position) const { return bytes + (position & (size - 1)); }
  std::atomic_ref<std::uint32_t> form_at(std::uint64_t position) const {
    return std::atomic_ref<std::uint32_t>(
        *reinterpret_cast<std::uint32_t*>(at(position) + offsetof(FrameRecord, form)));
  }
};

// Moves `counter` to `position` and rings `bell` when the other side sleeps until there. Sequentially consistent, as
// sleep_until() is: either the sleeper sees the new position, or we see the sleeper.
inline void move_to(std::atomic<std::uint64_t>& counter, std::uint64_t position, std::atomic<std::uint64_t>& wants,
                    int bell) {
  counter.store(position, std::memory_order_seq_cst);
  if (position < wants.load(std::memory_order_seq_cst)) return;
  if (wants.exchange(kAwake, std::memory_order_relaxed) != kAwake) ring(bell);
}
// False: `counter` is there already, and nobody will ring.
inline bool sleep_until(std::atomic<std::uint64_t>& wants, std::uint64_t position,
                        const std::atomic<std::uint64_t>& counter) {
  wants.store(position, std::memory_order_seq_cst);
  if (counter.load(std::memory_order_seq_cst) < position) return true;
  wants.store(kAwake, std::memory_order_relaxed);
  return false;
}

class Segment {
 public:
  Segment() = default;
  // New, empty, sealed; *memory goes to the peer.
  static Result<Segment> create(std::size_t ring_bytes, Descriptor* memory);
  // The peer's: its size and seals are checked.
  static Result<Segment> open(int memory, std::uint64_t ring_bytes);
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment() { unmap(); }

  bool mapped() const { return base_ != nullptr; }
  RingView ring(int which) const;

 private:
  static Result<Segment> map(int memory, std::size_t ring_bytes);
  void unmap();
  std::byte* base_ = nullptr;
  std::size_t ring_bytes_ = 0;
};

// A memfd of `bytes` that can't change its size any more. Its pages may not exist yet: touched, one that can't be had
// is a SIGBUS. Either reserve() them at once, or make_present() them before each first write.
Result<Descriptor> make_sealed_memory(const char* name, std::size_t bytes);
Status reserve(int memory, std::size_t bytes);
// `begin` and `bytes` in whole pages. False: the memory is not to be had. (Kernels before 5.14 can't tell, and it is
// true.)
bool make_present(std::byte* begin, std::size_t bytes);
// Whether a foreign descriptor is one of those.
Status check_sealed_memory(int memory, std::uint64_t bytes);

}  // namespace canarynet::shm
