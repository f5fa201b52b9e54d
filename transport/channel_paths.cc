// The channel's lanes: dialling, hello, probation, heartbeats, stalls and deaths. The sending half is in channel.cc.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/duration_text.h"
#include "base/log.h"
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

void Channel::tell(const Path& path, const std::string& what) const {
  log(LogLevel::kDebug, "path %s to engine %u %s", path_name(path).c_str(), options_.peer_engine, what.c_str());
}

void Channel::tell_shares() {
  std::vector<std::uint64_t> sent;
  for (const Path& path : paths_) sent.push_back(path.counters().bytes_sent);
  if (!shares_.changed(now_, sent)) return;
  std::string text;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    char part[64];
    const auto rate = static_cast<double>(paths_[i].estimator.rate().count) * 1e-6;
    std::snprintf(part, sizeof part, " %d %%", shares_.share(i));
    text += (i == 0 ? "" : ", ") + path_name(paths_[i]) + part;
    std::snprintf(part, sizeof part, " (measured: %.1f MB/s)", rate);
    if (rate > 0) text += part;
  }
  log(LogLevel::kDebug, "what goes to engine %u is spread over its paths: %s", options_.peer_engine, text.c_str());
}

std::string Channel::describe_failures() const {
  std::string out;
  for (const Path& path : paths_) {
    if (path.no_lane.empty() || out.find(path.no_lane) != std::string::npos) continue;
    out += (out.empty() ? ": " : "; ") + path.no_lane;
  }
  return out;
}

Obstacle Channel::obstacle() const {
  Obstacle out = Obstacle::kNone;
  for (const Path& path : paths_) {
    if (path.obstacle != Obstacle::kNone && out != Obstacle::kHere) out = path.obstacle;
  }
  return out;
}

int Channel::paths_up() const {
  int up = 0;
  for (const Path& path : paths_) up += path.state == Path::State::kUp;
  return up;
}

bool Channel::stands() const {
  return std::any_of(paths_.begin(), paths_.end(), [](const Path& path) {
    return path.state == Path::State::kUp || path.state == Path::State::kProbation;
  });
}

void Channel::start(Nanos now) {
  now_ = now;
  last_heard_ = heard_by_peer_ = now;
  for (Path& path : paths_) {
    path.state_since = now;
    path.last_heard = now;
    if (options_.dialer && !peer_left_ && !peer_died_) dial(path, now);
  }
  earlier(now + options_.heartbeat_interval);
}

// Where a hello or its answer may have got lost, several tries have to come before the peer counts as out of reach.
Nanos Channel::first_patience() const {
  return std::clamp(options_.silence_limit / 4, limits::kBesideTimeout, limits::kDialTimeout);
}

void Channel::dial(Path& path, Nanos now) {
  path.state_since = now;
  auto lane = factory_.dial(path.spec.local_rail, path.spec.remote, *this);
  if (!lane.ok()) {
    tell(path, "can't be dialled: " + lane.status().text());
    path.no_lane = lane.status().text();
    path.obstacle = Obstacle::kHere;
    path.next_dial = now + limits::kDialRetry;
    earlier(path.next_dial);
    return;
  }
  path.lane = lane.take();
  path.lane->owner = &path;
  path.state = Path::State::kDialing;
  earlier(now + limits::kDialTimeout);
}

void Channel::send_hello(Path& path, Lane& lane) {
  wire::HelloPayload hello;
  hello.job = options_.job;
  hello.engine = options_.my_engine;
  hello.target = options_.peer_engine;
  hello.rail = static_cast<std::uint16_t>(path.spec.local_rail);
  hello.peer_rail = static_cast<std::uint16_t>(path.spec.remote_rail);
  hello.lane = static_cast<std::uint16_t>(path.spec.lane_index);
  hello.purpose = options_.purpose;
  if (options_.purpose == wire::kHelloEndpoint) hello.paths = static_cast<std::uint32_t>(paths_.size());
  const wire::Header h = wire::greeting(wire::Kind::kHello, &hello, sizeof hello);
  lane.send(h, reinterpret_cast<const std::byte*>(&hello), kNoCookie);
  lane.flush(now_);
}

