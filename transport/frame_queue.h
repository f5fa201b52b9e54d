// transport/frame_queue.h -- the frames a stream lane still has to write, as a ring of fixed capacity.
//
// What: push() at the tail (kinds that wire::overtakes(): before the others that have not begun); gather() describes
// the head as iovecs (header and small payload lie together, large payloads stay where the caller has them), front()
// the one frame at the head; advance() forgets what was written; cancel() takes frames back. One that is half written
// keeps its place and length and is given up: a writer that uses front() tells the reader so, gather() fills up with
// zeroes, which the payload's CRC refuses.
// Memory: see Lane::send(). After cancel() no borrowed memory of that cookie is referenced.
// Thread: one owner. Nothing allocates after construction.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

class FrameQueue {
 public:
  explicit FrameQueue(std::uint32_t capacity);

  // False when full.
  bool push(const wire::Header& header, const std::byte* payload, std::uint64_t cookie);
  // Describes the first bytes of the queue in at most `max` entries; returns how many. `*bytes`: their sum.
  std::size_t gather(iovec* iov, std::size_t max, std::size_t* bytes) const;
  // The frame at the head; the queue is not empty. Valid until the next call that changes the queue.
  struct Front {
    const std::byte* header;   // sizeof(wire::Header) bytes, sealed
    const std::byte* payload;  // null: given up, or none
    std::uint32_t payload_bytes;
    bool borrowed;  // `payload` is the caller's memory
    bool given_up;  // cancelled when half written: the rest only keeps its announced length
    std::uint64_t cookie;
    std::size_t begun;  // bytes of header and payload that advance() was told of
  };
  Front front() const;
  // The first `bytes` bytes are written. Returns how many frames that finished.
  std::size_t advance(std::size_t bytes);
  // See Lane::cancel().
  bool cancel(std::uint64_t cookie);
  void clear();

  bool empty() const { return count_ == 0; }
  std::uint32_t size() const { return count_; }
  std::uint32_t capacity() const { return capacity_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kStoreBytes = sizeof(wire::Header) + kInlinePayloadBytes;

  struct Frame {
    const std::byte* borrowed = nullptr;  // null: the payload follows the header in the store, or was given up
    std::uint64_t cookie = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t store = 0;  // its place in store_; stays with the entry, whichever frame that holds
    bool given_up = false;    // cancelled when half written
    bool overtakes = false;
  };

  std::byte* store_of(const Frame& frame) const { return store_.get() + frame.store * kStoreBytes; }
  Frame& at(std::uint32_t i) { return ring_[(head_ + i) % capacity_]; }
  const Frame& at(std::uint32_t i) const { return ring_[(head_ + i) % capacity_]; }
  static std::size_t size_of(const Frame& frame) { return sizeof(wire::Header) + frame.payload_bytes; }

  const std::uint32_t capacity_;
  std::vector<Frame> ring_;
  std::unique_ptr<std::byte[]> store_;
  std::uint32_t head_ = 0;
  std::uint32_t count_ = 0;
  std::size_t begun_ = 0;  // bytes of the head frame already written
  std::size_t bytes_ = 0;
};

}  // namespace canarynet
