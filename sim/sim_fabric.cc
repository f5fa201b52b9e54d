// The clock of the simulated network, the hosts to poll, and connections that come up and end.
#include "sim/sim_fabric.h"

#include <algorithm>

#include "sim/sim_lane.h"

namespace canarynet {

NicOptions NicOptions::link(Nanos latency, BytesPerSec rate) {
  NicOptions options;
  options.out.latency = latency / 2;
  options.in.latency = latency - latency / 2;
  options.out.rate = options.in.rate = rate;
  return options;
}

Nanos DirectionOptions::time_for(std::int64_t bytes) const {
  return rate.count == 0 ? Nanos{} : Nanos{bytes * 1'000'000'000 / rate.count};
}

void SimFabric::Inbox::push(const InboxEntry& entry) {
  if (tail_ - head_ == ring_.size()) {
    std::vector<InboxEntry> larger(ring_.empty() ? 16 : 2 * ring_.size());
    for (std::size_t i = head_; i != tail_; ++i) larger[i & (larger.size() - 1)] = ring_[i & (ring_.size() - 1)];
    ring_ = std::move(larger);
  }
  ring_[tail_++ & (ring_.size() - 1)] = entry;
}

// --- lanes and hosts -------------------------------------------------------------------------------------------------

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
    const Nanos again = options_.retransmit_backs_off ? 1_s : options_.retransmit_delay;
    events_.push(now_ + again, kConnect, dialler.slot, dialler.generation);
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
  cut(lane);
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

// Lets no more than `at_most` frames of the lane wait for a flush().
void SimFabric::forget_unflushed(SimLane& lane, std::uint32_t at_most) {
  if (lane.unflushed_ <= at_most) return;
  lane.unflushed_ = at_most;
  if (at_most == 0) --hosts_[static_cast<std::size_t>(lane.host_)].factory->unflushed_count_;
}

void SimFabric::down(SimLane& lane, Status why, bool hangup) {
  if (lane.dead_) return;
  lane.dead_ = true;
  lane.up_ = false;
  drop_lists(lane);
  if (!lane.deaf_) tell_down(lane, std::move(why), hangup);
}

// A header can't be believed: this end takes nothing more, but what it sends from now on still goes.
void SimFabric::deafen(SimLane& lane, Status why) {
  lane.deaf_ = true;
  drop_lists(lane);
  tell_down(lane, std::move(why), false);
}

void SimFabric::tell_down(SimLane& lane, Status why, bool hangup) {
  lane.down_reason_ = std::move(why);
  lane.down_hangup_ = hangup;
  wake(lane.host_, {InboxEntry::kDown, kNoSlot, lane.self_});
}

// This end closes: everything that its "kernel" has (flushed and copied frames, up to the first borrowed one) still
// goes out, then FIN.
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

Nanos SimFabric::latency(std::uint32_t from_nic, std::uint32_t to_nic) const {
  if (from_nic == kNoSlot) return options_.control_latency;
  const PathOptions* const path = path_between(from_nic, to_nic);
  const Nanos latency = nics_[from_nic].options.out.latency + nics_[to_nic].options.in.latency;
  return path != nullptr ? latency + path->latency : latency;
}

const PathOptions* SimFabric::path_between(std::uint32_t from_nic, std::uint32_t to_nic) const {
  if (paths_.empty()) return nullptr;
  const auto from = static_cast<std::size_t>(nics_[from_nic].host), to = static_cast<std::size_t>(nics_[to_nic].host);
  return &paths_[from * hosts_.size() + to];
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
