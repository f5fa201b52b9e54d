// Chooses the lane for a piece, the lanes to try, and what goes over a second one because the first is late.
//
// Only what a lane has proved counts (PathEstimator); one that has proved nothing is tried with probes, for which
// nobody waits. A piece goes to the lane where it is expected first. Where that one is full, another may take it if it
// delivers it before all lanes together could deliver everything that waits: what a slow lane would deliver after all
// others are done is not given to it.
#include <algorithm>
#include <array>

#include "transport/channel.h"
#include "transport/channel_limits.h"

namespace canarynet {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

Bytes bytes_of(std::uint64_t n) { return Bytes{static_cast<std::int64_t>(n)}; }

}  // namespace

// A lane on probation carries data only when there is no other.
bool Channel::usable(const Path& path) const { return path.state == wanted_ && !path.stalled; }

// A lane that has proved nothing itself is promised the rate that other channels proved of its NIC or, where it carries
// what there is, a guess; less where its own pieces take longer.
BytesPerSec Channel::promise_of(const Path& path) const {
  if (path.estimator.was_busy()) return path.estimator.rate();
  BytesPerSec promised = rails_->rate(path.spec.local_rail);
  if (promised.count == 0 && &path == home_) promised = limits::kGuessedRate;
  const BytesPerSec allowed = std::max(path.estimator.ceiling(), limits::kSlowestRate);
  return std::max(path.estimator.rate(), std::min(promised, allowed));
}

// What the lane would carry if its NIC carried nothing else; what others have given to the NIC is RailRates::wait().
// 0: the channel goes by rates. A channel does so once it had a long operation, in which all channels send all the time
// and each has its share; and while one of its lanes has only a rate, since a share and a whole do not compare.
BytesPerSec Channel::capacity_of(const Path& path) const {
  if (!by_capacity_) return {};
  // Single pieces prove no capacity, but how long they take shows that a link has become slow.
  const BytesPerSec most = std::max(path.estimator.ceiling(), limits::kSlowestRate);
  return std::min(std::max(path.estimator.capacity(), path.estimator.rate()), most);
}

// 0: nobody knows anything of this lane, while there is one to go by.
BytesPerSec Channel::believed_rate(const Path& path) const {
  const BytesPerSec rate = path.estimator.rate();
  // Long operations show soon what the lanes carry, and all of them have their part in that.
  if (long_ && !any_rate_) {
    const BytesPerSec known = rails_->rate(path.spec.local_rail);
    return known.count != 0 ? known : rails_->any() ? limits::kSlowestRate : limits::kAssumedRate;
  }
  const BytesPerSec capacity = capacity_of(path);
  if (capacity.count != 0) return capacity;
  if (&path == home_) return promise_of(path);
  if (rate.count != 0 || any_proved_) return rate;
  return std::min(rails_->rate(path.spec.local_rail), path.estimator.ceiling());
}

// Until lanes have proved what they carry, the pieces go over one: the others are tried meanwhile, and nobody waits for
// that. All channels begin with the same rail, so that nobody's pieces are where another's probes are.
void Channel::settle_home() {
  if (paths_.size() == 1) {  // no choice
    const Path& only = paths_.front();
    wanted_ = only.state == Path::State::kUp && !only.stalled ? Path::State::kUp : Path::State::kProbation;
    home_ = usable(only) ? &only : nullptr;
    return;
  }
  const bool any_up = std::any_of(paths_.begin(), paths_.end(),
                                  [](const Path& p) { return p.state == Path::State::kUp && !p.stalled; });
  wanted_ = any_up ? Path::State::kUp : Path::State::kProbation;
  any_proved_ =
      std::any_of(paths_.begin(), paths_.end(), [this](const Path& p) { return usable(p) && p.estimator.was_busy(); });
  any_rate_ = std::any_of(paths_.begin(), paths_.end(),
                          [this](const Path& p) { return usable(p) && p.estimator.rate().count != 0; });
  if (!long_ && paths_.size() > 1) long_ = client_.waiting_bytes(*this, PieceClass::kBulk) >= limits::kLongWaits;
  by_capacity_ = !long_ && std::all_of(paths_.begin(), paths_.end(), [this](const Path& p) {
    return !usable(p) || p.estimator.rate().count == 0 || p.estimator.capacity().count != 0;
  });
  const Path* home = nullptr;
  BytesPerSec best{};
  for (const Path& p : paths_) {
    if (!usable(p)) continue;
    const BytesPerSec promised = promise_of(p);
    if (home != nullptr && promised <= best) continue;
    home = &p;
    best = promised;
  }
  if (home != home_) home_since_ = now_;
  home_ = home;
}

