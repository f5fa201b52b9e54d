// transport/link_estimate.h -- what is known of one path's link in the direction of its sender: alpha (the time of a
// byte that meets no queue), beta (the rate at which it delivers), jitter, losses, and since when.
//
// What: reads the same acknowledgements as PathEstimator, and decides nothing: that one serves the choice of a lane,
// here is what planners and people are told. It belongs to the path, so a lane's death leaves it alone.
// - alpha is half the least round trip. A shorter one counts at once. A longer one counts when frames that met no queue
//   of ours have seen nothing else for a while: heartbeats in pauses of the traffic, and small frames.
// - beta is measured while the link is busy: a piece that left before the link was done with the one before it (or a
//   moment later) finds it so, and what arrived after that one took exactly the time between the two arrivals, of which
//   the peer tells (transport/arrival_clock.h). When the acks came does not matter: they wait behind all that the peer
//   has to send, most at the beginning of an exchange and least at its end. What a shaper lets pass as a burst after a
//   pause is left out. The first windows of such time tell the rate together; then two in a row that say more raise it,
//   and lower ones that have lasted lower it. Where other channels share the NIC, only what all of them got together
//   contradicts it. Where others send to the peer's NIC all the time, it is what they and we sent there together, and
//   where they pause, what we sent meanwhile.
// - An estimate older than kStale gives way to the next measurements.
// - On an idle link trains of probes tell the rate (transport/probe_train.h). Two in a row that contradict it on the
//   same side change it, or a slower one that lasted.
// Units: ns, bytes. One owner thread. Nothing here allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "base/units.h"
#include "transport/arrival_clock.h"
#include "transport/level_watch.h"
#include "transport/path_estimator.h"

namespace canarynet {

class LinkEstimate {
 public:
  using NicBytes = PathEstimator::NicBytes;
  using Departure = PathEstimator::Departure;

  static constexpr Nanos kLookEvery = 50_ms;
  static constexpr Nanos kStale = 10_s;
  // The peer, or the link, stood still for that long: no rate follows from it.
  static constexpr Nanos kStandstill = 5_s;
  // A round trip that is longer by no more than this or a sixteenth is the same.
  static constexpr Nanos kSlack = 50_us;
  // Late wake-ups explain what is shorter: it must last for longer.
  static constexpr Nanos kLongerLasts = 150_ms;
  static constexpr Nanos kSlightlyLongerLasts = 300_ms;
  static constexpr std::int64_t kJitters = 5;  // and by no more than so many times the jitter
  static constexpr Nanos kSpell = 50_ms;
  // A frame with no more than that before it met no queue.
  static constexpr std::int64_t kSmallBytes = 1024;
  // A window of busy time.
  static constexpr Nanos kWindow = 100_ms;
  static constexpr Nanos kBusyMin = 5_ms;
  static constexpr std::uint64_t kBusyBytes = 256 * 1024;
  // A link that had nothing to do for no more than this part of the time counts as busy, and half of that part counts,
  // too: what a shaper's bucket gains then, the next pieces use up, but not every link has a shaper.
  static constexpr int kBriefly = 4;
  static constexpr Nanos kCarriedFor = 500_ms;
  // No NIC receives more between two acks. A peer may name any number, and those of a window are added up.
  static constexpr std::uint64_t kBelieved = std::uint64_t{1} << 36;
  static constexpr int kFirstWindows = 4;  // tell the rate together: one alone may be far off
  static constexpr int kNoise = 16;        // windows differ by this part for no reason
  // The peer counts others' pieces once they are whole: it is not crowded where so many of ours in a row meet none.
  static constexpr std::uint32_t kCalm = 4;
  static constexpr Nanos kLowerLasts = 400_ms;
  static constexpr int kTrainNoise = 8;                  // likewise of trains, which are short
  static constexpr Nanos kTrainLasts = kLowerLasts / 2;  // one that took so long counts as two
  // A rate that rose meanwhile refills a shaper's bucket faster than the rate that is known; with more than twice that,
  // short operations with pauses between them would never be measured.
  static constexpr std::int64_t kRefillTimes = 2;

