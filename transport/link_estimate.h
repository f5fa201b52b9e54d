// transport/link_estimate.h -- what is known of one path's link in the direction of its sender: alpha (the time of a
// byte that meets no queue), beta (the rate at which it delivers), jitter, losses, and since when.
//
// What: reads the same acknowledgements as PathEstimator, and decides nothing: that one serves the choice of a lane,
// here is what planners and people are told. It belongs to the path, so a lane's death leaves it alone.
// - alpha is half the least round trip. A shorter one counts at once. A longer one counts when frames that met no queue
//   of ours have seen nothing else for a while: heartbeats in pauses of the traffic, and small frames.
// - beta is measured while the link is busy: a piece that left before the link was done with the one before it finds it
//   so, and what is acknowledged between the two acks took exactly that time. What a shaper lets pass as a burst after
//   a pause is left out. Two windows of such time in a row that say more raise it, and lower ones that have lasted
//   lower it; where other channels share the NIC, only what all of them got together contradicts it.
// - An estimate older than kStale gives way to the next measurement.
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
  // A piece of this size or more that comes the other way holds up an ack.
  static constexpr std::int64_t kHoldsUp = 16 * 1024;
  // A frame with no more than that before it met no queue.
  static constexpr std::int64_t kSmallBytes = 1024;
  // A window of busy time.
  static constexpr Nanos kWindow = 100_ms;
  static constexpr Nanos kBusyMin = 5_ms;
  static constexpr std::uint64_t kBusyBytes = 256 * 1024;
  static constexpr int kNoise = 16;  // windows differ by this part for no reason
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
  // As PathEstimator::on_acked.
  void on_acked(Nanos now, std::uint64_t bytes, const Departure& last, const NicBytes& nic) {
    on_round_trip(now, last, nic);
    const Bytes by_nic = nic.acked - nic_.acked;
    // Those that come at the same time are one.
    const bool same = now == acked_at_;
    if (!same) count_acks();
    // An ack that was held up came later than the link was done with its bytes, but not before the ack before it.
    const Nanos idle = last.sent - ((held_ ? acked_before_ : acked_at_) - round_trip_);
    if (!same) {
      acks_ = {};
      acks_.at = now;
      acks_.span = now - acked_at_;
      acks_.busy = idle.count <= 0 && acks_.span < kStandstill;
      // It may have been held up by a piece that came the other way.
      held_ = (nic.received - nic_.received).count >= kHoldsUp;
      acked_before_ = acked_at_;
    }
    acked_at_ = now;
    nic_ = nic;
    if (idle.count > 0) {
      const BytesPerSec refill = beta_.count == 0 ? PathEstimator::kRefill : BytesPerSec{beta_.count * kRefillTimes};
      const std::int64_t refilled = std::min(refill.bytes_in(std::min(idle, 1_s)).count, PathEstimator::kBurstBytes);
      burst_ = std::min(burst_ + static_cast<std::uint64_t>(refilled), std::uint64_t{PathEstimator::kBurstBytes});
    }
    acks_.bytes += bytes;
    acks_.by_nic += by_nic;
    acks_.burst |= burst_ != 0;
    burst_ -= std::min(burst_, bytes);
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
    acked_at_ = {};
    acks_ = {};
    stretches_ = {};
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

   private:
    Nanos last_, mean_;
    bool known_ = false;
  };

  void sample(Nanos now, Nanos round_trip, Bytes before) {
    if (round_trip.count <= 0) return;
    const bool small = before.count <= kSmallBytes;
    if (small) {
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
    if (longer_ == 0) longer_since_ = now;
    longest_ = longer_ == 0 ? round_trip : std::max(longest_, round_trip);
    longer_to_ = longer_++ == 0 ? round_trip : std::min(longer_to_, round_trip);
    const bool slightly = longer_to_ - round_trip_ <= PathEstimator::kWakeUp;
    if (longer_ < (slightly ? 3 : 2) || now - longer_since_ < (slightly ? kSlightlyLongerLasts : kLongerLasts)) return;
    round_trip_ = longer_to_;
    // Those of a longer way are alike; those that met the queues of others are not.
    const bool alike = longest_ - longer_to_ <= std::max(kSlack, longer_to_ / kNoise);
    longer_for_ = alike ? now - longer_since_ : Nanos{};
    sampled_at_ = now;
    longer_ = 0;
  }

  // On which side of what is known it lies; 0: they are the same.
  int train_side(BytesPerSec rate) const {
    const std::int64_t noise = beta_.count / kTrainNoise;
    return rate.count > beta_.count + noise ? 1 : rate.count < beta_.count - noise ? -1 : 0;
  }

  // Looks at the acks that came last, which are all of their moment now.
  void count_acks() {
    const auto like = static_cast<std::size_t>(held_);
    if (!acks_.busy) {
      if (acks_.span >= kStandstill) beyond_ = any_ = {};
      stretches_ = {};
      stretches_[like].open = true;
      return;
    }
    // From one ack to another that was held up alike the link carried what they say, whatever came between them.
    for (Stretch& s : stretches_) s.add(acks_);
    if (stretches_[like].open) {
      const Stretch s = stretches_[like];
      stretches_ = {};
      // What may be a burst is no faster than it was: that much it tells.
      if (any_.add(acks_.at, s.bytes, s.by_nic, s.time)) end_window_with_bursts();
      if (!s.burst && beyond_.add(acks_.at, s.bytes, s.by_nic, s.time)) end_window(acks_.at);
    }
    stretches_[like] = {};
    stretches_[like].open = true;
  }

  // The acks of one moment.
  struct Acks {
    Nanos at;
    Nanos span;         // since those before
    bool busy = false;  // the link was, all that time
    bool burst = false;
    std::uint64_t bytes = 0;
    Bytes by_nic;
  };
  // Busy time since an ack that is remembered.
  struct Stretch {
    bool open = false;
    bool burst = false;
    std::uint64_t bytes = 0;
    Bytes by_nic;
    Nanos time;
    void add(const Acks& a) {
      bytes += a.bytes;
      by_nic += a.by_nic;
      time += a.span;
      burst |= a.burst;
    }
  };
  // Busy time that is looked at together.
  struct Window {
    Nanos began, last, time;
    std::uint64_t bytes = 0;
    Bytes by_nic;
    // True: it is complete.
    bool add(Nanos now, std::uint64_t acked, Bytes for_all, Nanos span) {
      if (bytes == 0 || now - last > 1_s)
        *this = {.began = now - span, .last = {}, .time = {}, .bytes = 0, .by_nic = {}};
      last = now;
      bytes += acked;
      by_nic += for_all;
      time += span;
      return now - began >= kWindow && time >= kBusyMin && bytes >= kBusyBytes;
    }
    BytesPerSec own() const { return BytesPerSec::of(Bytes{static_cast<std::int64_t>(bytes)}, time); }
    BytesPerSec most() const { return std::max(own(), BytesPerSec::of(by_nic, time)); }
  };
  void note_lower(Nanos now, Nanos began, BytesPerSec most) {
    higher_ = 0;
    // The first one may have begun before the change.
    if (lower_ == 0) lower_since_ = began;
    lower_to_ = lower_++ <= 1 ? most : std::max(lower_to_, most);
    if (lower_ >= 2 && now - lower_since_ >= kLowerLasts) {
      beta_ = lower_to_;
      lower_ = 0;
    }
    beta_at_ = sampled_at_ = now;
  }
  // Short operations with pauses between them may never send more than a burst.
  void end_window_with_bursts() {
    const Window w = std::exchange(any_, {});
    if (beta_.count == 0) return;
    if (w.most().count < beta_.count - beta_.count / kNoise) {
      note_lower(w.last, w.began, w.most());
    } else {
      lower_ = 0;
    }
  }
  void end_window(Nanos now) {
    const Window w = std::exchange(beyond_, {});
    const BytesPerSec own = w.own(), most = w.most();
    const std::int64_t noise = beta_.count / kNoise;
    if (beta_.count == 0 || now - beta_at_ > kStale) {
      beta_ = own;
      lower_ = higher_ = 0;
    } else if (own.count > beta_.count + noise) {
      lower_ = 0;
      if (higher_++ != 0) beta_ = std::min(own, higher_to_);
      higher_to_ = own;
    } else if (most.count >= beta_.count - noise) {
      lower_ = higher_ = 0;
      if (own.count >= beta_.count - noise) beta_.count += (own.count - beta_.count) / 8;
    }  // lower ones are noted with the bursts, whose window has these bytes as well
    beta_at_ = sampled_at_ = now;
  }

  Nanos sampled_at_;
  Nanos round_trip_;          // the least
  std::uint32_t longer_ = 0;  // round trips in a row that met no queue, since when, the least of them
  Nanos longer_since_, longer_to_;
  Nanos longest_;  // of them
  Nanos
      longer_for_;  // alike ones were seen so long before it was believed; 0: it is not longer, or they were not alike
  // Of frames that follow one another some meet the queue of a shaper that nobody here knows of, which is no jitter of
  // the link's; then the least of spells differ less.
  Jitter jitter_, spell_jitter_;
  Nanos spell_began_, spell_least_;
  std::uint64_t losses_ = 0;

  BytesPerSec beta_;
  Nanos beta_at_;
  Nanos acked_at_, acked_before_;
  NicBytes nic_;       // by then
  bool held_ = false;  // something came the other way before that ack
  Acks acks_;
  std::array<Stretch, 2> stretches_;                  // since the last ack that nothing held up, and that something did
  std::uint64_t burst_ = PathEstimator::kBurstBytes;  // what a shaper's bucket may still hold
  Window beyond_, any_;                               // without and with what a bucket may have let pass
  std::uint32_t lower_ = 0, higher_ = 0;              // windows in a row
  Nanos lower_since_;
  BytesPerSec lower_to_, higher_to_;
  int train_side_ = 0;  // of the last full train, if it contradicted what is known, and what it found
  BytesPerSec train_;

  LevelWatch alpha_watch_{(50_us).count}, beta_watch_{1};
  Nanos next_look_;
  std::uint64_t changes_ = 0;
};

}  // namespace canarynet