// Enough to show whether a lane is twice as fast as it is believed to be, and little more.
std::uint64_t Channel::short_window(const Path& path) {
  const Nanos span = path.estimator.rtt_min() * 2 + limits::kTrialQueue;
  return static_cast<std::uint64_t>(path.estimator.rate().bytes_in(span).count);
}

// What was sent when a trial shows that there is nothing new was sent for nothing.
std::uint64_t Channel::trial_window(const Path& path) const {
  return path.trial.known.count != 0 ? short_window(path) : first_window(path);
}

// The bytes that may be under way before more is proved.
std::uint64_t Channel::first_window(const Path& path) const {
  const BytesPerSec rate = path.estimator.rate();
  // While others are about to show what they carry, little is entrusted to those that have.
  if (rate.count != 0 && trying_) return short_window(path);
  if (rate.count != 0) return path.estimator.window();
  return static_cast<std::uint64_t>(limits::kFirstRate.bytes_in(path.estimator.rtt_min()).count);
}

// Bytes that a lane holds go before the next urgent piece, and cannot be taken back from the kernel: bulk leaves few of
// them as long as there are such pieces.
std::uint64_t Channel::window_of(const Path& path, PieceClass which) const {
  const std::int64_t piece = options_.piece_bytes.count + std::int64_t{sizeof(wire::Header)};
  const std::uint64_t whole = std::max(static_cast<std::uint64_t>(limits::kPiecesInFlight * piece), first_window(path));
  const Nanos since = now_ - rails_->urgent_at();
  if (which == PieceClass::kFirst || (rails_->urgent() == 0 && since > limits::kUrgentMemory)) return whole;
  // The bare round trip: the pieces' own time is what this is about.
  const Nanos round_trip = path.estimator.latency();
  const bool now = rails_->urgent() != 0 || since < round_trip + limits::kUrgentPause;
  const std::int64_t pieces = now ? 1 : limits::kPiecesBeforeUrgent;
  const Nanos span = round_trip * 2 + (now ? Nanos{} : limits::kQueueBeforeUrgent);
  const std::int64_t needed = path.estimator.rate().bytes_in(span).count;
  return std::min(whole, static_cast<std::uint64_t>(std::max(pieces * piece, needed)));
}

bool Channel::has_room(Path& path, std::uint32_t bytes, PieceClass which) const {
  if (path.blocked || !path.window_open()) return false;
  const std::uint64_t window = window_of(path, which);
  if (path.unacked_bytes == 0 || path.unacked_bytes + bytes <= window) return true;
  // Acks come by pieces, behind the peer's own: what a window holds beyond whole ones would not be used, and a lane of
  // three pieces and a half runs dry with three. Short operations have few pieces, and would give a lane one too many.
  const bool runs_on = (long_ || paths_.size() == 1) && path.estimator.rate().count != 0 && !trying_;
  const std::uint64_t needed = runs_on ? first_window(path) : 0;
  if (window >= needed && path.unacked_bytes < needed) return true;
  path.window_was_full = true;
  return false;
}

// How long until `bytes` more would be there.
Nanos Channel::arrival(const Path& path, std::uint64_t bytes) const {
  return arrival_at(believed_rate(path), path, bytes);
}

Nanos Channel::arrival_at(BytesPerSec rate, const Path& path, std::uint64_t bytes) const {
  if (rate.count == 0) return Nanos::max();
  const std::uint64_t others = static_cast<std::uint64_t>(rails_->probes(path.spec.local_rail)) - path.probes_unacked;
  // Since the last ack the link has carried some of what is unacknowledged: how much nobody knows, and a lane that
  // stands still nothing.
  const auto carried = static_cast<std::uint64_t>(rate.bytes_in(now_ - path.last_progress).count);
  const std::uint64_t left = path.unacked_bytes - std::min(carried, path.unacked_bytes / 3);
  const Nanos own = rate.time_for(bytes_of(left + others));
  const Nanos before = capacity_of(path).count != 0 ? std::max(own, rails_->wait(path.spec.local_rail, now_)) : own;
  return before + rate.time_for(bytes_of(limits::kStrangerBytes + bytes)) + path.estimator.latency() / 2;
}

// How long until `bytes` more would be there if every lane took what it can deliver by then.
Nanos Channel::all_delivered(std::uint64_t bytes) const {
  Nanos at = Nanos::max();
  for (;;) {
    std::uint64_t amount = bytes;
    BytesPerSec together{};
    for (const Path& p : paths_) {
      const BytesPerSec rate = believed_rate(p);
      if (!usable(p) || rate.count == 0 || arrival(p, 0) >= at) continue;
      together.count += rate.count;
      amount += static_cast<std::uint64_t>(rate.bytes_in(arrival(p, 0)).count);
    }
    if (together.count == 0) return at;
    const Nanos earlier = together.time_for(bytes_of(amount));
    if (earlier >= at) return at;
    at = earlier;
  }
}