  Nanos alpha() const { return round_trip_ / 2; }  // one way; 0: no round trip was seen yet
  BytesPerSec beta() const { return beta_; }       // 0: the link was never busy for long enough
  // Mean difference of two round trips in a row that met no queue, or of the least of two spells in a row.
  Nanos jitter() const {
    return spell_jitter_.known() ? std::min(jitter_.mean(), spell_jitter_.mean()) : jitter_.mean();
  }
  std::uint64_t losses() const { return losses_; }
  Nanos sampled_at() const { return sampled_at_; }  // 0: never
  Nanos announced_alpha() const { return Nanos{alpha_watch_.announced()}; }
  BytesPerSec announced_beta() const { return {beta_watch_.announced()}; }
  std::uint64_t changes() const { return changes_; }  // of what was announced

  // An echo came, which nobody held up. `before`: the bytes that may have stood before it on either way.
  void on_echo(Nanos now, Nanos round_trip, Bytes before) { sample(now, round_trip, before); }
  // A heartbeat of ours had arrived by the peer's clock.
  void note_way(Nanos now, Nanos sent, std::uint64_t arrived_ns) { arrivals_.note(now, sent, arrived_ns); }
  // And a piece, which is to be told to on_acked(): how long it was under way beyond the least.
  Nanos queued(Nanos now, const Departure& last, std::uint64_t arrived_ns) {
    if (!last.dated) return std::max(Nanos{}, now - last.sent - round_trip_);
    return arrivals_.queued(now, last.sent, arrived_ns, round_trip_);
  }
  // When an ack's pieces passed, and what else had passed by then.
  struct Passage {
    Nanos queued;                 // the last piece, as queued() says
    std::uint64_t peer_received;  // bytes by the peer's NIC when that had arrived; any number
    NicBytes nic;                 // by ours, by now
  };
  // As PathEstimator::on_acked.
  void on_acked(Nanos now, std::uint64_t bytes, const Departure& last, const Passage& passage) {
    const NicBytes& nic = passage.nic;
    on_round_trip(now, last, nic);
    const Bytes by_nic = nic.acked - std::exchange(acked_by_nic_, nic.acked);
    const std::uint64_t by_peer = passage.peer_received - std::exchange(received_by_peer_, passage.peer_received);
    // When the link was done with the last of them.
    const Nanos passed = last.sent + passage.queued;
    const Nanos idle = last.sent - passed_;
    // Those that arrived at the same time are one.
    if (passed != passed_) {
      count_acks();
      acks_ = {};
      acks_.at = now;
      const Nanos span = std::max(Nanos{}, passed - passed_);
      acks_.busy = idle <= span / kBriefly && span < kStandstill;
      acks_.span = span - std::max(Nanos{}, idle) / 2;
      acks_.carried_for = span - std::max(Nanos{}, idle);
      passed_ = passed;
    }
    if (idle.count > 0 && !acks_.busy) {
      const BytesPerSec refill = beta_.count == 0 ? PathEstimator::kRefill : BytesPerSec{beta_.count * kRefillTimes};
      const std::int64_t refilled = std::min(refill.bytes_in(std::min(idle, 1_s)).count, PathEstimator::kBurstBytes);
      burst_ = std::min(burst_ + refilled, PathEstimator::kBurstBytes);
    }
    acks_.bytes += bytes;
    acks_.by_nic += by_nic;
    acks_.by_peer.count += static_cast<std::int64_t>(std::min(by_peer, kBelieved));
    const Bytes meanwhile = nic.acked - last.nic.acked;
    const bool shared = last.dated && meanwhile.count * 3 > last.unacked.count * 4;
    acks_.shared |= shared;
    if (shared) acks_.in_flight = std::max(acks_.in_flight, BytesPerSec::of(meanwhile, now - last.sent));
    if (last.dated) note_carried(now, last.sent, bytes);
  }
  // Of a frame whose acknowledgement is looked at for the round trip alone.
  void on_round_trip(Nanos now, const Departure& last, const NicBytes& nic) {
    if (!last.prompt) return;
    const Bytes sent = std::max(last.unacked, nic.acked - last.nic.acked);
    sample(now, now - last.sent, sent + (nic.received - last.nic.received));
  }
  // A full train found `rate` beyond what a bucket may have let pass; it took so long. True: that contradicts what is
  // known, or was not known, and another one should confirm it.
  bool on_full_train(Nanos now, BytesPerSec rate, Nanos took) {
    if (rate.count == 0) return false;
    sampled_at_ = now;
    const int side = train_side(rate);
    if (beta_.count == 0 || side == 0) {
      beta_.count += beta_.count == 0 ? rate.count : (rate.count - beta_.count) / 8;
      beta_at_ = now;
      train_side_ = 0;
      return false;
    }
    const bool again = side == train_side_ || (side < 0 && took >= kTrainLasts);
    if (side == train_side_) rate = side > 0 ? std::min(rate, train_) : std::max(rate, train_);
    if (again) {
      beta_ = rate;
      beta_at_ = now;
      lower_ = higher_ = 0;
      first_.left = 0;
    }
    train_side_ = again ? 0 : side;
    train_ = rate;
    return !again;
  }
  // A short train's end, which a bucket may have made faster. True: it contradicts what is known.
  bool on_short_train(Nanos now, BytesPerSec rate) {
    if (rate.count == 0 || beta_.count == 0) return false;
    const int side = train_side(rate);
    if (side == 0) beta_at_ = sampled_at_ = now;
    return side < 0;
  }
  Nanos beta_at() const { return beta_at_; }
  void note_lost() { ++losses_; }
  // What was under way on the lane has gone; what is known of the link has not.
  void on_lane_down() {
    forget_arrivals();
    beyond_ = any_ = {};
    longer_ = lower_ = higher_ = 0;
    train_side_ = 0;
  }
  // True when the level to announce has changed. Cheap: for every acknowledgement and timer.
  bool look(Nanos now) {
    if (now < next_look_) return false;
    next_look_ = now + kLookEvery;
    const bool alpha = alpha_watch_.look(now, this->alpha().count, longer_for_);
    const bool beta = beta_watch_.look(now, beta_.count);
    changes_ += alpha || beta;
    return alpha || beta;
  }

