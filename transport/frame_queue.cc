#include "transport/frame_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace canarynet {
namespace {

// From these gather() finishes a frame that was given up; read only, so all lanes of all threads share them.
constexpr std::size_t kZeroBytes = 64 * 1024;
alignas(4096) const std::byte kZeroes[kZeroBytes] = {};

}  // namespace

FrameQueue::FrameQueue(std::uint32_t capacity)
    : capacity_(capacity),
      ring_(capacity),
      store_(std::make_unique_for_overwrite<std::byte[]>(capacity * kStoreBytes)) {
  CANARY_CHECK(capacity > 0, "a lane needs room for a frame");
  for (std::uint32_t i = 0; i < capacity; ++i) ring_[i].store = i;
}

bool FrameQueue::push(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) {
  CANARY_CHECK(header.payload_bytes <= wire::kPayloadMax, "a frame's payload is larger than kPayloadMax");
  CANARY_CHECK(!wire::overtakes(header.kind) || (header.flags & wire::kSequenced) == 0,
               "a sequenced frame keeps its place");
  CANARY_CHECK(header.payload_bytes == 0 || payload != nullptr, "a frame with a payload needs its memory");
  if (count_ == capacity_) return false;
  Frame& frame = at(count_);
  std::byte* store = store_of(frame);
  std::memcpy(store, &header, sizeof header);
  frame.cookie = cookie;
  frame.payload_bytes = header.payload_bytes;
  frame.given_up = false;
  frame.overtakes = wire::overtakes(header.kind);
  if (header.payload_bytes <= kInlinePayloadBytes) {
    if (header.payload_bytes != 0) std::memcpy(store + sizeof header, payload, header.payload_bytes);
    frame.borrowed = nullptr;
  } else {
    frame.borrowed = payload;
  }
  ++count_;
  bytes_ += size_of(frame);
  if (frame.overtakes) {
    // The peer counts on the rest of a frame it has seen the beginning of.
    const std::uint32_t first = begun_ > 0 ? 1 : 0;
    for (std::uint32_t i = count_ - 1; i > first && !at(i - 1).overtakes; --i) std::swap(at(i - 1), at(i));
  }
  return true;
}

std::size_t FrameQueue::gather(iovec* iov, std::size_t max, std::size_t* bytes) const {
  std::size_t used = 0;
  *bytes = 0;
  const auto add = [&](const std::byte* data, std::size_t size) {
    iov[used++] = {const_cast<std::byte*>(data), size};
    *bytes += size;
  };
  std::size_t skip = begun_;
  for (std::uint32_t i = 0; i < count_ && used < max; ++i) {
    const Frame& frame = at(i);
    const bool together = frame.borrowed == nullptr && !frame.given_up;
    const std::size_t stored = sizeof(wire::Header) + (together ? frame.payload_bytes : 0);
    if (skip < stored) {
      add(store_of(frame) + skip, stored - skip);
      skip = 0;
    } else {
      skip -= stored;
    }
    if (!together) {
      std::size_t left = frame.payload_bytes - skip;
      if (frame.given_up) {
        for (; left > 0 && used < max; left -= iov[used - 1].iov_len) add(kZeroes, std::min(left, kZeroBytes));
        if (left > 0) break;
      } else if (used < max) {
        add(frame.borrowed + skip, left);
      }
    }
    skip = 0;
  }
  return used;
}

FrameQueue::Front FrameQueue::front() const {
  const Frame& frame = at(0);
  const std::byte* store = store_of(frame);
  const std::byte* payload = frame.given_up              ? nullptr
                             : frame.borrowed != nullptr ? frame.borrowed
                                                         : store + sizeof(wire::Header);
  return {store, payload, frame.payload_bytes, frame.borrowed != nullptr, frame.given_up, frame.cookie, begun_};
}

std::size_t FrameQueue::advance(std::size_t bytes) {
  CANARY_CHECK(bytes <= bytes_, "more was written than queued");
  bytes_ -= bytes;
  begun_ += bytes;
  std::size_t finished = 0;
  while (count_ > 0 && begun_ >= size_of(at(0))) {
    begun_ -= size_of(at(0));
    head_ = (head_ + 1) % capacity_;
    --count_;
    ++finished;
  }
  return finished;
}

bool FrameQueue::cancel(std::uint64_t cookie) {
  std::uint32_t kept = 0;
  bool given_up = false;
  for (std::uint32_t i = 0; i < count_; ++i) {
    Frame& frame = at(i);
    if (frame.cookie == cookie) {
      if (i > 0 || begun_ == 0) {
        bytes_ -= size_of(frame);
        continue;
      }
      // The peer has seen the beginning and counts on the announced length.
      if (frame.borrowed != nullptr) {
        frame.borrowed = nullptr;
        frame.given_up = given_up = true;
      }
    }
    if (kept != i) std::swap(at(kept), frame);
    ++kept;
  }
  const bool dropped = kept != count_;
  count_ = kept;
  return dropped || given_up;
}

void FrameQueue::clear() {
  count_ = 0;
  begun_ = 0;
  bytes_ = 0;
}

}  // namespace canarynet