void Channel::on_up(Lane& lane) {
  if (lane.owner == nullptr || peer_died_) return;
  Path& path = path_of(lane);
  if (path.successor.get() == &lane) path.successor_stood = true;
  send_hello(path, lane);
  if (path.lane.get() != &lane || path.state != Path::State::kDialing) return;
  path.state_since = now_;
  earlier(now_ + std::max(path.answer_patience, first_patience()));
}

// Anybody may say anything in a hello; where a lane came in is known here, and where it comes from, where nothing
// on the way translates addresses. A peer on this host comes from the address that it dialled (TcpLaneFactory::dial).
bool Channel::belongs(const Path& path, const Lane& lane) const {
  if (lane.rail() != path.spec.local_rail) return false;
  const auto rails = factory_.rails();
  const auto rail = static_cast<std::size_t>(path.spec.local_rail);
  const Address from = lane.remote(), &named = path.spec.remote;
  if (rail >= rails.size() || !from.valid() || !named.valid()) return true;
  if (from.family != named.family) return false;
  if (named.family == Address::Family::kSharedMemory || !named.same_subnet(rails[rail].address)) return true;
  return from.bytes == named.bytes || from.bytes == rails[rail].address.bytes;
}

const char* Channel::adopt(std::unique_ptr<Lane>& lane, const wire::HelloPayload& hello, Nanos now) {
  now_ = now;
  if (options_.dialer) return "the lanes to that peer are dialled from here";
  const auto named = [&](const Path& path) {
    return path.spec.local_rail == hello.peer_rail && path.spec.remote_rail == hello.rail &&
           path.spec.lane_index == hello.lane;
  };
  auto at = std::find_if(paths_.begin(), paths_.end(), named);
  if (at == paths_.end()) {
    at = std::find_if(paths_.begin(), paths_.end(), [](const Path& p) { return p.spec.local_rail < 0; });
    if (at == paths_.end()) return "its hello names no lane of ours";
    if (lane->rail() != hello.peer_rail) return "it came in by another NIC than its hello says";
    at->spec = {hello.peer_rail, hello.rail, hello.lane, {}};
    rails_->mention(at->spec.local_rail);
    at->in_flight.reserve(AckState::kWindow);
  }
  Path& path = *at;
  if (!belongs(path, *lane)) return "it does not come from where its hello says";
  if (path.lane == nullptr) {
    take(path, std::move(lane));
    return nullptr;
  }
  // The latest one counts: the dialling side has given up those before it.
  if (path.candidate) graveyard_.push_back(std::move(path.candidate));
  path.candidate = std::move(lane);
  path.candidate->owner = nullptr;  // what it says before it is taken is not heard
  path.candidate->set_sink(this);
  if (path.challenged == Nanos::max()) {
    path.challenged = now;
    send_heartbeat(path);  // answered by a reset where the peer's end is gone
  }
  settle_candidate(path, now);
  return nullptr;
}

void Channel::take(Path& path, std::unique_ptr<Lane> lane) {
  path.lane = std::move(lane);
  path.lane->owner = &path;
  path.lane->set_sink(this);
  last_heard_ = now_;
  send_hello(path, *path.lane);
  come_up(path);
}

void Channel::drop_candidate(Path& path) {
  path.challenged = Nanos::max();
  if (path.candidate) graveyard_.push_back(std::move(path.candidate));
}

