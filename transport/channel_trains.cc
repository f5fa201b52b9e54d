// Measures links with frames of their own: trains of probes while a rail is idle, heartbeats in pauses of the traffic.
//
// When a train may go and what it proves is decided in transport/probe_train.h and transport/link_estimate.h. The
// choice of lanes learns nothing from these frames.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "transport/channel.h"
#include "transport/channel_limits.h"

namespace canarynet {

// Traffic keeps heartbeats away, and its frames meet queues: a pause shows the link's own round trip.
void Channel::beat_in_pause(Path& path) {
  if (leaving_ || peer_left_ || path.unacked_bytes != 0) return;
  if (now_ - path.last_beat_sent() >= options_.heartbeat_interval / 4) send_heartbeat(path, Path::BeatFor::kPause);
}

// The peer's heartbeat came in a pause of its traffic, and nothing of ours is before the answer. Where bytes come this
// way only, our acknowledgements would keep its echo away for as long as they do.
void Channel::answer_in_pause(Path& path) {
  if (leaving_ || peer_left_ || path.unacked_bytes != 0) return;
  if (!path.carried || now_ - path.answered_at < options_.heartbeat_interval / 4) return;
  path.carried = false;
  path.answered_at = now_;
  send_heartbeat(path, Path::BeatFor::kPause);
}

// What else goes this way says nothing of what was heard, and keeps the heartbeats of idle lanes away.
void Channel::answer_question(Path& path) {
  if (leaving_ || peer_left_) return;
  if (now_ - path.last_beat_sent() >= options_.heartbeat_interval / 4) send_heartbeat(path, Path::BeatFor::kAnswer);
}

// Nothing is under way or waits for a lane.
bool Channel::carries_nothing(const Path& path) const {
  if (path.unacked_bytes != path.measuring_bytes || path.trial.began != Nanos::max()) return false;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].head != 0xffffffff || client_.has_piece(*this, static_cast<PieceClass>(i))) return false;
  }
  return true;
}

// Or goes on with the one that is under way: nothing may have come that would.
void Channel::begin_train(Path& path) {
  ProbeTrains& trains = rails_->trains();
  if (trains.is(&path)) return go_on_with_train(path);
  if (!options_.probes || trains.running() || leaving_ || peer_left_ || peer_died_) return;
  if (path.state != Path::State::kUp || path.stalled || path.blocked || path.unacked_bytes != 0) return;
  if (path.lane->remote().family == Address::Family::kSharedMemory) return;
  // Both ends came up at the same moment.
  if (now_ - path.up_since < (options_.dialer ? ProbeTrains::kSettled : ProbeTrains::kSettled * 3 / 2)) return;
  const LinkEstimate& link = path.link;
  const bool fresh = link.beta().count != 0 && now_ - link.beta_at() < ProbeTrains::kPeriod;
  if (fresh && !path.train.wanted) return;
  const std::uint64_t length = trains.length(path.spec.local_rail, now_, link.beta(), path.train);
  if (length == 0 || !carries_nothing(path)) return;
  trains.begin(&path, path.spec.local_rail, now_, length, link.alpha() * 2);
  awake_ = true;
}

// How fast the train is so far: at first that is the speed of the wire, where a shaper lets a burst pass.
BytesPerSec Channel::seen_of_train(const Path& path) const {
  const ProbeTrains& trains = rails_->trains();
  const Nanos span = now_ - trains.began() - path.link.alpha() * 2;
  return span <= Nanos{} ? BytesPerSec{} : BytesPerSec::of(Bytes{static_cast<std::int64_t>(trains.acked())}, span);
}

// What the link holds, and a little that waits before it.
std::uint64_t Channel::train_window(const Path& path, BytesPerSec seen, std::uint32_t frame) const {
  const BytesPerSec beta = path.link.beta();
  const Nanos round_trip = path.link.alpha() * 2, held = round_trip + limits::kTrialQueue;
  const auto bytes = [](BytesPerSec rate, Nanos span) { return static_cast<std::uint64_t>(rate.bytes_in(span).count); };
  // A link that is faster than anybody knows is filled as well; one that lets a burst pass does not get more than it
  // soon carries. One of which nothing is known begins with little.
  const std::uint64_t most = std::clamp(bytes(beta, limits::kTrainQueue), limits::kProbeWindow, ProbeTrains::kBurst);
  const std::uint64_t faster = std::min(bytes(seen, held) * 2, beta.count == 0 ? ProbeTrains::kBurst : most);
  const std::uint64_t known = beta.count == 0 ? bytes(limits::kFirstRate, round_trip) : bytes(beta, held);
  return std::max({limits::kProbesUnderWay * std::uint64_t{frame}, known, faster, rails_->trains().window()});
}

