// Frames leave: lanes take turns at a NIC, which sends one at a time, and its faults strike.
#include <algorithm>
#include <cstring>

#include "sim/sim_fabric.h"
#include "sim/sim_lane.h"

namespace canarynet {
namespace {

// A lane whose turn it is sends so much, or one larger frame. Small frames of a real stream leave in one segment. If
// each waited for a turn of its own, acknowledgements, which overtake, would keep a lane's other frames from ever
// leaving beside another lane's large ones.
constexpr std::int64_t kTurnBytes = 16 * 1024;

}  // namespace

bool SimFabric::window_open(const SimLane& lane) {
  if (lane.shared_) {
    const Frame& frame = frames_[lane.queue_.head];
    const std::int64_t at_once =
        frame.borrowed != nullptr ? static_cast<std::int64_t>(sizeof(wire::Header)) : frame.bytes();
    return lane.waiting_frame_ == kNoSlot && lane.in_flight_bytes_ + at_once <= options_.ring_bytes;
  }
  return lane.in_flight_frames_ == 0 ||
         lane.in_flight_bytes_ + frames_[lane.queue_.head].bytes() <= options_.window_bytes;
}

void SimFabric::kick(SimLane& lane) {
  if (lane.waiting_ || lane.queue_.empty() || !window_open(lane)) return;
  if (lane.nic_ == kNoSlot || (nics_[lane.nic_].options.out.rate.count == 0 && now_ >= nics_[lane.nic_].tx_free_at)) {
    do begin_frame(lane, false);
    while (!lane.queue_.empty() && window_open(lane));
    return;
  }
  wait_for_nic(lane);
  serve(lane.nic_);
}

void SimFabric::wait_for_nic(SimLane& lane) {
  Nic& nic = nics_[lane.nic_];
  lane.waiting_ = true;
  lane.next_waiting_ = kNoSlot;
  if (nic.waiting_tail == kNoSlot) {
    nic.waiting_head = lane.self_.slot;
  } else {
    lanes_[nic.waiting_tail].lane->next_waiting_ = lane.self_.slot;
  }
  nic.waiting_tail = lane.self_.slot;
}

void SimFabric::leave_nic(SimLane& lane) {
  if (!lane.waiting_) return;
  Nic& nic = nics_[lane.nic_];
  lane.waiting_ = false;
  std::uint32_t previous = kNoSlot;
  for (std::uint32_t slot = nic.waiting_head; slot != lane.self_.slot; slot = lanes_[slot].lane->next_waiting_)
    previous = slot;
  if (previous == kNoSlot) nic.turn_bytes = 0;
  (previous == kNoSlot ? nic.waiting_head : lanes_[previous].lane->next_waiting_) = lane.next_waiting_;
  if (nic.waiting_tail == lane.self_.slot) nic.waiting_tail = previous;
}

// Gives an idle NIC the next frame of the lane whose turn it is; a busy one is asked again when it will be idle. Each
// lane has its turn, and sends some bytes in it.
void SimFabric::serve(std::uint32_t index) {
  Nic& nic = nics_[index];
  while (nic.waiting_head != kNoSlot) {
    if (now_ < nic.tx_free_at) {
      if (!nic.tx_event) events_.push(nic.tx_free_at, kTxDone, index);
      nic.tx_event = true;
      return;
    }
    SimLane& lane = *lanes_[nic.waiting_head].lane;
    nic.waiting_head = lane.next_waiting_;
    if (nic.waiting_head == kNoSlot) nic.waiting_tail = kNoSlot;
    lane.waiting_ = false;
    nic.turn_bytes += frames_[lane.queue_.head].bytes();
    begin_frame(lane, false);
    const bool more = !lane.queue_.empty() && window_open(lane);
    const bool goes_on = more && nic.turn_bytes + frames_[lane.queue_.head].bytes() <= kTurnBytes;
    if (!goes_on) nic.turn_bytes = 0;
    if (goes_on) {
      lane.waiting_ = true;
      lane.next_waiting_ = nic.waiting_head;
      nic.waiting_head = lane.self_.slot;
      if (nic.waiting_tail == kNoSlot) nic.waiting_tail = lane.self_.slot;
    } else if (more) {
      wait_for_nic(lane);
    }
  }
}

// How long the NIC sends: the bytes that its shaper's bucket holds at the wire's speed, the rest at its rate.
Nanos SimFabric::time_through(Nic& nic, std::int64_t bytes) const {
  const DirectionOptions& out = nic.options.out;
  if (out.bucket == 0 || out.rate.count == 0) return out.time_for(bytes);
  const std::int64_t refilled = out.rate.bytes_in(std::min(now_ - nic.tokens_at, 1'000_s)).count;
  nic.tokens = std::min(out.bucket, nic.tokens + refilled);
  nic.tokens_at = now_;
  const Nanos on_wire = DirectionOptions::kWireRate.time_for(Bytes{bytes});
  const std::int64_t missing = bytes - nic.tokens;
  nic.tokens -= bytes;
  return missing <= 0 ? on_wire : std::max(on_wire, out.time_for(missing));
}

// The first queued frame leaves now. `at_once`: it does not wait for the NIC (the lane closes).
void SimFabric::begin_frame(SimLane& lane, bool at_once) {
  const std::uint32_t index = frames_.pop(&lane.queue_);
  Frame& frame = frames_[index];
  const std::int64_t bytes = frame.bytes();
  const std::int64_t room = lane.shared_ ? options_.ring_bytes - lane.in_flight_bytes_ : bytes;
  --lane.queued_frames_;
  lane.queued_bytes_ -= static_cast<std::size_t>(bytes);
  lane.in_flight_bytes_ += bytes;
  ++lane.in_flight_frames_;
  lane.counters_.bytes_sent += static_cast<std::uint64_t>(bytes);
  ++lane.counters_.frames_sent;
  forget_unflushed(lane, lane.queued_frames_);
  if (lane.wants_room_ && lane.queued_frames_ <= options_.queue_frames / 2) {
    lane.wants_room_ = false;
    wake(lane.host_, {InboxEntry::kWritable, kNoSlot, lane.self_});
  }
  frame.from = lane.self_;
  frame.to = lane.peer_;
  frame.from_host = static_cast<std::uint16_t>(lane.host_);
  frame.to_host = static_cast<std::uint16_t>(lane.peer_host_);
  frame.from_nic = lane.nic_;
  frame.to_nic = lane.peer_nic_;
  frame.serialise = {};
  if (frame.borrowed != nullptr) {
    link_live(lane, index);
    // Control has no acknowledgements: what it has handed over is copied, as by a kernel's socket.
    const bool control = lane.rail_ == kControlRail;
    if ((!options_.stream && !lane.shared_) || control) copy_payload(frame, frame.payload_bytes);
    if (bytes > room) {
      frame.flags |= Frame::kWaiting | Frame::kEarlyHead;
      frame.limit = static_cast<std::uint32_t>(room - static_cast<std::int64_t>(sizeof(wire::Header)));
      lane.waiting_frame_ = index;
    }
  }
  Nanos delay = latency(lane.nic_, lane.peer_nic_);
  Nanos copy_delay;
  Nanos pace;  // from one frame of the lane to the next, at its receiver
  if (lane.nic_ != kNoSlot) {
    Nic& nic = nics_[lane.nic_];
    const DirectionOptions& out = nic.options.out;
    const DirectionOptions& in = nics_[lane.peer_nic_].options.in;
    if (!at_once) {
      frame.serialise = time_through(nic, std::min(bytes, room));
      if (frame.serialise.count > 0) nic.tx_free_at = now_ + frame.serialise;
    }
    nic.counters.tx_bytes += static_cast<std::uint64_t>(bytes);
    ++nic.counters.tx_frames;
    const PathOptions* const path = path_between(lane.nic_, lane.peer_nic_);
    if (options_.stream && path != nullptr && path->stream_rate.count > 0)
      pace = path->stream_rate.time_for(Bytes{std::min(bytes, room)});
    for (const DirectionOptions* d : {&out, &in}) {
      if (options_.stream && d->stream_rate.count > 0)
        pace = std::max(pace, d->stream_rate.time_for(Bytes{std::min(bytes, room)}));
      if (d->jitter.count > 0)
        delay.count += static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->jitter.count) + 1));
      if (random_.chance_ppm(d->loss_ppm)) frame.flags |= Frame::kLost;
      if (d->frame_bytes_max != 0 && bytes > d->frame_bytes_max) frame.flags |= Frame::kLost;
      if (random_.chance_ppm(d->corrupt_ppm)) corrupt(frame);
      const bool reliable = options_.reliable_control && lane.rail_ == kControlRail;
      if (random_.chance_ppm(d->reorder_ppm) && !reliable) {
        frame.flags |= Frame::kUnordered;
        delay.count += static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->reorder_delay.count)));
        ++counters_.reordered;
      }
      if (random_.chance_ppm(d->duplicate_ppm) && !reliable) {
        copy_delay.count =
            1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->reorder_delay.count)));
      }
    }
    if (options_.early_headers && (options_.stream || lane.shared_) && (frame.flags & Frame::kUnordered) == 0 &&
        frame.payload_bytes > kInlinePayloadBytes) {
      frame.flags |= Frame::kEarlyHead;
    }
  }
  frame.serialise = std::max(frame.serialise, pace);
  frame.begun = now_;
  frame.left_at = now_ + frame.serialise;
  lane.leaves_at_ = frame.left_at;
  lane.leaves_for_ = frame.serialise;
  lane.leaves_bytes_ = bytes;
  const std::int64_t slowness = hosts_[frame.to_host].slowness;
  Nanos head = now_ + delay * slowness + frame.serialise * (slowness - 1);
  // Nothing can be seen before the last bit, so one event is enough. (The receiving NIC's own rate needs the time of
  // the first bit.)
  if ((frame.flags & Frame::kEarlyHead) == 0 &&
      (lane.peer_nic_ == kNoSlot || nics_[lane.peer_nic_].options.in.rate.count == 0)) {
    head += frame.serialise;
    frame.serialise = {};
  }
  if ((frame.flags & Frame::kUnordered) == 0) {
    head = std::max(head, lane.last_arrival_ + (frame.serialise.count == 0 ? pace : Nanos{}));
    lane.last_arrival_ = head + frame.serialise;
    if ((frame.flags & Frame::kEarlyHead) != 0 && frame.serialise.count > 1) {
      // The frame before may become whole this very instant, in an event pushed later: let it go first.
      head += 1_ns;
      frame.serialise -= 1_ns;
    }
  }
  events_.push(head, SimFabric::kHead, index);
  if (copy_delay.count > 0) push_copy(frame, head + frame.serialise + copy_delay);
}

