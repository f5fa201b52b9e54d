#include "sim/sim_fabric.h"

#include <algorithm>
#include <cstring>

#include "sim/sim_lane.h"

namespace canarynet {

namespace {

// Bytes / rate in plain 64-bit arithmetic: frames are at most 1 MiB, and this runs once or twice per frame.
Nanos time_on(BytesPerSec rate, std::int64_t bytes) {
  return rate.count == 0 ? Nanos{} : Nanos{bytes * 1'000'000'000 / rate.count};
}

std::int64_t bytes_of(const Frame& frame) {
  return static_cast<std::int64_t>(sizeof(wire::Header)) + frame.payload_bytes;
}

}  // namespace

NicOptions NicOptions::link(Nanos latency, BytesPerSec rate) {
  NicOptions options;
  options.out.latency = latency / 2;
  options.in.latency = latency - latency / 2;
  options.out.rate = options.in.rate = rate;
  return options;
}

void SimFabric::Inbox::push(const InboxEntry& entry) {
  if (tail_ - head_ == ring_.size()) {
    std::vector<InboxEntry> larger(ring_.empty() ? 16 : 2 * ring_.size());
    for (std::size_t i = head_; i != tail_; ++i) larger[i & (larger.size() - 1)] = ring_[i & (ring_.size() - 1)];
    ring_ = std::move(larger);
  }
  ring_[tail_++ & (ring_.size() - 1)] = entry;
}

// --- lanes and hosts ----------------------------------------------------------------------------------------------------

SimLane* SimFabric::resolve(SlotRef ref) const {
  if (ref.slot >= lanes_.size() || lanes_[ref.slot].generation != ref.generation) return nullptr;
  return lanes_[ref.slot].lane;
}

SlotRef SimFabric::add_lane(SimLane* lane) {
  if (free_lanes_.empty()) {
    free_lanes_.push_back(static_cast<std::uint32_t>(lanes_.size()));
    lanes_.emplace_back();
  }
  const std::uint32_t slot = free_lanes_.back();
  free_lanes_.pop_back();
  lanes_[slot].lane = lane;
  lane->number_ = ++lanes_made_;
  return {slot, lanes_[slot].generation};
}

void SimFabric::remove_lane(SlotRef ref) {
  lanes_[ref.slot].lane = nullptr;
  ++lanes_[ref.slot].generation;
  free_lanes_.push_back(ref.slot);
}

void SimFabric::wake(int host, const InboxEntry& entry) {
  hosts_[static_cast<std::size_t>(host)].inbox.push(entry);
  make_ready(host);
}

void SimFabric::make_ready(int host) {
  Host& h = hosts_[static_cast<std::size_t>(host)];
  if (h.ready || h.frozen || h.crashed) return;
  h.ready = true;
  ready_.push_back(host);
}

void SimFabric::take_ready_hosts(std::vector<int>* hosts) {
  hosts->clear();
  for (const int host : ready_) {
    Host& h = hosts_[static_cast<std::size_t>(host)];
    h.ready = false;
    if (!h.inbox.empty() || h.factory->unflushed_count_ != 0) hosts->push_back(host);
  }
  ready_.clear();
}

Nanos SimFabric::next_event() const { return ready_.empty() ? events_.next_at() : now_; }

void SimFabric::advance_to(Nanos t) {
  CANARY_CHECK(t >= now_, "virtual time only goes forward");
  while (events_.next_at() <= t) {
    const Event event = events_.pop();
    ++counters_.events;
    now_ = event.at;
    const SlotRef ref{event.index, event.generation};
    switch (event.kind) {
      case kTxDone:
        nics_[event.index].tx_event = false;
        serve(event.index);
        break;
      case kHead:
        on_head(event.index);
        break;
      case kBody:
        on_body(event.index);
        break;
      case kConnect:
        on_connect(ref);
        break;
      case kConnected: {
        SimLane* lane = resolve(ref);
        if (lane == nullptr || lane->dead_ || lane->up_) break;
        if (blocked(static_cast<std::uint16_t>(lane->peer_host_), static_cast<std::uint16_t>(lane->host_),
                    lane->peer_nic_, lane->nic_)) {
          events_.push(now_ + options_.retransmit_delay, kConnected, event.index, event.generation);
          break;
        }
        lane->up_ = true;
        wake(lane->host_, {InboxEntry::kUp, kNoSlot, ref});
        break;
      }
      case kRefused:
        if (SimLane* lane = resolve(ref)) down(*lane, Status(CANARY_UNREACHABLE, "connection refused"), true);
        break;
      case kConnectTimeout:
        if (SimLane* lane = resolve(ref); lane != nullptr && !lane->up_) {
          down(*lane, Status(CANARY_UNREACHABLE, "no answer to the connection request"), false);
        }
        break;
      case kRetry:
        retry(ref);
        break;
      default:
        CANARY_CHECK(false, "unknown event");
    }
  }
  now_ = t;
}

void SimFabric::on_connect(SlotRef dialler) {
  SimLane* lane = resolve(dialler);
  if (lane == nullptr || lane->dead_) return;
  const auto here = static_cast<std::uint16_t>(lane->host_);
  const auto there = static_cast<std::uint16_t>(lane->peer_host_);
  if (blocked(here, there, lane->nic_, lane->peer_nic_) || blocked(there, here, lane->peer_nic_, lane->nic_)) {
    events_.push(now_ + options_.retransmit_delay, kConnect, dialler.slot, dialler.generation);
    return;
  }
  const Nanos back = now_ + latency(lane->peer_nic_, lane->nic_);
  Host& host = hosts_[there];
  const bool listens = lane->listener_rail_ != kControlRail || host.control_port == lane->listener_port_;
  if (host.crashed || !listens || host.factory->acceptor_ == nullptr) {
    events_.push(back, kRefused, dialler.slot, dialler.generation);
    return;
  }
  auto* accepted = new SimLane(*this, lane->peer_host_, lane->host_, lane->listener_rail_, lane->peer_nic_, lane->nic_);
  accepted->fabric_owned_ = true;
  accepted->up_ = true;
  accepted->peer_ = dialler;
  lane->peer_ = accepted->self_;
  wake(there, {InboxEntry::kAccept, kNoSlot, accepted->self_});
  events_.push(back, kConnected, dialler.slot, dialler.generation);
}

void SimFabric::drop_lists(SimLane& lane) {
  while (!lane.queue_.empty()) frames_.give_back(frames_.pop(&lane.queue_));
  lane.queued_frames_ = 0;
  lane.queued_bytes_ = 0;
  while (!lane.held_.empty()) discard(frames_.pop(&lane.held_));
  while (!lane.held_whole_.empty()) discard(frames_.pop(&lane.held_whole_));
  while (!lane.deferred_.empty()) discard(frames_.pop(&lane.deferred_));
  lane.landed_ = {};
  forget_unflushed(lane, 0);
  leave_nic(lane);
}

// No more than `at_most` frames of the lane still wait for a flush().
void SimFabric::forget_unflushed(SimLane& lane, std::uint32_t at_most) {
  if (lane.unflushed_ <= at_most) return;
  lane.unflushed_ = at_most;
  if (at_most == 0) --hosts_[static_cast<std::size_t>(lane.host_)].factory->unflushed_count_;
}

void SimFabric::down(SimLane& lane, Status why, bool hangup) {
  if (lane.dead_) return;
  lane.dead_ = true;
  lane.up_ = false;
  lane.down_reason_ = std::move(why);
  lane.down_hangup_ = hangup;
  drop_lists(lane);
  wake(lane.host_, {InboxEntry::kDown, kNoSlot, lane.self_});
}

// This end closes: what its "kernel" has (flushed and copied frames, up to the first borrowed one) still goes out, then FIN.
void SimFabric::close(SimLane& lane) {
  if (!lane.dead_ && lane.peer_.slot != kNoSlot) {
    while (lane.queued_frames_ > lane.unflushed_ && frames_[lane.queue_.head].borrowed == nullptr)
      begin_frame(lane, true);
    send_fin(lane);
  }
  lane.dead_ = true;
  lane.up_ = false;
  drop_lists(lane);
}

// --- sending ------------------------------------------------------------------------------------------------------------

Nanos SimFabric::latency(std::uint32_t from_nic, std::uint32_t to_nic) const {
  if (from_nic == kNoSlot) return options_.control_latency;
  return nics_[from_nic].options.out.latency + nics_[to_nic].options.in.latency;
}

bool SimFabric::window_open(const SimLane& lane) {
  return lane.in_flight_frames_ == 0 ||
         lane.in_flight_bytes_ + bytes_of(frames_[lane.queue_.head]) <= options_.window_bytes;
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
  (previous == kNoSlot ? nic.waiting_head : lanes_[previous].lane->next_waiting_) = lane.next_waiting_;
  if (nic.waiting_tail == lane.self_.slot) nic.waiting_tail = previous;
}

// Gives an idle NIC the next frame of the lane whose turn it is; a busy one is asked again when it will be idle.
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
    begin_frame(lane, false);
    if (!lane.queue_.empty() && window_open(lane)) wait_for_nic(lane);
  }
}

