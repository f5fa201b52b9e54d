// The channel's lanes: dialling, hello, probation, heartbeats, stalls and deaths. The sending half is in channel.cc.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/duration_text.h"
#include "transport/channel.h"
#include "transport/channel_limits.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

}  // namespace

void Channel::set_rail_names(std::vector<std::string> local, std::vector<std::string> remote) {
  local_names_ = std::move(local);
  remote_names_ = std::move(remote);
}

const std::string& Channel::remote_name(const Path& path) const {
  static const std::string none;
  const auto i = static_cast<std::size_t>(path.spec.remote_rail);
  return path.spec.remote_rail >= 0 && i < remote_names_.size() ? remote_names_[i] : none;
}

std::string Channel::path_name(const Path& path) const {
  const auto name = [](const std::vector<std::string>& names, int rail) {
    const auto i = static_cast<std::size_t>(rail);
    return rail >= 0 && i < names.size() ? names[i] : "rail" + std::to_string(rail);
  };
  return name(local_names_, path.spec.local_rail) + ">" + name(remote_names_, path.spec.remote_rail);
}

std::string Channel::describe_paths() const {
  std::string out;
  for (const Path& path : paths_) {
    if (path.spec.lane_index != 0 || path.spec.local_rail < 0) continue;
    out += (out.empty() ? "" : ", ") + path_name(path);
  }
  return out;
}

int Channel::paths_up() const {
  int up = 0;
  for (const Path& path : paths_) up += path.state == Path::State::kUp;
  return up;
}

void Channel::start(Nanos now) {
  now_ = now;
  last_heard_ = now;
  for (Path& path : paths_) {
    path.state_since = now;
    path.last_heard = now;
    if (options_.dialer) dial(path, now);
  }
  earlier(now + options_.heartbeat_interval);
}

void Channel::dial(Path& path, Nanos now) {
  path.state_since = now;
  auto lane = factory_.dial(path.spec.local_rail, path.spec.remote, *this);
  if (!lane.ok()) {
    path.next_dial = now + limits::kDialRetry;
    earlier(path.next_dial);
    return;
  }
  path.lane = lane.take();
  path.lane->owner = &path;
  path.state = Path::State::kDialing;
  earlier(now + limits::kDialTimeout);
}

void Channel::send_hello(Path& path) {
  wire::HelloPayload hello;
  hello.job = options_.job;
  hello.engine = options_.my_engine;
  hello.target = options_.peer_engine;
  hello.rail = static_cast<std::uint16_t>(path.spec.local_rail);
  hello.peer_rail = static_cast<std::uint16_t>(path.spec.remote_rail);
  hello.lane = static_cast<std::uint16_t>(path.spec.lane_index);
  hello.purpose = options_.purpose;
  if (options_.purpose == wire::kHelloEndpoint) hello.paths = static_cast<std::uint32_t>(paths_.size());
  wire::Header h;
  h.kind = wire::Kind::kHello;
  h.payload_bytes = sizeof hello;
  send_frame(path, h, &hello, kNoCookie);
}

void Channel::on_up(Lane& lane) {
  if (lane.owner != nullptr) send_hello(path_of(lane));
}

bool Channel::adopt(std::unique_ptr<Lane>&& lane, const wire::HelloPayload& hello, Nanos now) {
  now_ = now;
  const auto named = [&](const Path& path) {
    return path.spec.local_rail == hello.peer_rail && path.spec.remote_rail == hello.rail &&
           path.spec.lane_index == hello.lane;
  };
  if (std::none_of(paths_.begin(), paths_.end(), named)) {
    const auto unknown =
        std::find_if(paths_.begin(), paths_.end(), [](const Path& p) { return p.spec.local_rail < 0; });
    if (unknown != paths_.end()) {
      unknown->spec = {hello.peer_rail, hello.rail, hello.lane, {}};
      unknown->in_flight.resize(AckState::kWindow);
    }
  }
  for (Path& path : paths_) {
    if (!named(path)) continue;
    // The dialling side knows better: it would not dial again if the lane we have still worked for it.
    if (path.lane) fail_path(path, "replaced by a new connection");
    path.lane = std::move(lane);
    path.lane->owner = &path;
    path.lane->set_sink(this);
    path.last_heard = now;
    last_heard_ = now;
    send_hello(path);
    come_up(path);
    return true;
  }
  return false;
}

void Channel::come_up(Path& path) {
  path.state_since = now_;
  path.last_heard = now_;
  path.last_progress = now_;
  ever_up_ = true;
  hung_up_ = false;
  path.refused_since = Nanos::max();
  if (path.up_since.count == 0) {
    path.state = Path::State::kUp;
    path.up_since = now_;
    client_.on_path_event(*this, path, path_name(path) + " up");
    awake_ = true;
    return;
  }
  path.state = Path::State::kProbation;
  path.probation_until = now_ + path.probation_backoff;
  earlier(path.probation_until);
  awake_ = true;  // where every lane was down, it carries what waits
}

