// The receiving half of a channel: what frames are read as, where they land, and what is acknowledged.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/channel.h"
#include "transport/channel_limits.h"
#include "transport/strangers.h"

namespace canarynet {

Landing Channel::landing_for(Lane& lane, const wire::Header& header) {
  if (lane.owner == nullptr) return {};  // given up, awaiting its burial
  Path& path = path_of(lane);
  const char* const malformed = wire::check(header);
  if (path.successor.get() == &lane)
    return {malformed == nullptr ? Landing::Kind::kSlot : Landing::Kind::kDiscard, nullptr, 0};
  path.malformed = malformed;
  if (malformed != nullptr) return {};
  if (header.kind == wire::Kind::kPiece || header.kind == wire::Kind::kSignature) {
    const Landing landing = client_.landing_for(*this, header);
    path.landing = landing.kind == Landing::Kind::kSpan;
    if (!path.landing) return landing;
    path.landing_place = landing.data;
    path.landing_header = header;
    path.landing_owner = landing.owner;
    path.landing_cookie = landing.cookie;
    return landing;
  }
  if (header.kind == wire::Kind::kProbe) return {};
  return {Landing::Kind::kSlot, nullptr, 0};
}

void Channel::on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) {
  if (lane.owner == nullptr) return;
  Path& path = path_of(lane);
  if (path.successor.get() == &lane) {
    if (is_greeted(header, arrival, nullptr)) return succeed(path);
    return drop_successor(path);
  }
  path.last_heard = now_;
  last_heard_ = now_;
  rails_->add_received(path.spec.local_rail, sizeof header + header.payload_bytes);
  if (path.challenged != Nanos::max()) {
    // It speaks: whoever said that this lane has ended was wrong, or lied.
    if (path.candidate)
      client_.on_path_event(*this, path, path_name(path) + " still works: a connection in its place is turned away");
    drop_candidate(path);
  }
  if (path.state == Path::State::kDialing) {
    // The dialled side answers our Hello before anything else.
    std::string why;
    if (is_greeted(header, arrival, &why)) return come_up(path);
    fail_path(path, why);
    if (header.kind == wire::Kind::kAbort && arrival.intact) path.obstacle = Obstacle::kThere;  // and says why
    return;
  }
  arriving_ = &path;
  if (const char* const why = std::exchange(path.malformed, nullptr); why != nullptr) {
    note_malformed(why);
    // Acknowledged, as if it were right: it would come again as it is.
    return note_sequenced(path, header);
  }
  switch (header.kind) {
    case wire::Kind::kPiece:
    case wire::Kind::kSignature: {
      rails_->trains().note_traffic(path.spec.local_rail, now_);
      path.carried = true;
      const bool landed = path.landing;
      path.landing = false;
      if (!arrival.intact && !arrival.discarded) {
        if (landed) client_.on_landing_lost(*this, header, arrival.owner, arrival.cookie);
        path.ack_now = path.ack_pending_frames != 0;
        return;
      }
      if (!client_.on_arrival(*this, header, arrival)) return;
      break;
    }
    case wire::Kind::kProbe:
      rails_->trains().note_probe(path.spec.local_rail, now_);
      break;
    case wire::Kind::kVoid:
      break;
    case wire::Kind::kAck: {
      wire::AckPayload ack;
      if (is_read(header, arrival, &ack)) handle_ack(path, ack);
      return;
    }
    case wire::Kind::kHeartbeat: {
      wire::HeartbeatPayload beat;
      if (!is_read(header, arrival, &beat)) return;
      const Nanos echoed{static_cast<std::int64_t>(beat.echo_ns)};
      const Path::Beat* const ours = path.find_beat(echoed);
      if (ours != nullptr) heard_by_peer_ = std::max(heard_by_peer_, echoed);
      if (ours != nullptr) path.link.note_way(now_, echoed, beat.sent_ns - beat.echo_held_ns);
      const bool first = path.peer_sent_ns == 0;
      path.peer_sent_ns = beat.sent_ns;
      path.peer_heard_at = now_;
      // One that was held back for long tells more of the two clocks than of the way.
      const Nanos held{static_cast<std::int64_t>(beat.echo_held_ns)};
      if (beat.echo_ns != 0 && held >= Nanos{} && held <= limits::kEchoHeldMax) {
        const auto rtt =
            static_cast<std::int64_t>(static_cast<std::uint64_t>(now_.count) - beat.echo_ns - beat.echo_held_ns);
        if (rtt >= 0 && rtt < (60_s).count) note_echo(path, ours, Nanos{rtt});
      }
      if (first) {
        send_heartbeat(path);
      } else {
        answer_in_pause(path);
        if ((header.flags & wire::kAckNow) != 0) answer_question(path);
      }
      client_.on_heartbeat(*this, header);
      return;
    }
    case wire::Kind::kAbort: {
      wire::AbortFrame abort;
      if (is_read(header, arrival, &abort)) client_.on_abort(*this, header, abort);
      return;
    }
    case wire::Kind::kGoodbye:
      peer_departed();
      return;
    case wire::Kind::kHello:
    case wire::Kind::kControl:
      return;
  }
  note_sequenced(path, header);
}