// Sends more of it, no more than fills the link: real pieces come behind what is under way.
void Channel::go_on_with_train(Path& path) {
  ProbeTrains& trains = rails_->trains();
  if (!trains.is(&path)) return;
  if (trains.is_whole(now_)) return end_train(path, true);
  if (leaving_ || peer_left_ || peer_died_ || path.state != Path::State::kUp || path.stalled)
    return end_train(path, false);
  if (trains.meets_another() && !options_.dialer) return end_train(path, false);  // the dialling side's goes on
  if (now_ - trains.began() > ProbeTrains::kLongest + path.link.alpha() * 16) return end_train(path, true);
  if (trains.is_in_the_way() || !carries_nothing(path)) return end_train(path, false);
  const BytesPerSec seen = seen_of_train(path), rate = path.link.beta().count != 0 ? path.link.beta() : seen;
  const std::uint32_t frame = rate < limits::kSlowLink ? limits::kSlowProbeBytes : limits::kProbeBytes;
  const std::uint64_t window = train_window(path, seen, frame);
  while (trains.left() != 0 && !path.blocked && path.window_open()) {
    if (path.measuring_bytes + frame > window) return trains.note_full(now_, window);
    if (!send_probe(path, frame, true)) break;
    trains.note_sent(frame + sizeof(wire::Header));
  }
}

// `counts`: nothing was in its way.
void Channel::end_train(Path& path, bool counts) {
  ProbeTrains& trains = rails_->trains();
  if (!trains.is(&path)) return;
  LinkEstimate& link = path.link;
  TrainMemory& memory = path.train;
  const Nanos took = now_ - trains.began() - link.alpha() * 2;
  const std::uint64_t acked = trains.acked();
  const BytesPerSec full = trains.meter().beyond(ProbeTrains::kBurst).rate;
  const BytesPerSec tail = trains.meter().rate_after(acked - std::min(acked, ProbeTrains::kShortMin / 2));
  BytesPerSec found = full;
  if (full.count == 0) found = tail.count != 0 ? std::min(link.beta(), tail) : link.beta();
  memory.wanted &= !counts;
  if (counts && acked > ProbeTrains::kBurst) {
    memory.wanted = link.on_full_train(now_, full, took);
  } else if (counts && took >= LinkEstimate::kTrainLasts && link.on_short_train(now_, tail)) {
    link.on_full_train(now_, tail, took);  // a bucket makes a train faster, never slower
  } else if (counts) {
    const std::int64_t differs = std::abs(tail.count - memory.tail.count);
    const bool changed = memory.tail_bytes == trains.length() && differs > memory.tail.count / 4;
    memory.wanted = link.on_short_train(now_, tail) || changed;
    memory.tail = tail;
    memory.tail_bytes = trains.length();
  }
  // One that gave way is tried again soon: it might meet the peer's next one again.
  memory.due = now_ + (!counts         ? ProbeTrains::kQuiet * 2
                       : memory.wanted ? ProbeTrains::kConfirm
                                       : ProbeTrains::kPeriod);
  if (log_enabled(LogLevel::kDebug)) {
    const auto mbyte = [](BytesPerSec r) { return static_cast<double>(r.count) * 1e-6; };
    char text[160];
    std::snprintf(text, sizeof text,
                  "%s a train of %llu bytes: %.2f MB/s beyond a burst, %.2f at its end, %.2f known%s",
                  counts ? "was sent" : "gave up", static_cast<unsigned long long>(acked), mbyte(full), mbyte(tail),
                  mbyte(link.beta()), memory.wanted ? "; another one follows" : "");
    tell(path, text);
  }
  trains.end(now_, found);
  watch_link(path);
}

}  // namespace canarynet