void Channel::settle_candidate(Path& path, Nanos now) {
  if (!path.candidate) return;
  if (path.lane != nullptr && path.lane->up()) {
    // Also a process that stood still has then read what the old lane brought meanwhile.
    const Nanos heard_out = path.challenged + std::min(options_.heartbeat_interval, limits::kDialTimeout / 2);
    const Nanos silent = path.last_heard + options_.heartbeat_interval * limits::kReplaceAfterBeats;
    const bool speechless = now >= silent && path.lane->backs_off();  // nothing of it can be on its way
    if (now < silent || (now < heard_out && !speechless)) return earlier(std::max(heard_out, silent));
  }
  // It keeps its owner meanwhile: without memory this ends here, maybe within a callback of the candidate.
  if (path.lane != nullptr)
    fail_path(path, "silent for " + milliseconds(now - path.last_heard) + ", and replaced by a new connection");
  path.challenged = Nanos::max();
  if (path.candidate->up()) {
    take(path, std::move(path.candidate));
  } else {
    graveyard_.push_back(std::move(path.candidate));
  }
}

void Channel::come_up(Path& path) {
  path.state_since = now_;
  path.last_heard = now_;
  path.last_progress = now_;
  path.no_lane.clear();
  path.obstacle = Obstacle::kNone;
  ever_up_ = true;
  hung_up_ = false;
  path.refused_since = Nanos::max();
  path.answer_patience = {};
  earlier(now_ + options_.heartbeat_interval);
  // The answer tells the round trip of a lane that carries nothing yet.
  if (options_.dialer) send_heartbeat(path);
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
  tell(path, "is connected again, on probation for " + milliseconds(path.probation_backoff));
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
    client_.on_landing_lost(*this, path.landing_header, path.landing_owner, path.landing_cookie);
  }
  bury(path);
  for (std::uint32_t s = path.first_unacked; s != path.next_sequence; ++s) {
    Path::InFlight& e = path.entry(s);
    const std::uint32_t index = e.record;
    const bool held = e.bytes != 0 && index != kNone;
    if (e.probe) forget_probe(path, e);
    e = Path::InFlight{};
    if (!held) continue;
    Record& r = records_[index];
    if (--r.placements == 0 && r.state == Record::State::kInFlight) {
      r.resent = Resend::kFailover;
      requeue(index);
    }
  }
  path.next_sequence = path.first_unacked = 1;
  rails_->leave(path.spec.local_rail, path.unacked_bytes);
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
  end_train(path, false);
  path.link.on_lane_down();
  path.beats = {};
  path.trial = Trial{};
  path.window_was_full = false;
  path.lane = std::move(path.successor);  // the next one may be on its way already
  path.state = path.lane != nullptr ? Path::State::kDialing : Path::State::kIdle;
  path.state_since = path.lane != nullptr ? path.successor_since : now_;
  path.next_dial = now_ + limits::kDialRetry;
  earlier(path.lane != nullptr || path.candidate ? now_ : path.next_dial);
  awake_ = true;
  if (!was_up) tell(path, "did not come up: " + why);
  path.no_lane = why;
  path.obstacle = Obstacle::kNone;
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
  if (path.successor.get() == &lane) return successor_down(path, reason, hangup);
  const bool counted = path.state != Path::State::kDialing;
  const Nanos refused_since = path.refused_since;
  fail_path(path, reason.text());
  if (hangup && !counted) path.refused_since = std::min(refused_since, now_);
  if (hangup && counted) note_hangup();
}

void Channel::note_hangup() {
  hung_up_ = std::none_of(paths_.begin(), paths_.end(), [](const Path& p) {
    return p.state == Path::State::kUp || p.state == Path::State::kProbation;
  });
}

Nanos Channel::refused_since() const {
  Nanos latest{};
  for (const Path& p : paths_) latest = std::max(latest, p.refused_since);
  return paths_.empty() ? Nanos::max() : latest;
}

void Channel::move_clocks(Nanos missed) {
  last_heard_ += missed;
  heard_by_peer_ += missed;
  for (Path& path : paths_) {
    end_train(path, false);
    for (Nanos* clock :
         {&path.last_heard, &path.last_progress, &path.stall_began, &path.state_since, &path.successor_since})
      *clock += missed;
    if (path.refused_since != Nanos::max()) path.refused_since += missed;
  }
}