void Channel::bury(Path& path) {
  Path::add(&path.closed_lanes, path.lane->counters());
  path.lane->owner = nullptr;  // later callbacks of this lane are ignored
  graveyard_.push_back(std::move(path.lane));
}

// Gives the lane up: what it held goes to the others.
void Channel::fail_path(Path& path, const std::string& why) {
  CANARY_CHECK(path.lane != nullptr, "a path without a lane can't fail");
  const bool was_up = path.state == Path::State::kUp || path.state == Path::State::kProbation;
  // Buried, it may still be driven until the factory's poll() is over: it must not touch anybody's memory any more.
  for (std::uint32_t s = path.first_unacked; path.lane->up() && s != path.next_sequence; ++s) {
    const Path::InFlight& e = path.entry(s);
    if (e.bytes != 0 && e.record != kNone) path.lane->cancel(e.record);
  }
  if (path.landing) {
    path.landing = false;
    path.lane->redirect(path.landing_cookie);
    client_.on_landing_lost(*this, path.landing_header, path.landing_cookie);
  }
  bury(path);
  for (std::uint32_t s = path.first_unacked; s != path.next_sequence; ++s) {
    Path::InFlight& e = path.entry(s);
    const std::uint32_t index = e.record;
    const bool held = e.bytes != 0 && index != kNone;
    e = Path::InFlight{};
    if (!held) continue;
    Record& r = records_[index];
    if (--r.placements == 0 && r.state == Record::State::kInFlight) {
      r.resent = Resend::kFailover;
      requeue(index);
    }
  }
  path.next_sequence = path.first_unacked = 1;
  path.unacked_bytes = 0;
  path.stalled = path.blocked = path.needs_flush = path.echo_seen = path.ack_now = false;
  path.stalls = 0;
  path.received.reset();
  path.ack_pending_frames = 0;
  path.ack_pending_bytes = 0;
  path.ack_due = Nanos::max();
  path.peer_sent_ns = 0;
  path.refused_since = Nanos::max();
  path.estimator = PathEstimator{};
  path.state = Path::State::kIdle;
  path.state_since = now_;
  path.next_dial = now_ + limits::kDialRetry;
  earlier(path.next_dial);
  awake_ = true;
  if (!was_up || peer_left_ || leaving_) return;
  // Flapping is answered by a longer probation; ten clean seconds are forgiven.
  const bool clean = now_ - path.up_since >= limits::kCleanAfter;
  path.probation_backoff = clean || path.probation_backoff.count == 0
                               ? limits::kProbationFirst
                               : std::min(path.probation_backoff * 2, limits::kProbationMax);
  ++path.failovers;
  client_.on_path_event(*this, path, path_name(path) + " down: " + why);
}

void Channel::on_down(Lane& lane, const Status& reason, bool hangup) {
  if (lane.owner == nullptr) return;
  Path& path = path_of(lane);
  const bool counted = path.state != Path::State::kDialing;
  const Nanos refused_since = path.refused_since;
  fail_path(path, reason.text());
  if (hangup && !counted) path.refused_since = std::min(refused_since, now_);
  if (!hangup || !counted) return;
  bool any = false;
  for (const Path& p : paths_) any |= p.lane != nullptr;
  hung_up_ = !any;
}

Nanos Channel::refused_since() const {
  Nanos latest{};
  for (const Path& p : paths_) latest = std::max(latest, p.refused_since);
  return paths_.empty() ? Nanos::max() : latest;
}

// --- timers --------------------------------------------------------------------------------------------------------------

Nanos Channel::stall_after(const Path& path) const {
  const auto rate = path.estimator.rate();
  Nanos expected = limits::kStallMax / 4;
  if (rate.count != 0) {
    expected =
        path.estimator.rtt_min() + path.estimator.rttvar() * 4 + rate.time_for(Bytes{2 * options_.piece_bytes.count});
  } else if (path.estimator.srtt().count != 0) {
    // A lane that carries small frames only (credits, for which a whole connection may wait) never gets a rate.
    expected = path.estimator.srtt() + path.estimator.rttvar() * 4 +
               limits::kSlowestRate.time_for(Bytes{static_cast<std::int64_t>(path.unacked_bytes)});
  }
  Nanos t = std::clamp(expected * 2, limits::kStallMin, limits::kStallMax);
  for (std::uint32_t i = 0; i < path.stalls && t < limits::kStallMax; ++i) t = std::min(t * 2, limits::kStallMax);
  return t;
}