// nullptr: no lane has room for it (an ack will call again), or none is up.
Path* Channel::choose_path(std::uint32_t bytes, int rail, PieceClass which) {
  settle_home();
  if (paths_.size() == 1) return home_ != nullptr && has_room(paths_.front(), bytes, which) ? &paths_.front() : nullptr;
  Path *best = nullptr, *best_with_room = nullptr;
  Nanos best_eta = Nanos::max(), room_eta = Nanos::max();
  for (Path& p : paths_) {
    if (!usable(p) || believed_rate(p).count == 0) continue;
    Nanos eta = arrival(p, bytes);
    if (rail == p.spec.local_rail) eta = eta - eta / limits::kPlannedRail;
    if (eta < best_eta) {
      best_eta = eta;
      best = &p;
    }
    if (eta < room_eta && has_room(p, bytes, which)) {
      room_eta = eta;
      best_with_room = &p;
    }
  }
  if (best_with_room == best || best_with_room == nullptr) return best_with_room;
  // While nothing is known, a lane that has room is as good as any.
  if (!any_rate_) return best_with_room;
  return room_eta <= all_delivered(bytes + client_.waiting_bytes(*this, which)) ? best_with_room : nullptr;
}

// --- trials ----------------------------------------------------------------------------------------------------------

namespace {

// Whether a trial of a lane whose rate is known has shown that it is no faster, before all of it was sent.
bool shows_nothing_new(const Trial& trial, const PathEstimator& e, Nanos now) {
  const std::uint64_t moved = e.delivered() - trial.delivered;
  if (trial.known.count == 0 || moved < limits::kTrialEnough) return false;
  const Nanos took = now - trial.began - e.rtt_min() - PathEstimator::kWakeUp;
  return took.count > 0 && BytesPerSec::of(Bytes{static_cast<std::int64_t>(moved)}, took).count <=
                               trial.known.count + trial.known.count / 4;
}

}  // namespace

// Begins and ends trials.
bool Channel::on_trial(Path& path) const {
  Trial& t = path.trial;
  const PathEstimator& e = path.estimator;
  if (t.began == Nanos::max()) {
    if (now_ < t.next || placed_bytes_ < std::max(t.next_at_bytes, limits::kSentBeforeTrial)) return false;
    // One that always has a little to do is not busy any more, and would stay as slow as it once was.
    const bool outgrown = e.was_busy() && e.load().count / limits::kOutgrownTimes > e.rate().count;
    if (e.was_busy() && now_ - path.chosen_at < limits::kTrialPauseMin && !outgrown) return false;
    // Behind probes its pieces would be late; those of long operations little, and they need a rate.
    const bool soon = now_ - home_since_ < limits::kTrialPauseMin;
    // The rate that other channels proved of its NIC may do, unless its own pieces take longer, or far less time.
    const BytesPerSec vouched = rails_->rate(path.spec.local_rail);
    const bool known = vouched.count != 0 && e.ceiling() >= vouched && !outgrown;
    if (&path == home_ && (soon || known) && !long_) return false;
    t.began = now_;
    t.bytes = 0;
    t.delivered = e.delivered();
    t.known = e.was_busy() ? e.rate() : BytesPerSec{};
    t.best = path.best.rate();
    return true;
  }
  const bool goes_on = now_ - t.began < limits::kTrialMax + e.rtt_min() * 8 && t.bytes < limits::kTrialBytes;
  if (goes_on && !shows_nothing_new(t, e, now_)) return true;
  // Short operations wear down what a lane is believed to carry. To find again what it carried is nothing new.
  const std::int64_t known = std::max(t.known, t.best).count;
  const bool learned = e.rate().count > known + known / 4;
  const Nanos most = learned || path.best.is_twice(e.rate()) ? limits::kTrialPauseMin : limits::kTrialPauseMax;
  t.pause = std::clamp(t.pause * 2, limits::kTrialPauseMin, most);
  t.began = Nanos::max();
  t.next = now_ + t.pause;
  const auto times = static_cast<std::uint64_t>(t.pause.count / limits::kTrialPauseMin.count);
  t.next_at_bytes = placed_bytes_ + limits::kSentBetweenTrials * times;
  return false;
}

void Channel::try_lanes() {
  trying_ = false;
  settle_home();
  for (Path& p : paths_) {
    if (p.state != Path::State::kUp || p.stalled || !p.lane) continue;
    while (on_trial(p) && !p.blocked && p.window_open() &&
           p.unacked_bytes + limits::kProbeBytes <= std::max(limits::kProbeWindow, trial_window(p))) {
      if (!send_probe(p, limits::kProbeBytes, false)) break;
      p.trial.bytes += limits::kProbeBytes;
      rails_->trains().note_traffic(p.spec.local_rail, now_);
    }
    trying_ |= p.trial.began != Nanos::max() && !p.estimator.was_busy();
  }
}