// `beat`: the one that was echoed; nullptr: one that left long ago, or never did.
void Channel::note_echo(Path& path, const Path::Beat* beat, Nanos round_trip) {
  if (beat != nullptr) {
    if (beat->why == Path::BeatFor::kQuestion || beat->why == Path::BeatFor::kAnswer) return;
    path.link.on_echo(now_, round_trip, beat->unacked);  // the peer's beats leave in pauses as well
    if (beat->why == Path::BeatFor::kPause) return;
  }
  if (path.echo_seen) {
    path.estimator.sample_rtt(now_, round_trip);
  } else {
    path.estimator.note_least(now_, round_trip);
  }
  path.echo_seen = true;
}

// The peer's hello. `why_not`: for the path, in words.
bool Channel::is_greeted(const wire::Header& header, const Arrival& arrival, std::string* why_not) const {
  wire::HelloPayload hello;
  const bool read = arrival.intact && wire::read(header, arrival.payload, &hello) == nullptr;
  if (read && wire::speaks_our_version(hello)) return true;
  if (why_not == nullptr) return false;
  const std::string refusal = arrival.intact ? refusal_text(header, arrival.payload) : "";
  if (read) {
    *why_not = wire::describe_versions(hello);
  } else {
    *why_not = refusal.empty() ? "expected a hello" : "turned away by the peer: " + refusal;
  }
  return false;
}

template <typename Frame>
bool Channel::is_read(const wire::Header& header, const Arrival& arrival, Frame* out) {
  if (!arrival.intact) return false;
  const char* const why = wire::read(header, arrival.payload, out);
  if (why != nullptr) note_malformed(why);
  return why == nullptr;
}

void Channel::note_malformed(const char* why) {
  if (arriving_ == nullptr) return;
  const std::uint64_t count = ++arriving_->malformed_frames;
  if ((count & (count - 1)) != 0) return;  // the first, and ever fewer of the others
  log(LogLevel::kWarn, "%s of engine %u sent a frame with %s (%llu so far)", path_name(*arriving_).c_str(),
      options_.peer_engine, why, static_cast<unsigned long long>(count));
}

void Channel::note_sequenced(Path& path, const wire::Header& header) {
  if ((header.flags & wire::kSequenced) == 0) return;
  if (!path.received.mark(header.lane_sequence)) return;
  path.arrived_at = now_;
  path.nic_received = rails_->carried(path.spec.local_rail).received;
  ++path.ack_pending_frames;
  path.ack_pending_bytes += header.payload_bytes;
  if ((header.flags & wire::kAckNow) != 0 || path.ack_pending_bytes >= limits::kAckBytes ||
      path.ack_pending_frames >= limits::kAckFrames) {
    path.ack_now = true;
  } else if (path.ack_due == Nanos::max()) {
    path.ack_due = now_ + limits::kAckDelay;
    earlier(path.ack_due);
  }
  acks_waiting_ = true;
}

void Channel::on_writable(Lane& lane) {
  if (lane.owner == nullptr || path_of(lane).successor.get() == &lane) return;
  path_of(lane).blocked = false;
  awake_ = true;
  acks_waiting_ = true;
}

}  // namespace canarynet