 private:
  // A moving mean of how far a value differs from the one before.
  class Jitter {
   public:
    void add(Nanos value) {
      if (last_.count != 0) {
        mean_.count += (std::abs(value.count - last_.count) - mean_.count) / 16;
        known_ = true;
      }
      last_ = value;
    }
    bool known() const { return known_; }
    Nanos mean() const { return mean_; }
    // The next value is compared with none before.
    Jitter without_last() const {
      Jitter j = *this;
      j.last_ = {};
      return j;
    }

   private:
    Nanos last_, mean_;
    bool known_ = false;
  };

  void sample(Nanos now, Nanos round_trip, Bytes before) {
    if (round_trip.count <= 0) return;
    const bool small = before.count <= kSmallBytes;
    if (small) {
      if (longer_ == 0) jitters_before_ = {jitter_, spell_jitter_};
      jitter_.add(round_trip);
      if (spell_least_.count == 0 || now - spell_began_ >= kSpell) {
        if (spell_least_.count != 0) spell_jitter_.add(spell_least_);
        spell_least_ = round_trip;
        spell_began_ = now;
      }
      spell_least_ = std::min(spell_least_, round_trip);
    }
    const Nanos slack = std::max(kSlack, round_trip_ / kNoise) + jitter() * kJitters;
    if (round_trip_.count == 0 || round_trip <= round_trip_ + slack) {
      if (round_trip_.count == 0 || round_trip < round_trip_) {
        round_trip_ = round_trip;
        longer_for_ = {};
      }
      sampled_at_ = now;
      longer_ = 0;
      return;
    }
    if (!small) return;
    if (longer_ == 0) {
      longer_since_ = now;
      stepped_ = false;
    } else if (round_trip > longer_to_ + std::max(kSlack, longer_to_ / kNoise)) {
      // The two ways of a link need not change at the same moment.
      longer_ = 0;
      stepped_ = true;
    }
    longest_ = longer_ == 0 ? round_trip : std::max(longest_, round_trip);
    longer_to_ = longer_++ == 0 ? round_trip : std::min(longer_to_, round_trip);
    const bool slightly = longer_to_ - round_trip_ <= PathEstimator::kWakeUp;
    if (longer_ < (slightly ? 3 : 2) || now - longer_since_ < (slightly ? kSlightlyLongerLasts : kLongerLasts)) return;
    round_trip_ = longer_to_;
    forget_arrivals();
    // Those of a longer way are alike; those that met the queues of others are not.
    const bool alike = !stepped_ && longest_ - longer_to_ <= std::max(kSlack, longer_to_ / kNoise);
    longer_for_ = alike ? now - longer_since_ : Nanos{};
    // The way's change is no jitter, which would hide the rest of a change.
    jitter_ = jitters_before_[0].without_last();
    spell_jitter_ = jitters_before_[1].without_last();
    spell_least_ = {};
    sampled_at_ = now;
    longer_ = 0;
  }

