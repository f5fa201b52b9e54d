// sim/frame_pool.h -- frames in flight in the simulator and the bytes they carry, recycled: no allocation once warm.
//
// Memory: frames live in chunks and keep their address; payload buffers come in size classes (powers of four from 256
// bytes, then the piece sizes in use). Both grow to the high-water mark. One owner thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "transport/wire.h"

namespace canarynet {

inline constexpr std::uint32_t kNoSlot = 0xffffffff;

// A slot and one use of it: a stale reference resolves to nothing.
struct SlotRef {
  std::uint32_t slot = kNoSlot;
  std::uint32_t generation = 0;
};

struct Frame {
  enum Kind : std::uint8_t { kData, kFin, kReset };
  // flags
  static constexpr std::uint8_t kLost = 1;       // vanishes, or comes after a retransmission
  static constexpr std::uint8_t kUnordered = 2;  // overtakes and is overtaken
  static constexpr std::uint8_t kCopy = 4;       // a duplicate: not counted as in flight
  static constexpr std::uint8_t kEarlyHead = 8;  // its header is shown before its payload is whole
  static constexpr std::uint8_t kArrived = 16;   // through the receiving NIC: only poll() is missing
  static constexpr std::uint8_t kGivenUp = 32;   // its sender took it back half written
  static constexpr std::uint8_t kWaiting = 64;  // shared memory: the rest has no room before the reader takes something
  static constexpr std::uint8_t kCut = 128;     // its sender ended half way: nothing more of it or behind it comes

  wire::Header header;
  std::byte* payload = nullptr;         // pooled
  const std::byte* borrowed = nullptr;  // the sender's memory: read when it is shown, or when its sender wants it back
  std::uint64_t cookie = 0;
  std::uint32_t payload_bytes = 0;  // the true number, whatever a corrupted header says
  std::uint32_t limit = 0;          // payload bytes that have left for certain
  std::uint32_t shown = 0;          // payload bytes that were written where they land
  Nanos serialise;                  // time on the sending NIC
  Nanos begun, left_at;             // when its payload began to leave, and when all of it has
  SlotRef from, to;
  std::uint32_t next = kNoSlot;                                // in the list it waits in
  std::uint32_t live_next = kNoSlot, live_previous = kNoSlot;  // in its sender's list of frames that read its memory
  std::uint32_t from_nic = kNoSlot, to_nic = kNoSlot;          // kNoSlot: the control network
  std::uint16_t from_host = 0, to_host = 0;
  Kind kind = kData;
  std::uint8_t flags = 0;
  std::uint8_t size_class = 0;

  // Its length on the wire.
  std::int64_t bytes() const { return static_cast<std::int64_t>(sizeof(wire::Header)) + payload_bytes; }
};

// First-in first-out list of frames by index.
struct FrameList {
  std::uint32_t head = kNoSlot, tail = kNoSlot;
  bool empty() const { return head == kNoSlot; }
};

class FramePool {
 public:
  Frame& operator[](std::uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }

  std::uint32_t take() {
    if (free_ == kNoSlot) grow();
    const std::uint32_t index = free_;
    Frame& frame = (*this)[index];
    free_ = frame.next;
    frame.next = kNoSlot;
    frame.flags = 0;
    frame.payload = nullptr;
    frame.borrowed = nullptr;
    frame.limit = frame.shown = 0;
    ++in_use_;
    return index;
  }
  void give_back(std::uint32_t index) {
    Frame& frame = (*this)[index];
    drop_payload(frame);
    frame.next = free_;
    free_ = index;
    --in_use_;
  }
  void take_payload(Frame& frame, std::size_t bytes) {
    std::uint8_t size_class = 0;
    while (kClassBytes[size_class] < bytes) ++size_class;
    auto& spare = spare_[size_class];
    if (spare.empty()) {
      buffers_.emplace_back(new std::byte[kClassBytes[size_class]]);
      if (spare.capacity() < buffers_.size()) spare.reserve(2 * buffers_.size());  // giving back never allocates
      spare.push_back(buffers_.back().get());
    }
    frame.payload = spare.back();
    frame.size_class = size_class;
    spare.pop_back();
  }
  void drop_payload(Frame& frame) {
    if (frame.payload) spare_[frame.size_class].push_back(frame.payload);
    frame.payload = nullptr;
  }
  void append(FrameList* list, std::uint32_t index) {
    (*this)[index].next = kNoSlot;
    if (list->tail == kNoSlot) {
      list->head = index;
    } else {
      (*this)[list->tail].next = index;
    }
    list->tail = index;
  }
  // Inserts behind `after`, or at the front if that is kNoSlot.
  void insert(FrameList* list, std::uint32_t after, std::uint32_t index) {
    std::uint32_t& link = after == kNoSlot ? list->head : (*this)[after].next;
    (*this)[index].next = link;
    link = index;
    if (list->tail == after) list->tail = index;
  }
  std::uint32_t pop(FrameList* list) {
    const std::uint32_t index = list->head;
    list->head = (*this)[index].next;
    if (list->head == kNoSlot) list->tail = kNoSlot;
    (*this)[index].next = kNoSlot;
    return index;
  }
  // The frame's payload as it is now.
  static const std::byte* payload_of(const Frame& frame) {
    return frame.borrowed != nullptr ? frame.borrowed : frame.payload;
  }
  std::size_t in_use() const { return in_use_; }

 private:
  static constexpr std::uint32_t kChunk = 1024;
  static constexpr std::array<std::size_t, 9> kClassBytes{256,        1024,       4096,       16384,   65536,
                                                          128 * 1024, 256 * 1024, 512 * 1024, 1u << 20};
  static_assert(kClassBytes.back() == wire::kPayloadMax);

  void grow() {
    const auto base = static_cast<std::uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<Frame[]>(kChunk));
    for (std::uint32_t i = kChunk; i-- > 0;) {
      chunks_.back()[i].next = free_;
      free_ = base + i;
    }
  }

  std::vector<std::unique_ptr<Frame[]>> chunks_;
  std::uint32_t free_ = kNoSlot;
  std::size_t in_use_ = 0;
  std::array<std::vector<std::byte*>, kClassBytes.size()> spare_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

}  // namespace canarynet
