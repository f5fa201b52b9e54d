// Frames arrive: header first, then whole, at the receiving NIC's rate. Or they are lost, and a stream holds up the
// frames behind them.
#include <algorithm>

#include "sim/sim_fabric.h"
#include "sim/sim_lane.h"

namespace canarynet {

void SimFabric::finish_flight(Frame& frame) {
  if ((frame.flags & Frame::kCopy) != 0) return;
  SimLane* lane = resolve(frame.from);
  if (lane == nullptr || lane->dead_) return;
  lane->in_flight_bytes_ -= frame.bytes();
  --lane->in_flight_frames_;
  if ((frame.flags & Frame::kWaiting) != 0) lane->waiting_frame_ = kNoSlot;
  if (lane->waiting_frame_ != kNoSlot) make_room(*lane);
  kick(*lane);
}

void SimFabric::discard(std::uint32_t index) {
  finish_flight(frames_[index]);
  give_back(index);
}

void SimFabric::give_back(std::uint32_t index) {
  Frame& frame = frames_[index];
  if (frame.borrowed != nullptr) unlink_live(frame);
  frames_.give_back(index);
}

// Answers a frame for a connection that is not there any more.
void SimFabric::answer_reset(const Frame& frame) {
  if (frame.kind != Frame::kData) return;
  SimLane* lane = resolve(frame.from);
  if (lane == nullptr || lane->dead_ || lane->reset_sent_) return;
  lane->reset_sent_ = true;
  // Frames that the closed end sent before go first: they must not be lost to the answer to something else.
  const Nanos at = std::max(now_ + latency(frame.to_nic, frame.from_nic), lane->fin_arrival_);
  const std::uint32_t index = frames_.take();
  Frame& reset = frames_[index];
  reset.from = frame.to;
  reset.to = frame.from;
  reset.from_host = frame.to_host;
  reset.to_host = frame.from_host;
  reset.from_nic = frame.to_nic;
  reset.to_nic = frame.from_nic;
  push_end(index, Frame::kReset, at);
}

void SimFabric::on_head(std::uint32_t index) {
  Frame& frame = frames_[index];
  SimLane* lane = resolve(frame.to);
  const bool live = lane != nullptr && !lane->dead_;
  const bool closing = frame.kind != Frame::kData;
  const bool copy = (frame.flags & Frame::kCopy) != 0 && !closing;
  if (lane_blocked(frame.from_host, frame.to_host, frame.from_nic, frame.to_nic) || (live && lane->silent_)) {
    ++counters_.lost;
    SimLane* const sender = resolve(frame.from);
    if (!live && sender != nullptr) sender->unanswered_ = true;
    if (live && options_.stream && !copy) {
      hold(*lane, index, now_ + options_.retransmit_delay);
    } else if (!live && !closing && !copy && options_.stream && sender != nullptr) {
      events_.push(now_ + options_.retransmit_delay, kHead, index);  // the sender goes on until it is answered
    } else {
      // A stream's sender waits for an acknowledgement that never comes: its window stays taken.
      if (!options_.stream) finish_flight(frame);
      if (live && frame.kind == Frame::kReset) lane->reset_sent_ = false;  // the next frame is answered like the first
      give_back(index);
    }
    return;
  }
  if (!live) {
    answer_reset(frame);
    discard(index);
    return;
  }
  if (!lane->up_) {  // the answer to the connection request is still on its way, but this frame says as much
    lane->up_ = true;
    wake(lane->host_, {InboxEntry::kUp, kNoSlot, lane->self_});
  }
  if ((frame.flags & Frame::kLost) != 0) {
    frame.flags &= static_cast<std::uint8_t>(~Frame::kLost);
    ++counters_.lost;
    if ((options_.stream || (options_.reliable_control && lane->rail_ == kControlRail)) && !copy) {
      hold(*lane, index,
           now_ + latency(frame.from_nic, frame.to_nic) * 2);  // noticed and sent again a round trip later
    } else {
      discard(index);
    }
    return;
  }
  if (!(lane->held_.empty() && lane->held_whole_.empty()) && (frame.flags & Frame::kUnordered) == 0) {
    frames_.append(&lane->held_, index);
    return;
  }
  arrive(index);
}

// The first bit is at the receiving NIC, which takes frames one after the other, none faster than its own rate.
void SimFabric::arrive(std::uint32_t index) {
  Frame& frame = frames_[index];
  Nanos end = now_ + frame.serialise;
  frame.flags |= Frame::kArrived;
  SimLane& lane = *resolve(frame.to);
  // A header is shown early only when nothing before it is still coming in: a stream has one frame in progress.
  const bool early = (frame.flags & Frame::kEarlyHead) != 0 && lane.incoming_ == 0;
  const bool ordered = (frame.flags & Frame::kUnordered) == 0;
  if (frame.to_nic != kNoSlot) {
    Nic& nic = nics_[frame.to_nic];
    // (An early header came a nanosecond late, see begin_frame().)
    const Nanos begin = std::max((frame.flags & Frame::kEarlyHead) != 0 ? now_ - 1_ns : now_, nic.rx_free_at);
    if (frame.kind == Frame::kData) {
      nic.rx_free_at = begin + nic.options.in.time_for(frame.bytes());
      nic.counters.rx_bytes += static_cast<std::uint64_t>(frame.bytes());
      ++nic.counters.rx_frames;
      end = std::max(end, nic.rx_free_at);
    } else {
      end = std::max(end, begin);
    }
  }
  if (ordered && lane.incoming_ != 0) end = std::max(end, lane.last_whole_);
  const bool waiting = (frame.flags & Frame::kWaiting) != 0;  // make_room() says when it ends
  if (end <= now_ && (!ordered || lane.incoming_ == 0) && !waiting) {
    wake(frame.to_host, {InboxEntry::kFrame, index, frame.to});
    return;
  }
  if (ordered) {
    ++lane.incoming_;
    lane.last_whole_ = end;
  }
  if (early) wake(frame.to_host, {InboxEntry::kHead, index, frame.to});
  if (!waiting) events_.push(end, kBody, index);
}

void SimFabric::on_body(std::uint32_t index) {
  Frame& frame = frames_[index];
  SimLane* lane = resolve(frame.to);
  if (lane == nullptr || lane->dead_) {
    answer_reset(frame);
    discard(index);
    return;
  }
  const bool ordered = (frame.flags & Frame::kUnordered) == 0;
  if (ordered) --lane->incoming_;
  if (options_.stream && ordered) {
    if (lane->silent_ || lane_blocked(frame.from_host, frame.to_host, frame.from_nic, frame.to_nic)) {
      ++counters_.lost;
      hold(*lane, index, now_ + options_.retransmit_delay);
      return;
    }
    if (!lane->held_whole_.empty()) {
      frames_.append(&lane->held_whole_, index);
      return;
    }
  }
  wake(frame.to_host, {InboxEntry::kFrame, index, frame.to});
}

void SimFabric::hold(SimLane& lane, std::uint32_t index, Nanos until) {
  frames_.append((frames_[index].flags & Frame::kArrived) != 0 ? &lane.held_whole_ : &lane.held_, index);
  if (lane.retry_set_) return;
  lane.retry_set_ = true;
  events_.push(until, kRetry, lane.self_.slot, lane.self_.generation);
}

void SimFabric::retry(SlotRef ref) {
  SimLane* lane = resolve(ref);
  if (lane == nullptr || lane->dead_) return;
  lane->retry_set_ = false;
  if (lane->held_.empty() && lane->held_whole_.empty()) return;
  if (lane->silent_ || lane_blocked(static_cast<std::uint16_t>(lane->peer_host_),
                                    static_cast<std::uint16_t>(lane->host_), lane->peer_nic_, lane->nic_)) {
    lane->retry_set_ = true;
    ++lane->vain_retries_;
    const std::uint32_t doublings = options_.retransmit_backs_off ? std::min(lane->vain_retries_, 9u) : 0;
    events_.push(now_ + options_.retransmit_delay * (std::int64_t{1} << doublings), kRetry, ref.slot, ref.generation);
    return;
  }
  lane->vain_retries_ = 0;
  while (!lane->held_whole_.empty()) {
    const std::uint32_t index = frames_.pop(&lane->held_whole_);
    wake(lane->host_, {InboxEntry::kFrame, index, ref});
  }
  while (!lane->held_.empty()) {
    const std::uint32_t index = frames_.pop(&lane->held_);
    Frame& frame = frames_[index];
    if ((frame.flags & Frame::kLost) !=
        0) {  // lost on its own account as well: a round trip more for it and all behind it
      frame.flags &= static_cast<std::uint8_t>(~Frame::kLost);
      ++counters_.lost;
      frames_[index].next = lane->held_.head;
      lane->held_.head = index;
      if (lane->held_.tail == kNoSlot) lane->held_.tail = index;
      lane->retry_set_ = true;
      events_.push(now_ + latency(lane->peer_nic_, lane->nic_) * 2, kRetry, ref.slot, ref.generation);
      return;
    }
    arrive(index);
  }
}

}  // namespace canarynet