  // On which side of what is known it lies; 0: they are the same.
  int train_side(BytesPerSec rate) const {
    const std::int64_t noise = beta_.count / kTrainNoise;
    return rate.count > beta_.count + noise ? 1 : rate.count < beta_.count - noise ? -1 : 0;
  }

  // Pieces that pass no faster than usual leave the bucket as full as it was: their sender was slow. But what is usual
  // may have changed, so they count in part.
  void take_from_bucket(std::int64_t bytes) {
    const bool usual = beta_.count != 0 && bytes < beta_.bytes_in(acks_.carried_for).count / 4 * 5;
    burst_ -= std::min(burst_, usual ? bytes / 2 : bytes);
  }

  void forget_arrivals() {
    arrivals_.forget();
    passed_ = {};
    acks_ = {};
    calm_ = 0;
    carried_since_ = {};
    carried_ = 0;
  }

  // What has left since and is acknowledged, less what a bucket may have let pass, is the least that the link carries,
  // busy or not: one that has become far faster is never busy for long.
  void note_carried(Nanos now, Nanos sent, std::uint64_t bytes) {
    if (carried_since_.count == 0) {
      carried_since_ = sent;  // the ack's other pieces left before
      return;
    }
    if (sent < carried_since_) return;
    carried_ += static_cast<std::int64_t>(bytes);
    const Nanos span = now - carried_since_;
    if (span < kCarriedFor) return;
    const BytesPerSec least = BytesPerSec::of(Bytes{carried_ - PathEstimator::kBurstBytes}, span);
    if (beta_.count != 0 && least.count > beta_.count + beta_.count / kNoise) {
      beta_ = least;
      beta_at_ = now;
      lower_ = higher_ = 0;
      first_.left = 0;
    }
    carried_since_ = {};
    carried_ = 0;
  }

  // Looks at the acks that came last, which are all of their moment now.
  void count_acks() {
    calm_ = is_crowded(acks_.by_peer, acks_.bytes) ? 0 : calm_ + 1;
    acks_.calm = calm_;
    const bool burst = burst_ != 0;
    take_from_bucket(static_cast<std::int64_t>(acks_.bytes));
    if (!acks_.busy) {
      if (acks_.span >= kStandstill) beyond_ = any_ = {};
      return;
    }
    // What may be a burst is no faster than it was: that much it tells.
    if (any_.add(acks_, kBusyBytes / 2)) end_window_with_bursts();
    if (!burst && beyond_.add(acks_, kBusyBytes)) end_window(acks_.at);
  }

