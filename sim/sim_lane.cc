#include "sim/sim_lane.h"

#include <algorithm>
#include <cstring>

namespace canarynet {

SimLane::SimLane(SimFabric& fabric, int host, int peer_host, int rail, std::uint32_t nic, std::uint32_t peer_nic)
    : fabric_(&fabric), host_(host), peer_host_(peer_host), rail_(rail), nic_(nic), peer_nic_(peer_nic) {
  self_ = fabric.add_lane(this);
  shared_ = nic_ != kNoSlot && fabric.nics_[nic_].shared;
}

SimLane::~SimLane() {
  if (fabric_ == nullptr) return;
  fabric_->close(*this);
  fabric_->remove_lane(self_);
}

Address SimLane::remote() const {
  if (fabric_ == nullptr) return {};
  if (peer_nic_ == kNoSlot) return fabric_->control_address(peer_host_);
  return fabric_->hosts_[static_cast<std::size_t>(peer_host_)]
      .rails[static_cast<std::size_t>(fabric_->nics_[peer_nic_].rail)]
      .address;
}

bool SimLane::backs_off() const {
  if (!up_ || fabric_ == nullptr || !fabric_->options_.stream) return false;
  const SimLane* peer = fabric_->resolve(peer_);
  return peer == nullptr || peer->dead_ ? unanswered_ : peer->vain_retries_ != 0;
}

// Bytes that this end sent and that are on their way or there, the part of a frame that has left among them: as many as
// a kernel would acknowledge but for a round trip. Nothing gets on over a dead wire.
std::uint64_t SimLane::got_on() const {
  const SimLane* peer = fabric_->resolve(peer_);
  const auto host = [](int h) { return static_cast<std::uint16_t>(h); };
  const bool deaf_wire = nic_ != kNoSlot && fabric_->lane_blocked(host(host_), host(peer_host_), nic_, peer_nic_);
  if (peer == nullptr || peer->dead_ || peer->silent_ || deaf_wire)
    return counters_.bytes_sent - static_cast<std::uint64_t>(in_flight_bytes_);
  // A NIC sends one at a time.
  const std::int64_t left = std::clamp<std::int64_t>((leaves_at_ - fabric_->now_).count, 0, leaves_for_.count);
  const double part = leaves_for_.count == 0 ? 0 : static_cast<double>(left) / static_cast<double>(leaves_for_.count);
  return counters_.bytes_sent - static_cast<std::uint64_t>(part * static_cast<double>(leaves_bytes_));
}

Lane::Progress SimLane::progress() const {
  // Without a stream, what is lost is as gone as what arrived.
  if (!up_ || fabric_ == nullptr || !fabric_->options_.stream) return {};
  const SimLane* peer = fabric_->resolve(peer_);
  return {got_on(), peer == nullptr || peer->dead_ ? 0 : peer->got_on()};
}

bool SimLane::send(const wire::Header& header, const std::byte* payload, std::uint64_t cookie) {
  if (!up_) return false;
  if (queued_frames_ >= fabric_->options_.queue_frames) {
    wants_room_ = true;
    return false;
  }
  FramePool& frames = fabric_->frames_;
  const std::uint32_t index = frames.take();
  Frame& frame = frames[index];
  frame.kind = Frame::kData;
  frame.header = header;
  frame.cookie = cookie;
  frame.payload_bytes = header.payload_bytes;
  if (header.payload_bytes > kInlinePayloadBytes) {
    frame.borrowed = payload;
  } else if (header.payload_bytes != 0) {
    frames.take_payload(frame, header.payload_bytes);
    std::memcpy(frame.payload, payload, header.payload_bytes);
  }
  if (wire::overtakes(header.kind)) {
    std::uint32_t last = kNoSlot;
    for (std::uint32_t i = queue_.head; i != kNoSlot && wire::overtakes(frames[i].header.kind); i = frames[i].next)
      last = i;
    frames.insert(&queue_, last, index);
  } else {
    frames.append(&queue_, index);
  }
  ++queued_frames_;
  queued_bytes_ += sizeof(wire::Header) + header.payload_bytes;
  if (unflushed_++ == 0) {
    SimFabric::Host& host = fabric_->hosts_[static_cast<std::size_t>(host_)];
    host.factory->unflushed_.push_back(self_);
    ++host.factory->unflushed_count_;
    fabric_->make_ready(host_);  // a flush() before the next poll takes that back
  }
  return true;
}

void SimLane::flush(Nanos) {
  if (fabric_ == nullptr) return;
  fabric_->forget_unflushed(*this, 0);
  if (up_) fabric_->kick(*this);
}

bool SimLane::cancel(std::uint64_t cookie) {
  if (fabric_ == nullptr) return false;
  bool dropped = fabric_->take_back(*this, cookie);
  if (queue_.empty()) return dropped;
  FramePool& frames = fabric_->frames_;
  FrameList kept;
  while (!queue_.empty()) {
    const std::uint32_t index = frames.pop(&queue_);
    if (frames[index].cookie != cookie) {
      frames.append(&kept, index);
      continue;
    }
    --queued_frames_;
    queued_bytes_ -= sizeof(wire::Header) + frames[index].payload_bytes;
    frames.give_back(index);
    dropped = true;
  }
  queue_ = kept;
  fabric_->forget_unflushed(*this, queued_frames_);
  if (queue_.empty()) fabric_->leave_nic(*this);
  if (wants_room_ && queued_frames_ <= fabric_->options_.queue_frames / 2) {
    wants_room_ = false;
    fabric_->wake(host_, {SimFabric::InboxEntry::kWritable, kNoSlot, self_});
  }
  return dropped;
}

void SimLane::redirect(std::uint64_t cookie) {
  if (landed_.frame == kNoSlot || landed_.landing.kind != Landing::Kind::kSpan || landed_.landing.cookie != cookie)
    return;
  landed_.landing.kind = Landing::Kind::kDiscard;
}

std::string SimLane::description() const {
  const auto name = [this](int host, std::uint32_t nic) {
    if (fabric_ == nullptr || nic == kNoSlot) return "host" + std::to_string(host);
    return fabric_->hosts_[static_cast<std::size_t>(host)]
        .rails[static_cast<std::size_t>(fabric_->nics_[nic].rail)]
        .address.to_string();
  };
  std::string text = "sim " + name(host_, nic_) + ">" + name(peer_host_, peer_nic_);
  if (rail_ == kControlRail) return text + " (control)";
  return text + " on nic" + std::to_string(rail_);
}

// --- the factory -----------------------------------------------------------------------------------------------------

std::span<const Rail> SimLaneFactory::rails() const { return fabric_.hosts_[static_cast<std::size_t>(host_)].rails; }

std::uint64_t SimLaneFactory::kernel_tx_bytes(int rail) const { return fabric_.nic_counters(host_, rail).tx_bytes; }

Result<Address> SimLaneFactory::listen_control(const Address& at) {
  SimFabric::Host& host = fabric_.hosts_[static_cast<std::size_t>(host_)];
  Address bound = fabric_.control_address(host_);
  bool wildcard = at.family == Address::Family::kNone;
  if (at.family == Address::Family::kIPv4) {
    wildcard = std::all_of(at.bytes.begin(), at.bytes.begin() + 4, [](std::uint8_t b) { return b == 0; });
  }
  if (!wildcard) {
    if (fabric_.host_of(at) != host_)
      return Status(CANARY_SYSTEM, "listen on " + at.to_string() + ": no address of this host");
    bound = at;
  }
  if (host.control_port != 0) {
    return Status(CANARY_SYSTEM, "listen on " + at.to_string() + ": this host listens already");
  }
  host.control_port = at.port != 0 ? at.port : 5000;
  bound.port = host.control_port;
  return bound;
}

Result<std::unique_ptr<Lane>> SimLaneFactory::dial(int rail, const Address& to, LaneSink& sink) {
  if (fabric_.hosts_[static_cast<std::size_t>(host_)].crashed) return Status(CANARY_CLOSED, "dial on a crashed host");
  Result<SimFabric::Route> found = fabric_.route(host_, rail, to);
  if (!found.ok()) return found.status().wrap("dial " + to.to_string());
  const SimFabric::Route route = found.value();
  if (route.from_nic != kNoSlot && !fabric_.nics_[route.from_nic].up && fabric_.nics_[route.from_nic].announced_down) {
    return Status(CANARY_UNREACHABLE, "dial " + to.to_string() + ": network is down");
  }
  auto lane = std::make_unique<SimLane>(fabric_, host_, route.to_host, rail, route.from_nic, route.to_nic);
  lane->listener_rail_ = route.to_rail;
  lane->listener_port_ = to.port;
  lane->set_sink(&sink);
  const SlotRef self = lane->self_;
  fabric_.events_.push(fabric_.now_ + fabric_.latency(route.from_nic, route.to_nic), SimFabric::kConnect, self.slot,
                       self.generation);
  fabric_.events_.push(fabric_.now_ + fabric_.options_.connect_timeout, SimFabric::kConnectTimeout, self.slot,
                       self.generation);
  return std::unique_ptr<Lane>(std::move(lane));
}

std::size_t SimLaneFactory::poll(Nanos) {
  SimFabric::Host& host = fabric_.hosts_[static_cast<std::size_t>(host_)];
  if (host.frozen || host.crashed) return 0;
  std::size_t done = unflushed_count_;
  for (const SlotRef ref : unflushed_) {
    SimLane* lane = fabric_.resolve(ref);
    if (lane != nullptr && lane->unflushed_ != 0) lane->flush(fabric_.now_);
  }
  unflushed_.clear();
  while (done < fabric_.options_.poll_budget && !host.inbox.empty()) {
    show(host.inbox.pop());
    ++done;
  }
  if (!host.inbox.empty()) fabric_.make_ready(host_);
  return done;
}

void SimLaneFactory::show(const SimFabric::InboxEntry& entry) {
  using Entry = SimFabric::InboxEntry;
  if (entry.kind == Entry::kFrame) return show_frame(entry.frame, false);
  SimLane* lane = fabric_.resolve(entry.lane);
  if (lane == nullptr) return;
  switch (entry.kind) {
    case Entry::kFrame:
      break;
    case Entry::kHead:
      if (!lane->dead_) show_frame(entry.frame, true);
      break;
    case Entry::kAccept: {
      std::unique_ptr<Lane> owned(lane);
      lane->fabric_owned_ = false;
      if (lane->dead_ || acceptor_ == nullptr) break;  // gone before it was seen
      fabric_.note(fabric_.now_, host_, lane->number_, entry.kind, nullptr);
      acceptor_->on_accept(std::move(owned));
      CANARY_CHECK(fabric_.resolve(entry.lane) == nullptr || lane->sink_ != nullptr,
                   "an accepted lane was left without a sink");
      break;
    }
    case Entry::kUp:
      fabric_.note(fabric_.now_, host_, lane->number_, entry.kind, nullptr);
      if (lane->up_) lane->sink_->on_up(*lane);
      break;
    case Entry::kDown:
      if (lane->sink_ == nullptr) break;
      fabric_.note(fabric_.now_, host_, lane->number_, entry.kind, nullptr);
      lane->sink_->on_down(*lane, lane->down_reason_, lane->down_hangup_);
      break;
    case Entry::kWritable:
      if (lane->up()) lane->sink_->on_writable(*lane);
      break;
  }
}

void SimLaneFactory::bad_header(SimLane& lane, const std::string& why) {
  ++lane.counters_.header_errors;
  if (!fabric_.options_.bad_header_resets) return;
  fabric_.deafen(lane, Status(CANARY_SYSTEM, "frame refused: " + why));
}

// `head_only`: the header is there, the payload is on its way.
void SimLaneFactory::show_frame(std::uint32_t index, bool head_only) {
  FramePool& frames = fabric_.frames_;
  Frame& frame = frames[index];
  SimLane* lane = fabric_.resolve(frame.to);
  if (lane == nullptr || lane->dead_) {
    fabric_.answer_reset(frame);
    return fabric_.discard(index);
  }
  if (lane->deaf_) {
    if (!head_only) fabric_.discard(index);
    return;
  }
  const bool ends_a_cut = lane->landed_.frame == SimLane::kCutFrame && frame.kind != Frame::kData;
  if (lane->landed_.frame != kNoSlot && lane->landed_.frame != index && !ends_a_cut) {
    // Only one payload lands at a time, as on any stream: a frame that overtook it waits until it is whole.
    if (!head_only) frames.append(&lane->deferred_, index);
    return;
  }
  if (!head_only && (frame.flags & Frame::kCut) != 0) {
    lane->landed_.frame = SimLane::kCutFrame;
    return fabric_.discard(index);
  }
  if (frame.kind != Frame::kData) {
    fabric_.down(
        *lane, Status(CANARY_SYSTEM, frame.kind == Frame::kFin ? "closed by peer" : "connection reset by peer"), true);
    return fabric_.discard(index);
  }
  SimLane::Landed& landed = lane->landed_;
  if (landed.frame == kNoSlot) {
    const char* why = wire::validate(frame.header);
    if (why == nullptr && (frame.header.flags & wire::kUnchecked) != 0 && !lane->shared_) why = "no payload crc";
    if (why != nullptr) {
      if (head_only) return;  // the error is told, and acted upon, when the frame is whole
      bad_header(*lane, wire::explain(why, frame.header));
      return fabric_.discard(index);
    }
    landed.landing = lane->sink_->landing_for(*lane, frame.header);
    landed.frame = index;
    CANARY_CHECK(
        landed.landing.kind != Landing::Kind::kSpan || landed.landing.data != nullptr || frame.payload_bytes == 0,
        "a kSpan landing needs memory");
    if (head_only) {
      // Half of the payload is there: code that reads it too early, or gives its place to another lane, is found out.
      frame.shown = frame.payload_bytes / 2;
      if (landed.landing.kind == Landing::Kind::kSpan) {
        std::memcpy(landed.landing.data, FramePool::payload_of(frame), frame.shown);
      }
      SimLane* sender = fabric_.resolve(frame.from);
      if (sender != nullptr && sender->waiting_frame_ != kNoSlot) fabric_.make_room(*sender);
      return;
    }
  } else if (head_only) {
    return;
  }
  Arrival arrival;
  arrival.cookie = landed.landing.cookie;
  arrival.owner = landed.landing.owner;
  arrival.discarded = landed.landing.kind == Landing::Kind::kDiscard;
  if (!arrival.discarded) {
    const std::byte* data = FramePool::payload_of(frame);
    if (landed.landing.kind == Landing::Kind::kSpan) {
      if (frame.payload_bytes > frame.shown) {
        std::memcpy(landed.landing.data + frame.shown, data + frame.shown, frame.payload_bytes - frame.shown);
      }
      data = landed.landing.data;
    }
    arrival.payload = {data, frame.payload_bytes};
    // In shared memory the sender says that it gave a frame up; on a stream only the CRC can tell.
    constexpr auto kNeedsNone = static_cast<std::uint8_t>(wire::kUnchecked | wire::kSequenced);
    const bool given_up = lane->shared_ && (frame.flags & Frame::kGivenUp) != 0;
    const bool unchecked = (frame.header.flags & kNeedsNone) == kNeedsNone;
    const bool right = unchecked || wire::payload_crc(data, frame.payload_bytes) == frame.header.payload_crc32;
    arrival.intact = right && !given_up;
    if (!right) ++lane->counters_.payload_errors;
    if (!right && frame.borrowed != nullptr) ++fabric_.counters_.changed;
  } else if (frame.borrowed != nullptr) {
    fabric_.look_for_change(frame, frame.borrowed);
  }
  landed = {};  // first: a redirect() from within on_frame() must not find the landing
  lane->counters_.bytes_received += sizeof(wire::Header) + frame.payload_bytes;
  ++lane->counters_.frames_received;
  ++fabric_.counters_.delivered;
  fabric_.note(fabric_.now_, host_, lane->number_, SimFabric::InboxEntry::kFrame, &frame.header);
  const SlotRef to = frame.to;
  lane->sink_->on_frame(*lane, frame.header, arrival);
  fabric_.discard(index);
  lane = fabric_.resolve(to);
  if (lane == nullptr || lane->dead_) return;
  while (!lane->deferred_.empty()) {
    fabric_.wake(host_, {SimFabric::InboxEntry::kFrame, frames.pop(&lane->deferred_), to});
  }
}

}  // namespace canarynet