// True when the path was given up.
bool Channel::check_stall(Path& path, Nanos now) {
  if (path.first_unacked == path.next_sequence) return false;
  bool other_usable = false;
  Nanos other_progress{};
  for (const Path& p : paths_) {
    if (&p == &path || (p.state != Path::State::kUp && p.state != Path::State::kProbation)) continue;
    other_usable |= !p.stalled;  // on probation as well: choose_path() takes it where no other is left
    other_progress = std::max(other_progress, p.last_heard);
  }
  if (path.stalled && !other_usable) {
    // What it was to be spared for has gone: it is the only one left, and must be tried again like any.
    path.stalled = false;
    path.last_progress = std::max(path.last_progress, now - stall_after(path));
  }
  const Nanos quiet_since = path.last_progress;
  if (!path.stalled && now - quiet_since >= stall_after(path)) {
    path.stall_began = now;
    if (other_usable) {
      path.stalled = true;
      for (std::uint32_t s = path.first_unacked; s != path.next_sequence; ++s) {
        Path::InFlight& e = path.entry(s);
        if (e.bytes == 0 || e.record == kNone) continue;
        Record& r = records_[e.record];
        if (r.state != Record::State::kInFlight || r.placements > 1) continue;
        r.resent = Resend::kStalled;
        requeue(e.record);
      }
      declare_lost(path, path.first_unacked);  // its void asks for an ack, should the lane still live
    } else {
      // Nowhere else to go: try again here, ever more rarely.
      ++path.stalls;
      path.last_progress = now;
      declare_lost(path, path.first_unacked);
    }
    awake_ = true;
  }
  if (path.stalled && now - path.stall_began >= limits::kDeadAfterStall &&
      other_progress > quiet_since + stall_after(path)) {
    fail_path(path, "no acknowledgement for " + milliseconds(now - quiet_since));
    return true;
  }
  earlier(path.stalled ? now + limits::kDeadAfterStall / 4 : path.last_progress + stall_after(path));
  return false;
}

void Channel::send_heartbeat(Path& path) {
  wire::HeartbeatPayload beat;
  beat.sent_ns = static_cast<std::uint64_t>(now_.count);
  beat.echo_ns = path.peer_sent_ns;
  if (path.peer_sent_ns != 0) beat.echo_held_ns = static_cast<std::uint64_t>((now_ - path.peer_heard_at).count);
  wire::Header h;
  h.kind = wire::Kind::kHeartbeat;
  h.payload_bytes = sizeof beat;
  client_.fill_heartbeat(*this, &h);
  send_frame(path, h, &beat, kNoCookie);
}

void Channel::on_timer(Nanos now) {
  now_ = now;
  next_timer_ = Nanos::max();
  const Nanos interval = options_.heartbeat_interval;
  for (Path& path : paths_) {
    switch (path.state) {
      case Path::State::kIdle:
        if (!options_.dialer || peer_left_ || leaving_) break;
        if (now >= path.next_dial) {
          dial(path, now);
        } else {
          earlier(path.next_dial);
        }
        break;
      case Path::State::kDialing:
        if (now - path.state_since >= limits::kDialTimeout) {
          fail_path(path, "no answer");
        } else {
          earlier(path.state_since + limits::kDialTimeout);
        }
        break;
      case Path::State::kProbation:
        if (now >= path.probation_until) {
          path.state = Path::State::kUp;
          path.up_since = now;
          client_.on_path_event(*this, path, path_name(path) + " up again");
          awake_ = true;
        } else {
          earlier(path.probation_until);
        }
        [[fallthrough]];
      case Path::State::kUp: {
        if (check_stall(path, now)) break;
        // A lane that says nothing while its peer is heard elsewhere is dead, even if we have nothing in flight on it.
        const Nanos silence = std::min(interval * 4, options_.silence_limit);
        if (now - path.last_heard >= silence && last_heard_ - path.last_heard >= interval * 2) {
          fail_path(path, "silent for " + milliseconds(now - path.last_heard));
          break;
        }
        if (now - path.last_sent >= interval) {
          path.last_sent = now;
          send_heartbeat(path);
        }
        earlier(path.last_sent + interval);
        earlier(std::max(path.last_heard + silence, now + interval / 4));
        if (path.ack_due != Nanos::max()) {
          if (now >= path.ack_due) {
            path.ack_now = true;
            acks_waiting_ = true;
          } else {
            earlier(path.ack_due);
          }
        }
        break;
      }
    }
  }
}

// --- farewell ------------------------------------------------------------------------------------------------------------

void Channel::broadcast(const wire::Header& header, const void* payload, Nanos now) {
  now_ = now;
  for (Path& path : paths_) {
    if (path.lane && path.state != Path::State::kDialing) send_frame(path, header, payload, kNoCookie);
  }
}

void Channel::goodbye(Nanos now) {
  wire::Header h;
  h.kind = wire::Kind::kGoodbye;
  broadcast(h, nullptr, now);
  leaving_ = true;
}

}  // namespace canarynet