  // The peer's NIC received far more than that from us.
  static bool is_crowded(Bytes by_peer, std::uint64_t bytes) {
    return by_peer.count * 3 > static_cast<std::int64_t>(bytes) * 4;
  }

  // The acks of what arrived at one moment.
  struct Acks {
    Nanos at;
    Nanos span;           // since what arrived before
    Nanos carried_for;    // of that, what it was under way itself
    bool busy = false;    // the link was, all that time
    bool shared = false;  // others' bytes were acknowledged while they were under way
    std::uint32_t calm = 0;
    BytesPerSec in_flight;  // what the NIC carried then
    std::uint64_t bytes = 0;
    Bytes by_nic, by_peer;
  };
  // Busy time that is looked at together.
  struct Window {
    Nanos began, last, time;
    Nanos alone;  // of that, others got next to nothing
    std::uint64_t bytes = 0, alone_bytes = 0;
    Bytes by_nic, by_peer, alone_by_peer;
    BytesPerSec in_flight;
    // True: it is complete.
    bool add(const Acks& acks, std::uint64_t least) {
      if (bytes == 0 || acks.at - last > 1_s) {
        *this = {};
        began = acks.at - acks.span;
      }
      last = acks.at;
      in_flight = std::max(in_flight, acks.in_flight);
      if (!acks.shared && acks.calm >= kCalm) {
        alone += acks.span;
        alone_bytes += acks.bytes;
        alone_by_peer += acks.by_peer;
      }
      bytes += acks.bytes;
      by_nic += acks.by_nic;
      by_peer += acks.by_peer;
      time += acks.span;
      return acks.at - began >= kWindow && time >= kBusyMin && bytes >= least;
    }
    bool was_alone() const { return alone >= kBusyMin; }
    BytesPerSec own() const {
      return BytesPerSec::of(Bytes{static_cast<std::int64_t>(was_alone() ? alone_bytes : bytes)},
                             was_alone() ? alone : time);
    }
    // Others got nothing that is worth mentioning.
    bool by_itself() const {
      return !is_crowded(by_peer, bytes) && by_nic.count - static_cast<std::int64_t>(bytes) <= by_nic.count / kNoise;
    }
    BytesPerSec together() const { return std::max(own(), BytesPerSec::of(by_nic, time)); }
    // Where others never paused, the NIC is the link, as far as anybody can tell.
    BytesPerSec first() const { return was_alone() ? own() : together(); }
    BytesPerSec most() const {
      const BytesPerSec ours = std::max(together(), in_flight);
      return std::max(ours, was_alone() ? BytesPerSec::of(alone_by_peer, alone) : into_peer());
    }
    // What the peer's NIC received.
    BytesPerSec into_peer() const { return std::max(own(), BytesPerSec::of(by_peer, time)); }
  };
  void note_lower(Nanos now, Nanos began, BytesPerSec most) {
    higher_ = 0;
    // The first one may have begun before the change.
    if (lower_ == 0) lower_since_ = began;
    lower_to_ = lower_++ <= 1 ? most : std::max(lower_to_, most);
    if (lower_ >= 2 && now - lower_since_ >= kLowerLasts) {
      beta_ = lower_to_;
      lower_ = 0;
      // The least that is certain to be no less than the rate. What comes now without bursts tells it better.
      first_ = {.left = kFirstWindows};
    }
    beta_at_ = sampled_at_ = now;
  }
  // Short operations with pauses between them may never send more than a burst.
  void end_window_with_bursts() {
    const Window w = std::exchange(any_, {});
    if (beta_.count == 0) return;
    const BytesPerSec most = w.most();
    if (most.count < beta_.count - beta_.count / kNoise) {
      note_lower(w.last, w.began, most);
    } else {
      lower_ = 0;
    }
  }
  void end_window(Nanos now) {
    const Window w = std::exchange(beyond_, {});
    // Where others never pause, the peer's NIC is the link, as far as anybody can tell. Where they do, it need not be:
    // a way between two fast NICs may be slow, and so may ours.
    if (w.was_alone()) alone_at_ = now;
    const bool crowded = !w.was_alone() && is_crowded(w.by_peer, w.bytes);
    if (crowded && now - alone_at_ <= kStale) return;
    const BytesPerSec own = crowded ? w.into_peer() : w.own(), most = w.most();
    const std::int64_t noise = beta_.count / kNoise;
    if (beta_.count == 0 || now - beta_at_ > kStale) first_ = {.left = kFirstWindows};
    if (w.was_alone() && std::exchange(told_by_all_, false)) first_ = {.left = kFirstWindows};
    told_by_all_ |= crowded;
    if (first_.left != 0) {
      --first_.left;
      first_.sum.count += (crowded ? own : w.first()).count;
      beta_.count = first_.sum.count / (kFirstWindows - first_.left);
      lower_ = higher_ = 0;
    } else if (own.count > beta_.count + noise) {
      lower_ = 0;
      if (higher_++ != 0) beta_ = std::min(own, higher_to_);
      higher_to_ = own;
    } else {
      higher_ = 0;
      // Lower ones are noted with the bursts, whose window has these bytes as well. A little lower they are no change,
      // but what was believed was too much.
      if (most.count >= beta_.count - noise) lower_ = 0;
      if (own.count >= beta_.count - (w.by_itself() ? noise * 2 : noise)) beta_.count += (own.count - beta_.count) / 8;
    }
    beta_at_ = sampled_at_ = now;
  }