// --- timers ----------------------------------------------------------------------------------------------------------

Nanos Channel::stall_after(const Path& path) const {
  const auto rate = path.estimator.seen();
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

// It is used again: what it holds and no other lane has taken meanwhile is not sent a second time.
void Channel::end_stall(Path& path) {
  if (!path.stalled) return;
  path.stalled = false;
  for (std::uint32_t s = path.first_unacked; s != path.next_sequence; ++s) {
    const Path::InFlight& e = path.entry(s);
    if (e.bytes == 0 || e.record == kNone || records_[e.record].state != Record::State::kWaiting) continue;
    records_[e.record].state = Record::State::kInFlight;
    records_[e.record].resent = Resend::kNone;
  }
  for (Waiting& queue : waiting_) {
    queue.tail = kNone;
    for (std::uint32_t i = std::exchange(queue.head, kNone), next = kNone; i != kNone; i = next) {
      next = std::exchange(records_[i].next, kNone);
      if (records_[i].state != Record::State::kInFlight) append(queue, i);
    }
  }
}

// What a lane holds when its NIC collapses to a hundredth takes seconds, and whole frames are acknowledged rarely. Its
// connection goes on meanwhile; given up, it would be on probation when the NIC is back, each time for longer.
bool Channel::gets_on(Path& path, Nanos now) {
  const std::uint64_t acked = path.lane->progress().acknowledged;
  if (acked <= path.acked_at_stall) return false;
  path.acked_at_stall = acked;
  path.stall_began = now;
  return true;
}

// Likewise of what comes: half of a frame is a sign of life. Asked in the second half of the silence that is allowed.
bool Channel::still_brings(Path& path, Nanos now, Nanos silence) {
  if (now - path.last_heard < silence / 2) return true;
  if (path.quiet_looked_at <= path.last_heard) {
    path.quiet_looked_at = now;
    path.came_by_then = path.lane->progress().received;
    return true;
  }
  if (now - path.last_heard < silence) return true;
  const std::uint64_t came = path.lane->progress().received;
  if (came <= path.came_by_then) return false;
  path.came_by_then = came;
  path.quiet_looked_at = path.last_heard = now;
  return true;
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
    // The reason to spare it has gone: it is the only one left, and must be tried again like any.
    end_stall(path);
    path.last_progress = std::max(path.last_progress, now - stall_after(path));
  }
  const Nanos quiet_since = path.last_progress;
  if (!path.stalled && now - quiet_since >= stall_after(path)) {
    path.stall_began = now;
    if (other_usable) {
      tell(path,
           "has stalled: nothing was acknowledged for " + milliseconds(now - quiet_since) + "; other paths take over");
      path.stalled = true;
      path.acked_at_stall = path.lane->progress().acknowledged;
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
      tell(path,
           "has stalled: nothing was acknowledged for " + milliseconds(now - quiet_since) + "; there is no other path");
      path.last_progress = now;
      declare_lost(path, path.first_unacked);
    }
    awake_ = true;
  }
  if (path.stalled && now - path.stall_began >= limits::kDeadAfterStall &&
      other_progress > quiet_since + stall_after(path)) {
    if (!gets_on(path, now)) {
      fail_path(path, "no acknowledgement for " + milliseconds(now - quiet_since));
      return true;
    }
  }
  earlier(path.stalled ? now + limits::kDeadAfterStall / 4 : path.last_progress + stall_after(path));
  return false;
}