// `measures`: it serves the estimate of the link (channel_trains.cc).
bool Channel::send_probe(Path& path, std::uint32_t bytes, bool measures) {
  static constexpr std::array<std::byte, limits::kProbeBytes> kNothing{};
  wire::Header h;
  h.kind = wire::Kind::kProbe;
  h.flags = wire::kSequenced | wire::kAckNow;
  h.payload_bytes = bytes;
  h.lane_sequence = path.next_sequence;
  if (!send_frame(path, h, kNothing.data(), kNoCookie)) return false;
  Path::InFlight& e = note_sent(path, h.payload_bytes, true);
  e.probe = true;
  e.measures = measures;
  if (measures) path.measuring_bytes += e.bytes;
  path.probes_unacked += e.bytes;
  rails_->add_probes(path.spec.local_rail, e.bytes);
  return true;
}

// --- hedges ----------------------------------------------------------------------------------------------------------

// When the frame's acknowledgement is expected, and when it is overdue.
Nanos Channel::due(const Path::InFlight& frame, const Path& path) const {
  const PathEstimator::Departure& left = frame.departure;
  const BytesPerSec capacity = capacity_of(path);
  if (capacity.count != 0) {
    // What went before it may have been given up since.
    const Nanos nic = std::min(left.queue.free_at, now_ + rails_->wait(path.spec.local_rail, now_));
    return std::max(nic, left.sent + capacity.time_for(left.unacked)) + path.estimator.latency();
  }
  const BytesPerSec rate = path.estimator.rate().count != 0 ? path.estimator.rate() : limits::kAssumedRate;
  return left.sent + rate.time_for(left.unacked) + path.estimator.latency();
}
Nanos Channel::late_after(Nanos due_at, const Path& path) {
  return due_at + path.estimator.rttvar() * 4 + limits::kHedgeMargin;
}

bool Channel::anything_late(Nanos now) {
  bool late = false;
  for (const Path& path : paths_) {
    if (path.unacked_bytes == 0 || !path.lane) continue;
    // The youngest is the last to be late; whether an older one is matters little earlier.
    const Path::InFlight& e = path.in_flight[path.next_sequence - 1];
    const Nanos overdue = late_after(due(e, path), path);
    late |= now >= overdue;
    if (now < overdue) earlier(overdue);
  }
  return late;
}

// A piece that will take long where it is, or should have been there, goes over a lane as well that would deliver it
// much earlier. From the youngest: the one that would wait longest. True when one went.
bool Channel::hedge_over(Path& idle, Path& busy, Nanos now) {
  // Where nothing is known of any, another lane may well be better than one that is late.
  BytesPerSec rate = believed_rate(idle);
  if (rate.count == 0 && !any_rate_) rate = rails_->any() ? limits::kSlowestRate : limits::kAssumedRate;
  if (rate.count == 0) return false;
  // How long until a piece would be there and its acknowledgement here. Most frames are not worth a second copy even if
  // they were empty, so that is asked first.
  const auto there = [&](std::uint64_t bytes) { return arrival_at(rate, idle, bytes) + idle.estimator.latency() / 2; };
  const Nanos soonest = there(0);
  const std::uint32_t looks = std::min(busy.next_sequence - busy.first_unacked, limits::kHedgeLooks);
  for (std::uint32_t i = 1; i <= looks; ++i) {
    Path::InFlight& e = busy.entry(busy.next_sequence - i);
    if (e.record == kNone || e.bytes == 0) continue;
    Record& r = records_[e.record];
    if (r.hedged || r.state != Record::State::kInFlight || r.placements > 1) continue;
    const Nanos due_at = due(e, busy);
    const Nanos late = late_after(due_at, busy);
    if (r.piece.encoded && now < late + limits::kEncodedMargin) continue;
    // Overdue, it may well take as long again.
    const Nanos left = now >= late ? now - e.departure.sent : due_at - now;
    const auto pays = [left](Nanos at) { return left > at * 2 + limits::kHedgeMargin; };
    if (!pays(soonest) || !pays(there(e.bytes))) continue;
    if (!has_room(idle, e.bytes, r.piece_class)) return false;
    r.hedged = true;
    r.resent = Resend::kHedged;
    const bool placed = place(e.record, idle, true);
    r.resent = Resend::kNone;
    return placed;
  }
  return false;
}

// Nothing waits to be sent: what is stranded on one lane may go over another.
void Channel::hedge(Nanos now) {
  for (Path& idle : paths_) {
    if (idle.state != Path::State::kUp || idle.stalled) continue;
    for (Path& busy : paths_) {
      if (&busy == &idle || busy.unacked_bytes == 0 || !busy.lane) continue;
      while (hedge_over(idle, busy, now)) {
      }
    }
  }
}

}  // namespace canarynet
