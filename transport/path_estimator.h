// transport/path_estimator.h -- what acknowledgements prove of one lane: its rate, its round trip, and how much to keep
// in flight on it.
//
// What: a lane earns its rate. A sample is (bytes acknowledged since the ack before the piece's departure) / (the time
// since that ack, or the time in which they were sent if that is longer), as BBR defines it (Cardwell et al., "BBR:
// congestion-based congestion control", 2016). Three rules keep it honest:
// - A shaper lets a burst pass at the speed of the wire. What a lane carries within a burst after a pause proves
//   nothing; only what lies beyond it counts.
// - What is sent may be all that there was to send: over a longer span, pauses and all, it is a lower bound.
// - The time that a piece took, less what a round trip and two late wake-ups take, is an upper bound, however little
//   was sent; but it is one of the NIC, which carries other channels' bytes as well, and the acks of this one behind
//   them.
// A lane's rate is its share of the NIC while other channels send. Its capacity is what it would carry alone: the bytes
// that its NIC carried in all while a piece of it was under way, its own by its rate, over that time. Where that is
// more than twice what the NIC had under way when the piece left, later pieces of others overtook it: something else
// holds the lane up, and its own rate is what counts.
// The window follows BBR as well: two round trips at the rate, since what TCP sends again holds up the acks of all that
// comes behind it for one, while others must leave. While the rate still grows with it, twice that (STARTUP); then a
// quarter more in one round trip of eight (PROBE_BW).
// Units: ns, bytes. One owner thread. Nothing here allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "base/units.h"

namespace canarynet {

// The highest rate that a path's lanes have proved within the last minute. A link that carried it may do so again any
// time. It outlives the lanes, since a link that collapses often ends them.
class BestRate {
 public:
  void note(Nanos now, BytesPerSec rate) {
    // A windowed maximum: two buckets of 30 s each.
    if (now - bucket_start_ > 30_s) {
      best_[1] = best_[0];
      best_[0] = {};
      bucket_start_ = now;
    }
    best_[0] = std::max(best_[0], rate);
  }
  BytesPerSec rate() const { return std::max(best_[0], best_[1]); }
  bool is_twice(BytesPerSec of) const { return rate().count > of.count * 2; }

 private:
  std::array<BytesPerSec, 2> best_;
  Nanos bucket_start_{-(30_s).count};
};

class PathEstimator {
 public:
  // What a NIC carried, for all channels.
  struct NicBytes {
    Bytes acked{};
    Bytes received{};
    // Either way: what goes out and what comes in share nothing.
    Bytes since(const NicBytes& then) const { return std::max(acked - then.acked, received - then.received); }
  };
  // What all lanes of a NIC have under way when a frame joins them.
  struct NicQueue {
    Bytes before{};
    Bytes bytes{};        // with the frame
    Nanos free_at{};      // when the NIC will have sent it, by its capacity
    bool proves = false;  // since the NIC was idle, more than a shaper's burst has been acknowledged
  };
  struct Departure {
    Nanos sent{};
    Nanos delivered_at{};  // when `delivered` last changed before this departure
    std::uint64_t delivered = 0;
    Nanos first_sent{};    // when what was acknowledged then had left
    bool limited = false;  // less than a piece was in flight: the sample says little about the link
    bool prompt = true;    // the ack is not held back for company: it tells the round trip
    bool dated = true;     // the arrival that its ack tells is its own
    bool proves = false;   // it left behind a burst
    Bytes unacked{};       // with this piece: what the link must carry before its ack can come
    NicBytes nic;          // until then; the caller sets it, and the queue
    NicQueue queue;
  };