// The first queued frame leaves now. `at_once`: it does not wait for the NIC (the lane closes).
void SimFabric::begin_frame(SimLane& lane, bool at_once) {
  const std::uint32_t index = frames_.pop(&lane.queue_);
  Frame& frame = frames_[index];
  const std::int64_t bytes = bytes_of(frame);
  --lane.queued_frames_;
  lane.queued_bytes_ -= static_cast<std::size_t>(bytes);
  lane.in_flight_bytes_ += bytes;
  ++lane.in_flight_frames_;
  lane.counters_.bytes_sent += static_cast<std::uint64_t>(bytes);
  ++lane.counters_.frames_sent;
  forget_unflushed(lane, lane.queued_frames_);
  if (frame.borrowed != nullptr) {
    frames_.take_payload(frame, frame.payload_bytes);
    std::memcpy(frame.payload, frame.borrowed, frame.payload_bytes);
    frame.borrowed = nullptr;
  }
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
  Nanos delay = latency(lane.nic_, lane.peer_nic_);
  Nanos copy_delay;
  if (lane.nic_ != kNoSlot) {
    Nic& nic = nics_[lane.nic_];
    const DirectionOptions& out = nic.options.out;
    const DirectionOptions& in = nics_[lane.peer_nic_].options.in;
    if (!at_once) {
      frame.serialise = time_on(out.rate, bytes);
      if (frame.serialise.count > 0) nic.tx_free_at = now_ + frame.serialise;
    }
    nic.counters.tx_bytes += static_cast<std::uint64_t>(bytes);
    ++nic.counters.tx_frames;
    for (const DirectionOptions* d : {&out, &in}) {
      if (d->jitter.count > 0)
        delay.count += static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->jitter.count) + 1));
      if (random_.chance_ppm(d->loss_ppm)) frame.flags |= Frame::kLost;
      if (d->frame_bytes_max != 0 && bytes > d->frame_bytes_max) frame.flags |= Frame::kLost;
      if (random_.chance_ppm(d->corrupt_ppm)) corrupt(frame);
      if (random_.chance_ppm(d->reorder_ppm)) {
        frame.flags |= Frame::kUnordered;
        delay.count += static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->reorder_delay.count)));
        ++counters_.reordered;
      }
      if (random_.chance_ppm(d->duplicate_ppm)) {
        copy_delay.count =
            1 + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(d->reorder_delay.count)));
      }
    }
    if (options_.early_headers && options_.stream && (frame.flags & Frame::kUnordered) == 0 &&
        frame.payload_bytes > kInlinePayloadBytes) {
      frame.flags |= Frame::kEarlyHead;
    }
  }
  const std::int64_t slowness = hosts_[frame.to_host].slowness;
  Nanos head = now_ + delay * slowness + frame.serialise * (slowness - 1);
  // Nothing is to be seen before the last bit: one event is enough. (The receiving NIC's own rate needs the first bit's time.)
  if ((frame.flags & Frame::kEarlyHead) == 0 &&
      (lane.peer_nic_ == kNoSlot || nics_[lane.peer_nic_].options.in.rate.count == 0)) {
    head += frame.serialise;
    frame.serialise = {};
  }
  if ((frame.flags & Frame::kUnordered) == 0) {
    head = std::max(head, lane.last_arrival_);
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

void SimFabric::push_copy(const Frame& frame, Nanos at) {
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
  ++counters_.corrupted;
  const std::uint64_t bits = 1 + random_.below(3);
  for (std::uint64_t i = 0; i < bits; ++i) {
    const std::uint64_t bit = random_.below(static_cast<std::uint64_t>(bytes_of(frame)) * 8);
    const std::size_t byte = static_cast<std::size_t>(bit / 8);
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    if (byte < sizeof(wire::Header)) {
      reinterpret_cast<std::byte*>(&frame.header)[byte] ^= mask;
    } else {
      frame.payload[byte - sizeof(wire::Header)] ^= mask;
    }
  }
}

// --- arriving -----------------------------------------------------------------------------------------------------------

void SimFabric::finish_flight(Frame& frame) {
  if ((frame.flags & Frame::kCopy) != 0) return;
  SimLane* lane = resolve(frame.from);
  if (lane == nullptr || lane->dead_) return;
  lane->in_flight_bytes_ -= bytes_of(frame);
  --lane->in_flight_frames_;
  kick(*lane);
}

void SimFabric::discard(std::uint32_t index) {
  finish_flight(frames_[index]);
  frames_.give_back(index);
}

// Something came for a connection that is not there any more.
void SimFabric::answer_reset(const Frame& frame) {
  if (frame.kind != Frame::kData) return;
  SimLane* lane = resolve(frame.from);
  if (lane == nullptr || lane->dead_ || lane->reset_sent_) return;
  lane->reset_sent_ = true;
  // What the closed end sent before goes first: it must not be lost to the answer to something else.
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
  if (blocked(frame.from_host, frame.to_host, frame.from_nic, frame.to_nic) || (live && lane->silent_)) {
    ++counters_.lost;
    if (live && options_.stream && !copy) {
      hold(*lane, index, now_ + options_.retransmit_delay);
    } else {
      // A stream's sender waits for an acknowledgement that never comes: its window stays taken.
      if (!options_.stream) finish_flight(frame);
      frames_.give_back(index);
    }
    return;
  }
  if (!live) {
    answer_reset(frame);
    discard(index);
    return;
  }
  if (!lane->up_) {  // the answer to the connection request is still on its way: this says as much
    lane->up_ = true;
    wake(lane->host_, {InboxEntry::kUp, kNoSlot, lane->self_});
  }
  if ((frame.flags & Frame::kLost) != 0) {
    frame.flags &= static_cast<std::uint8_t>(~Frame::kLost);
    ++counters_.lost;
    if (options_.stream && !copy) {
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

// The first bit is at the receiving NIC. It takes frames one after the other, none faster than its own rate.
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
      nic.rx_free_at = begin + time_on(nic.options.in.rate, bytes_of(frame));
      nic.counters.rx_bytes += static_cast<std::uint64_t>(bytes_of(frame));
      ++nic.counters.rx_frames;
      end = std::max(end, nic.rx_free_at);
    } else {
      end = std::max(end, begin);
    }
  }
  if (ordered && lane.incoming_ != 0) end = std::max(end, lane.last_whole_);
  if (end <= now_ && (!ordered || lane.incoming_ == 0)) {
    wake(frame.to_host, {InboxEntry::kFrame, index, frame.to});
    return;
  }
  if (ordered) {
    ++lane.incoming_;
    lane.last_whole_ = end;
  }
  if (early) wake(frame.to_host, {InboxEntry::kHead, index, frame.to});
  events_.push(end, kBody, index);
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
    if (lane->silent_ || blocked(frame.from_host, frame.to_host, frame.from_nic, frame.to_nic)) {
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
  if (lane->silent_ || blocked(static_cast<std::uint16_t>(lane->peer_host_), static_cast<std::uint16_t>(lane->host_),
                               lane->peer_nic_, lane->nic_)) {
    lane->retry_set_ = true;
    events_.push(now_ + options_.retransmit_delay, kRetry, ref.slot, ref.generation);
    return;
  }
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

void SimFabric::note(Nanos at, int host, std::uint64_t lane, std::uint64_t kind, const wire::Header* header) {
  const auto mix = [this](std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15ull;
    hash_ ^= hash_ >> 29;
  };
  mix(static_cast<std::uint64_t>(at.count));
  mix(lane << 24 | static_cast<std::uint64_t>(host) << 8 | kind);
  if (header == nullptr) return;
  mix(static_cast<std::uint64_t>(header->kind) << 56 | std::uint64_t{header->flow} << 24 | header->epoch);
  mix(std::uint64_t{header->op} << 32 | std::uint64_t{header->step} << 16 | header->source);
  mix(std::uint64_t{header->piece} << 32 | std::uint64_t{header->destination} << 16 | header->flags);
  mix(std::uint64_t{header->lane_sequence} << 32 | header->payload_crc32);
}

}  // namespace canarynet