void SimFabric::push_copy(Frame& frame, Nanos at) {
  if (frame.borrowed != nullptr) copy_payload(frame, frame.payload_bytes);
  const std::uint32_t index = frames_.take();
  Frame& copy = frames_[index];  // `frame` stays where it is: chunks do not move
  copy = frame;
  copy.payload = nullptr;
  if (frame.payload != nullptr) {
    frames_.take_payload(copy, frame.payload_bytes);
    std::memcpy(copy.payload, frame.payload, frame.payload_bytes);
  }
  copy.serialise = {};
  copy.flags = Frame::kCopy | Frame::kUnordered;
  ++counters_.duplicated;
  events_.push(at, kHead, index);
}

void SimFabric::send_fin(SimLane& lane) {
  const Nanos at = std::max(now_ + latency(lane.nic_, lane.peer_nic_), lane.last_arrival_);
  if (SimLane* peer = resolve(lane.peer_)) peer->fin_arrival_ = at;
  const std::uint32_t index = frames_.take();
  Frame& fin = frames_[index];
  fin.from = lane.self_;
  fin.to = lane.peer_;
  fin.from_host = static_cast<std::uint16_t>(lane.host_);
  fin.to_host = static_cast<std::uint16_t>(lane.peer_host_);
  fin.from_nic = lane.nic_;
  fin.to_nic = lane.peer_nic_;
  push_end(index, Frame::kFin, at);
}

void SimFabric::push_end(std::uint32_t index, Frame::Kind kind, Nanos at) {
  Frame& frame = frames_[index];
  frame.kind = kind;
  frame.payload_bytes = 0;
  frame.serialise = {};
  frame.flags = Frame::kCopy;  // not counted as in flight
  events_.push(at, kHead, index);
}

void SimFabric::corrupt(Frame& frame) {
  if (frame.borrowed != nullptr) copy_payload(frame, frame.payload_bytes);
  ++counters_.corrupted;
  const std::uint64_t bits = 1 + random_.below(3);
  for (std::uint64_t i = 0; i < bits; ++i) {
    const std::uint64_t bit = random_.below(static_cast<std::uint64_t>(frame.bytes()) * 8);
    const std::size_t byte = static_cast<std::size_t>(bit / 8);
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    if (byte < sizeof(wire::Header)) {
      reinterpret_cast<std::byte*>(&frame.header)[byte] ^= mask;
    } else {
      frame.payload[byte - sizeof(wire::Header)] ^= mask;
    }
  }
}

}  // namespace canarynet