  Nanos sampled_at_;
  Nanos round_trip_;          // the least
  std::uint32_t longer_ = 0;  // round trips in a row that met no queue, since when, the least of them
  Nanos longer_since_, longer_to_;
  Nanos longest_;         // of them
  bool stepped_ = false;  // others were less long
  Nanos
      longer_for_;  // alike ones were seen so long before it was believed; 0: it is not longer, or they were not alike
  // Of frames that follow one another some meet the queue of a shaper that nobody here knows of, which is no jitter of
  // the link's; then the least of spells differ less.
  Jitter jitter_, spell_jitter_;
  std::array<Jitter, 2> jitters_before_;  // before the first longer one
  Nanos spell_began_, spell_least_;
  std::uint64_t losses_ = 0;

  BytesPerSec beta_;
  Nanos beta_at_;
  ArrivalClock arrivals_;
  Nanos passed_;        // when the link was done with what was acknowledged last, by our clock
  Bytes acked_by_nic_;  // by then
  std::uint64_t received_by_peer_ = 0;
  std::uint32_t calm_ = 0;           // moments in a row at which the peer's NIC was not crowded
  Nanos alone_at_{-(3600_s).count};  // others paused in a window
  bool told_by_all_ = false;         // since then: the rate is what all of them sent to the peer
  Acks acks_;
  std::int64_t burst_ = PathEstimator::kBurstBytes;  // what a shaper's bucket may still hold
  // The first windows after nothing was known, or it was too old.
  struct First {
    int left = 0;
    BytesPerSec sum = {};
  };
  First first_;
  Nanos carried_since_;  // 0: the next piece begins
  std::int64_t carried_ = 0;
  Window beyond_, any_;                   // without and with what a bucket may have let pass
  std::uint32_t lower_ = 0, higher_ = 0;  // windows in a row
  Nanos lower_since_;
  BytesPerSec lower_to_, higher_to_;
  int train_side_ = 0;  // of the last full train, if it contradicted what is known, and what it found
  BytesPerSec train_;

  LevelWatch alpha_watch_{(50_us).count}, beta_watch_{1};
  Nanos next_look_;
  std::uint64_t changes_ = 0;
};

}  // namespace canarynet