  // The largest bucket that is expected of a shaper, and how fast it may fill up.
  static constexpr std::int64_t kBurstBytes = 320 * 1024;
  static constexpr BytesPerSec kRefill{1'250'000'000};
  static constexpr std::int64_t kSeenBytes = 32 * 1024;
  // How late both ends together wake up without anything being wrong with the link; a long one varies by more.
  static constexpr Nanos kWakeUp = 1_ms;
  static constexpr int kVariation = 8;  // this part of a round trip
  // A span with pauses is looked at after the first, and a new one begins after the second.
  static constexpr Nanos kSpanMin = 20_ms;
  static constexpr Nanos kSpanMax = 500_ms;
  // Unacknowledged bytes are kept to (two minimum RTTs + this) at the measured rate: enough to bridge a late wake-up of
  // either end, little enough that a rate change is felt soon.
  static constexpr Nanos kQueueTarget = 20_ms;
  // The rounds without growth (a quarter) that end STARTUP, and how many there are from one probe to the next.
  static constexpr std::uint32_t kFlatRounds = 3;
  static constexpr std::uint32_t kProbeRounds = 8;

  Departure depart(Nanos now, bool idle, bool limited, bool prompt, Bytes unacked) {
    if (idle) {
      const auto refilled =
          static_cast<std::uint64_t>(std::min(kBurstBytes, kRefill.bytes_in(std::min(now - delivered_at_, 1_s)).count));
      burst_used_ -= std::min(burst_used_, refilled);
      if (delivered_ == 0 || now - delivered_at_ > kSpanMax / 4) begin_span(now);
      delivered_at_ = now;
      acked_sent_ = now;
    }
    const bool proves = burst_used_ >= std::uint64_t{kBurstBytes};
    return {now, delivered_at_, delivered_, acked_sent_, limited, prompt, true, proves, unacked, {}, {}};
  }
  // `bytes` were acked; `last` is the youngest departure among them. `full`: the window was what kept more from going.
  // `nic`: by now.
  void on_acked(Nanos now, std::uint64_t bytes, const Departure& last, bool full, const NicBytes& nic) {
    delivered_ += bytes;
    delivered_at_ = now;
    acked_sent_ = last.sent;
    burst_used_ = std::min(burst_used_ + bytes, std::uint64_t{kBurstBytes});
    if (last.prompt) sample_rtt(now, now - last.sent, last.unacked);
    const Bytes moved{static_cast<std::int64_t>(delivered_ - last.delivered)};
    // It may have stood behind what others sent here, and its ack behind what the peer sent to others: of that we see
    // what came to us.
    const Bytes meanwhile = nic.since(last.nic);
    if (last.prompt) sample_service(now - last.sent - rtt_min(), std::max(last.unacked, meanwhile), last.unacked);
    was_busy_ |= last.proves;
    if (!last.limited || moved.count >= kSeenBytes) seen_ = BytesPerSec::of(moved, now - last.delivered_at);
    // Acks that were late come close together; what they tell of had left as far apart as ever.
    const Nanos span = std::max(now - last.delivered_at, last.sent - last.first_sent);
    if (last.proves) sample_rate(now, moved, span, last.limited);
    if (last.prompt) sample_capacity(moved, span, nic.acked - last.nic.acked, now - last.sent, last);
    bound_from_span(now);
    bound_from_service(now, std::max(moved, meanwhile), last);
    count_round(last, full);
  }
  // `unacked`: the bytes that the link carried meanwhile.
  void sample_rtt(Nanos now, Nanos rtt, Bytes unacked = {}) {
    if (rtt.count < 0) return;
    note_least(now, rtt, unacked);
    const Nanos error{std::abs(rtt.count - srtt_.count)};
    if (srtt_.count == 0) {
      srtt_ = rtt;
      rttvar_ = rtt / 2;
    } else {
      rttvar_.count += (error.count - rttvar_.count) / 4;
      srtt_.count += (rtt.count - srtt_.count) / 8;
    }
  }
  // Of a lane that carries nothing yet: it tells the least that a round trip can be, and nothing of what is usual.
  void note_least(Nanos now, Nanos rtt, Bytes unacked = {}) {
    // A windowed minimum: two buckets of 5 s each.
    if (now - bucket_start_ > 5_s) {
      fastest_[1] = fastest_[0];
      fastest_[0] = {rtt, unacked};
      bucket_start_ = now;
    } else if (rtt < fastest_[0].rtt) {
      fastest_[0] = {rtt, unacked};
    }
  }
  BytesPerSec rate() const { return rate_; }  // 0: nothing is proved yet
  // What it would carry if nothing else were sent over its NIC. 0: nothing is proved yet.
  BytesPerSec capacity() const { return capacity_; }
  // Whether more than a burst was ever under way at once. Otherwise the rate is what there was to send.
  bool was_busy() const { return was_busy_; }
  // What the last acknowledgement of some size said, however little that proves: good enough for patience. 0: none
  // came.
  BytesPerSec seen() const { return was_busy_ ? rate_ : std::max(rate_, seen_); }
  std::uint64_t delivered() const { return delivered_; }  // bytes that were acknowledged
  Nanos sampled_at() const { return sampled_at_; }        // when the rate was last confirmed or changed
  Nanos srtt() const { return srtt_; }
  Nanos rttvar() const { return rttvar_; }
  Nanos rtt_min() const {
    const Nanos m = fastest().rtt;
    return m == Nanos::max() ? Nanos{} : m;
  }
  // The round trip without the time that its bytes took. A lane that carries pieces only never sees a bare round trip:
  // counted whole, it makes each piece look twice as slow as it is, and a slow lane is not chosen again.
  Nanos latency() const {
    const RoundTrip& f = fastest();
    if (f.rtt == Nanos::max()) return {};
    return rate_.count == 0 ? f.rtt : std::max(Nanos{}, f.rtt - rate_.time_for(f.unacked));
  }
  // What its pieces would allow it, judged by how long they took, less a round trip and late wake-ups.
  // BytesPerSec::max() in the ordinary case.
  BytesPerSec ceiling() const {
    const Nanos service = carried_for_ - slack();
    if (service.count <= 0) return BytesPerSec{std::numeric_limits<std::int64_t>::max()};
    return BytesPerSec::of(carried_, service);
  }
  // What it has carried itself lately, in the time that its pieces took, a late wake-up's at least. A shaper's bucket
  // may explain it.
  BytesPerSec load() const { return BytesPerSec::of(own_, std::max(carried_for_ - slack(), slack())); }
  // What to keep unacknowledged; 0: nothing is proved yet.
  std::uint64_t window() const {
    const std::int64_t needed = rate_.bytes_in(rtt_min() * 2 + kQueueTarget).count;
    const std::int64_t gained = flat_rounds_ < kFlatRounds ? needed : rounds_ % kProbeRounds == 0 ? needed / 4 : 0;
    return static_cast<std::uint64_t>(needed + gained);
  }

 private:
  struct RoundTrip {
    Nanos rtt = Nanos::max();
    Bytes unacked;
  };
  const RoundTrip& fastest() const { return fastest_[0].rtt < fastest_[1].rtt ? fastest_[0] : fastest_[1]; }

  void sample_rate(Nanos now, Bytes moved, Nanos span, bool limited) {
    if (span.count <= 0) return;
    // While acks are held up a shaper's bucket fills, and what leaves next passes at the speed of the wire. A lane that
    // is believed to be a thousand times as fast as it is gets all that waits: one sample counts for twice at most.
    const BytesPerSec twice{rate_.count * 2};
    const auto sample = rate_.count == 0 ? BytesPerSec::of(moved, span) : std::min(BytesPerSec::of(moved, span), twice);
    const bool grows = flat_rounds_ < kFlatRounds;
    if (rate_.count == 0) {
      rate_ = sample;
    } else if (sample > rate_) {
      rate_.count += (sample.count - rate_.count) / (limited || grows ? 2 : 4);  // a lane little used gets few samples
    } else if (!limited) {
      rate_.count -= (rate_.count - sample.count) / 4;
    } else {
      return;
    }
    sampled_at_ = now;
  }
  Nanos slack() const { return std::max(kWakeUp, rtt_min() / kVariation); }
  // On average: one late wake-up is nothing.
  void sample_service(Nanos took, Bytes bytes, Bytes own) {
    own_.count += (own.count - own_.count) / 8;
    carried_for_.count += (took.count - carried_for_.count) / 8;
    carried_.count += (bytes.count - carried_.count) / 8;
  }
  // `moved` and `span` are what the lane's rate is proved by, `through` what the NIC has sent for all lanes while the
  // piece was under way, `took` for how long that was. The capacity is a mean by sums: a short time in which acks came
  // together weighs little.
  void sample_capacity(Bytes moved, Nanos span, Bytes through, Nanos took, const Departure& last) {
    const bool known = capacity_.count != 0;
    const bool overtaken = through.count > last.queue.bytes.count * 2 + kOvertakenBytes;
    Bytes bytes = moved;
    Nanos time = span;
    if (!overtaken) {
      // Some of the lane's own bytes had left before the piece did, and acks that were late came together.
      if (span > took) bytes = BytesPerSec::of(moved, span).bytes_in(took);
      bytes += through - moved;
      time = took;
    }
    // A late wake-up is a part of the time, and makes the lane look slow. Where pieces take less, one that was held up
    // must not be the first to count.
    if (time.count <= 0 || (!known && time < kWakeUp)) return;
    if (!(overtaken ? last.proves : last.queue.proves)) return;
    // A small queue, or one shorter than the path holds, may have been all that there was to send.
    const bool limited =
        overtaken ? last.limited : last.queue.bytes < std::max(Bytes{kSeenBytes}, capacity_.bytes_in(rtt_min()));
    if (limited) {
      // What went before the piece may have been all but through when the piece left.
      if (!overtaken) bytes -= std::min(bytes, last.queue.before);
      if (!known || BytesPerSec::of(bytes, time) <= capacity_) return;
    }
    // A process was stopped, or frames had to be sent again: that is no reason to believe in a fraction of what is
    // known. One sample counts for twice of it at most, and for a quarter.
    if (known) time = std::clamp(time, capacity_.time_for(bytes) / 2, capacity_.time_for(bytes) * 4);
    capacity_samples_ = std::min(capacity_samples_ + 1, kCapacitySamples);
    capacity_bytes_.count += (bytes.count - capacity_bytes_.count) / capacity_samples_;
    capacity_time_.count += (time.count - capacity_time_.count) / capacity_samples_;
    capacity_ = BytesPerSec::of(capacity_bytes_, capacity_time_);
  }
  void begin_span(Nanos now) {
    span_began_ = now;
    span_delivered_ = delivered_;
  }
  void bound_from_span(Nanos now) {
    const Nanos span = now - span_began_;
    if (span < kWakeUp) span_delivered_ = delivered_;  // acks that were held up come at once
    if (span < kSpanMin) return;
    const std::int64_t moved = static_cast<std::int64_t>(delivered_ - span_delivered_) - kBurstBytes;
    if (moved > 0) {
      const auto proved = BytesPerSec::of(Bytes{moved}, span);
      if (proved > rate_) {
        rate_ = proved;
        sampled_at_ = now;
      }
    }
    if (span >= kSpanMax) begin_span(now);
  }
  void bound_from_service(Nanos now, Bytes carried, const Departure& last) {
    const Nanos held = last.prompt ? slack() : slack() * 2;  // the ack may have waited for company
    const Nanos service = now - last.sent - rtt_min() - held;
    if (rate_.count == 0 || service.count <= 0) return;
    const auto most = BytesPerSec::of(carried, service);
    if (most >= rate_) return;
    rate_.count -= (rate_.count - most.count) / 4;
    sampled_at_ = now;
  }
  // A round ends when something is acknowledged that left after it began.
  void count_round(const Departure& last, bool full) {
    if (last.delivered < round_delivered_) return;
    round_delivered_ = delivered_;
    if (rate_.count == 0) return;
    ++rounds_;
    if (rate_.count - grown_to_.count >= grown_to_.count / 4) {
      grown_to_ = rate_;
      flat_rounds_ = 0;
    } else if (full) {
      flat_rounds_ = std::min(flat_rounds_ + 1, kFlatRounds);
      if (rate_ < grown_to_) grown_to_ = rate_;
    }
  }

  // Beyond twice the NIC's queue, so many later bytes may be acknowledged first without anything being wrong.
  static constexpr std::int64_t kOvertakenBytes = 16 * 1024;
  static constexpr int kCapacitySamples = 8;  // a capacity is the mean of about so many

  BytesPerSec rate_;
  BytesPerSec capacity_;
  Bytes capacity_bytes_;
  Nanos capacity_time_;
  int capacity_samples_ = 0;
  BytesPerSec seen_;
  bool was_busy_ = false;
  Nanos sampled_at_;
  Nanos srtt_, rttvar_;
  std::array<RoundTrip, 2> fastest_;
  Nanos carried_for_;  // of what prompt acks told: the time beyond a round trip
  Bytes carried_, own_;
  Nanos bucket_start_{-(5_s).count};
  std::uint64_t delivered_ = 0;
  Nanos delivered_at_;
  Nanos acked_sent_;              // when what was acknowledged then had left
  std::uint64_t burst_used_ = 0;  // of a shaper's bucket, at most
  Nanos span_began_;
  std::uint64_t span_delivered_ = 0;
  std::uint64_t round_delivered_ = 0;
  std::uint32_t rounds_ = 0;
  std::uint32_t flat_rounds_ = 0;  // in a row
  BytesPerSec grown_to_;
};

}  // namespace canarynet