void Channel::watch_link(Path& path) {
  const Nanos alpha = path.link.announced_alpha();
  const BytesPerSec beta = path.link.announced_beta();
  if (!path.link.look(now_) || !log_enabled(LogLevel::kInfo)) return;
  const auto ms = [](Nanos t) { return t.seconds() * 1e3; };
  const auto mbyte = [](BytesPerSec r) { return static_cast<double>(r.count) * 1e-6; };
  log(LogLevel::kInfo, "%s to engine %u: alpha %.3f ms (was %.3f), beta %.1f MB/s (was %.1f)", path_name(path).c_str(),
      options_.peer_engine, ms(path.link.announced_alpha()), ms(alpha), mbyte(path.link.announced_beta()), mbyte(beta));
}

void Channel::send_heartbeat(Path& path, Path::BeatFor why) {
  path.last_beat = (path.last_beat + 1) % path.beats.size();
  path.beats[path.last_beat] = {now_, Bytes{static_cast<std::int64_t>(path.unacked_bytes)}, why};
  wire::HeartbeatPayload beat;
  beat.sent_ns = static_cast<std::uint64_t>(now_.count);
  beat.echo_ns = path.peer_sent_ns;
  if (path.peer_sent_ns != 0) beat.echo_held_ns = static_cast<std::uint64_t>((now_ - path.peer_heard_at).count);
  wire::Header h;
  h.kind = wire::Kind::kHeartbeat;
  h.payload_bytes = sizeof beat;
  client_.fill_heartbeat(*this, &h);
  if (why == Path::BeatFor::kQuestion) h.flags |= wire::kAckNow;
  send_frame(path, h, &beat, kNoCookie);
}

void Channel::look_at_losses(Path& path) {
  if (now_ < path.losses_due) return;
  path.losses_due = now_ + limits::kLossInterval;
  const std::string advice = path.lane->look_at_losses();
  if (advice.empty() || path.losses_told) return;
  path.losses_told = true;
  log(LogLevel::kWarn, "%s, to engine %u: %s", path.lane->description().c_str(), options_.peer_engine, advice.c_str());
}

void Channel::on_timer(Nanos now) {
  const SoleUser::Use use(user_);
  now_ = now;
  next_timer_ = Nanos::max();
  if (log_enabled(LogLevel::kDebug)) tell_shares();
  if (paths_.size() > 1) awake_ |= anything_late(now);
  const Nanos interval = options_.heartbeat_interval;
  for (Path& path : paths_) {
    settle_candidate(path, now);
    switch (path.state) {
      case Path::State::kIdle:
        if (!options_.dialer || peer_left_ || peer_died_ || leaving_) break;
        if (now >= path.next_dial) {
          dial(path, now);
        } else {
          earlier(path.next_dial);
        }
        break;
      case Path::State::kDialing: {
        // Connected, the peer's kernel is there, and its process has merely not answered yet: dialling again would only
        // give it more to do.
        const bool connected = path.lane->up();
        const Nanos first = first_patience();
        const Nanos patience = connected ? std::max(path.answer_patience, first) : limits::kDialTimeout;
        if (now - path.state_since >= patience) {
          const Nanos most = std::max(first, std::min(options_.silence_limit / 4, limits::kAnswerPatienceMax));
          if (connected) path.answer_patience = std::min(patience * 2, most);
          fail_path(path, "no answer");
        } else {
          earlier(path.state_since + patience);
        }
        break;
      }
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
        if (last_heard_ - path.last_heard >= interval * 2 && !still_brings(path, now, silence)) {
          fail_path(path, "silent for " + milliseconds(now - path.last_heard));
          break;
        }
        dial_beside(path, now);
        look_at_losses(path);
        watch_link(path);
        begin_train(path);
        // Acknowledgements of what the peer sends keep a lane busy, and nobody answers them.
        const bool asks = now - heard_by_peer_ > options_.silence_limit / 2;
        if (now - path.last_sent >= interval) {
          path.last_sent = now;
          send_heartbeat(path);
        } else if (asks && now - path.last_beat_sent() >= interval) {
          send_heartbeat(path, Path::BeatFor::kQuestion);
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

// --- farewell --------------------------------------------------------------------------------------------------------

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
