// Payloads of the simulated network that still lie in their sender's memory: read late, taken back, cut, or waiting for
// room in a ring.
#include <algorithm>
#include <cstring>

#include "sim/sim_fabric.h"
#include "sim/sim_lane.h"

namespace canarynet {

void SimFabric::link_live(SimLane& lane, std::uint32_t index) {
  frames_[index].live_previous = kNoSlot;
  frames_[index].live_next = lane.live_;
  if (lane.live_ != kNoSlot) frames_[lane.live_].live_previous = index;
  lane.live_ = index;
}

void SimFabric::unlink_live(Frame& frame) {
  frame.borrowed = nullptr;
  if (frame.live_next != kNoSlot) frames_[frame.live_next].live_previous = frame.live_previous;
  if (frame.live_previous != kNoSlot) {
    frames_[frame.live_previous].live_next = frame.live_next;
  } else if (SimLane* lane = resolve(frame.from)) {
    lane->live_ = frame.live_next;
  }
}

// Copies the first `bytes` of the payload as they are now, with zeroes behind them.
void SimFabric::copy_payload(Frame& frame, std::uint32_t bytes) {
  frames_.take_payload(frame, frame.payload_bytes);
  std::memcpy(frame.payload, frame.borrowed, bytes);
  if (bytes == frame.payload_bytes) look_for_change(frame, frame.payload);
  std::memset(frame.payload + bytes, 0, frame.payload_bytes - bytes);
  unlink_live(frame);
}

// `data` is a borrowed payload as it was read.
void SimFabric::look_for_change(const Frame& frame, const std::byte* data) {
  const bool checked = (frame.header.flags & wire::kUnchecked) == 0;
  if (checked && wire::payload_crc(data, frame.payload_bytes) != frame.header.payload_crc32) ++counters_.changed;
}

// How many bytes of the payload have left the sender.
std::uint32_t SimFabric::left_of(const Frame& frame) const {
  if ((frame.flags & Frame::kWaiting) != 0) return std::max(frame.limit, frame.shown);
  if (now_ >= frame.left_at) return frame.payload_bytes;
  const std::int64_t rest = frame.payload_bytes - frame.limit;
  const auto left =
      frame.limit + static_cast<std::uint32_t>(rest * (now_ - frame.begun).count / (frame.left_at - frame.begun).count);
  return std::max(left, frame.shown);
}

// See Lane::cancel(): the memory of a frame that has begun is not read again. Bytes that have not left by now never
// will.
bool SimFabric::take_back(SimLane& lane, std::uint64_t cookie) {
  bool given_up = false;
  for (std::uint32_t index = lane.live_; index != kNoSlot;) {
    Frame& frame = frames_[index];
    index = frame.live_next;
    if (frame.cookie != cookie) continue;
    const std::uint32_t left = left_of(frame);
    copy_payload(frame, left);
    if (left == frame.payload_bytes) continue;
    frame.flags |= Frame::kGivenUp;
    ++counters_.given_up;
    given_up = true;
  }
  return given_up;
}

// The lane ends: bytes that have left go on their way, but a frame that is half written never becomes whole.
void SimFabric::cut(SimLane& lane) {
  while (lane.live_ != kNoSlot) {
    Frame& frame = frames_[lane.live_];
    const std::uint32_t left = left_of(frame);
    copy_payload(frame, left);
    if (left != frame.payload_bytes) frame.flags |= Frame::kCut;
  }
  if (lane.waiting_frame_ == kNoSlot) return;
  const std::uint32_t index = lane.waiting_frame_;
  lane.waiting_frame_ = kNoSlot;
  Frame& frame = frames_[index];
  frame.flags |= Frame::kCut;
  frame.flags &= static_cast<std::uint8_t>(~Frame::kWaiting);
  if ((frame.flags & Frame::kArrived) != 0) events_.push(now_ + latency(frame.from_nic, frame.to_nic), kBody, index);
}

bool SimFabric::half_written() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const LaneSlot& slot) { return slot.lane != nullptr && slot.lane->waiting_frame_ != kNoSlot; });
}

// The reader of a ring has taken something, so the frame that waited for it goes on: in one go if there is room for all
// of it or if its reader is already busy with it.
void SimFabric::make_room(SimLane& sender) {
  const std::uint32_t index = sender.waiting_frame_;
  Frame& frame = frames_[index];
  const bool alone = sender.in_flight_frames_ == 1;
  if (sender.in_flight_bytes_ > options_.ring_bytes && !(alone && frame.shown != 0)) {
    // Its header may have come while other frames were before it.
    if (alone && (frame.flags & Frame::kArrived) != 0) wake(frame.to_host, {InboxEntry::kHead, index, frame.to});
    return;
  }
  sender.waiting_frame_ = kNoSlot;
  frame.flags &= static_cast<std::uint8_t>(~Frame::kWaiting);
  const BytesPerSec rate = nics_[frame.from_nic].options.out.rate;
  const Nanos rest = rate.count == 0 ? Nanos{} : rate.time_for(Bytes{frame.payload_bytes - frame.limit});
  frame.begun = now_;
  frame.left_at = now_ + rest;
  if ((frame.flags & Frame::kArrived) != 0) {
    SimLane* reader = resolve(frame.to);
    const Nanos end = frame.left_at + latency(frame.from_nic, frame.to_nic);
    if (reader != nullptr) reader->last_whole_ = std::max(reader->last_whole_, end);
    events_.push(end, kBody, index);
    sender.last_arrival_ = std::max(sender.last_arrival_, end);
  } else {
    frame.serialise = frame.serialise + rest;
    sender.last_arrival_ = sender.last_arrival_ + rest;
  }
}

}  // namespace canarynet
