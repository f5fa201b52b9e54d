// transport/path.h -- one lane's place in a channel: its connection state, what is unacknowledged on it, and what was
// measured.
//
// A path outlives its lanes: when a lane dies the path dials (or awaits) the next one. Plain state;
// transport/channel.cc drives it.
// Units: ns, bytes. One owner thread. Nothing here allocates.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "transport/lane.h"
#include "transport/wire.h"

namespace canarynet {

// Which rails a path joins, and where to dial.
struct PathSpec {
  int local_rail = 0;
  int remote_rail = 0;
  int lane_index = 0;
  Address remote;
};

// Delivery rate and round trips of one path, from acknowledgements alone.
//
// Rate: a sample is (bytes acked since the piece left) / (time since the last ack at its departure), as BBR defines it
// (Cardwell et al. 2016). Samples taken while little was in flight say what was sent, not what the link can do: they
// may only raise the estimate, and small ones don't make the first (the frames of a join would give a lane a rate so
// low that it is never chosen again).
class PathEstimator {
 public:
  struct Departure {
    Nanos sent{};
    Nanos delivered_at{};  // when `delivered` last changed before this departure
    std::uint64_t delivered = 0;
    bool limited = false;  // less than a piece was in flight: the sample says little about the link
    bool prompt = true;    // the ack is not held back for company: it tells the round trip
    Bytes unacked{};       // with this piece: what the link must carry before its ack can come
  };

  static constexpr std::int64_t kFirstSampleBytes = 32 * 1024;

  Departure depart(Nanos now, bool idle, bool limited, bool prompt, Bytes unacked) {
    if (idle) delivered_at_ = now;
    return {now, delivered_at_, delivered_, limited, prompt, unacked};
  }
  // `bytes` were acked; `last` is the youngest departure among them.
  void on_acked(Nanos now, std::uint64_t bytes, const Departure& last) {
    delivered_ += bytes;
    delivered_at_ = now;
    if (last.prompt) sample_rtt(now, now - last.sent, last.unacked);
    const Nanos span = now - last.delivered_at;
    if (span.count <= 0) return;
    const Bytes moved{static_cast<std::int64_t>(delivered_ - last.delivered)};
    const auto sample = BytesPerSec::of(moved, span);
    if (rate_.count == 0) {
      if (last.limited && moved.count < kFirstSampleBytes) return;
      rate_ = sample;
    } else if (sample > rate_ || !last.limited) {
      rate_.count +=
          (sample.count - rate_.count) / (last.limited ? 2 : 4);  // a lane that is little used gets few samples
    } else {
      return;
    }
    sampled_at_ = now;
  }
  // `unacked`: the bytes that the link carried meanwhile.
  void sample_rtt(Nanos now, Nanos rtt, Bytes unacked = {}) {
    if (rtt.count < 0) return;
    // A windowed minimum: two buckets of 5 s each.
    if (now - bucket_start_ > 5_s) {
      fastest_[1] = fastest_[0];
      fastest_[0] = {rtt, unacked};
      bucket_start_ = now;
    } else if (rtt < fastest_[0].rtt) {
      fastest_[0] = {rtt, unacked};
    }
    const Nanos error{std::abs(rtt.count - srtt_.count)};
    if (srtt_.count == 0) {
      srtt_ = rtt;
      rttvar_ = rtt / 2;
    } else {
      rttvar_.count += (error.count - rttvar_.count) / 4;
      srtt_.count += (rtt.count - srtt_.count) / 8;
    }
  }
  BytesPerSec rate() const { return rate_; }        // 0: not measured yet
  Nanos sampled_at() const { return sampled_at_; }  // when the rate was last confirmed or changed
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

 private:
  struct RoundTrip {
    Nanos rtt = Nanos::max();
    Bytes unacked;
  };
  const RoundTrip& fastest() const { return fastest_[0].rtt < fastest_[1].rtt ? fastest_[0] : fastest_[1]; }

  BytesPerSec rate_;
  Nanos sampled_at_;
  Nanos srtt_, rttvar_;
  std::array<RoundTrip, 2> fastest_;
  Nanos bucket_start_{-(5_s).count};
  std::uint64_t delivered_ = 0;
  Nanos delivered_at_;
};

// What arrived on a lane: cumulative sequence and the 1024 after it.
class AckState {
 public:
  static constexpr std::uint32_t kWindow = 64 * wire::kAckWordsMax;
  // False for a sequence outside the window (a confused or hostile sender).
  // By distance, not by size: a fast lane counts through 32 bits within hours.
  bool mark(std::uint32_t sequence) {
    const std::uint32_t ahead = sequence - cumulative_;
    if (ahead == 0 || ahead > kPast) return true;
    if (ahead > kWindow) return false;
    if (ahead > highest_ - cumulative_) highest_ = sequence;
    if (sequence != cumulative_ + 1) {
      set(sequence);
      return true;
    }
    ++cumulative_;
    while (cumulative_ != highest_ && test(cumulative_ + 1)) {
      clear(cumulative_ + 1);
      ++cumulative_;
    }
    return true;
  }
  // Fills `out`; returns payload bytes.
  std::uint32_t encode(wire::AckPayload* out) const {
    out->cumulative = cumulative_;
    out->words = 0;
    const std::uint32_t beyond = highest_ - cumulative_;
    for (std::uint32_t base = 0; base < beyond; base += 64) {
      std::uint64_t word = 0;
      for (std::uint32_t b = 0; b < 64 && base + b < beyond; ++b) {
        if (test(cumulative_ + 1 + base + b)) word |= std::uint64_t{1} << b;
      }
      out->bitmap[out->words++] = word;
    }
    return 8 + 8 * out->words;
  }
  // As if everything up to `cumulative` had arrived.
  void reset(std::uint32_t cumulative = 0) {
    *this = AckState{};
    cumulative_ = highest_ = cumulative;
  }

 private:
  static constexpr std::uint32_t kPast = 0x80000000;  // distances beyond are behind us
  bool test(std::uint32_t s) const { return (bits_[(s % kWindow) / 64] >> (s % 64)) & 1; }
  void set(std::uint32_t s) { bits_[(s % kWindow) / 64] |= std::uint64_t{1} << (s % 64); }
  void clear(std::uint32_t s) { bits_[(s % kWindow) / 64] &= ~(std::uint64_t{1} << (s % 64)); }
  std::uint32_t cumulative_ = 0;
  std::uint32_t highest_ = 0;
  std::array<std::uint64_t, wire::kAckWordsMax> bits_{};
};

// Why a piece goes over a lane again. Counted where it goes.
enum class Resend : std::uint8_t {
  kNone,
  kLost,      // its frame, or the ack of it, did not arrive
  kStalled,   // its lane gives no acks while another one is there
  kFailover,  // its lane was given up
  kHedged,    // an idle lane will be much faster
};
using ResendCounts = std::array<std::uint64_t, 4>;  // by reason, from kLost

struct Path {
  enum class State : std::uint8_t {
    kIdle,       // no lane; the dialling side dials at `next_dial`
    kDialing,    // connect under way, or our Hello sent and theirs awaited
    kProbation,  // answers again after a failure; carries heartbeats only, until `probation_until`
    kUp,
  };
  struct InFlight {
    std::uint32_t record = 0xffffffff;  // index into the channel's records; none when acked over another lane
    std::uint32_t bytes = 0;            // 0: acknowledged or taken back
    PathEstimator::Departure departure;
  };

  PathSpec spec;
  State state = State::kIdle;
  std::unique_ptr<Lane> lane;
  // Says that it takes this lane's place; held until that one has spoken, ended, or been silent for too long
  // (Channel::settle_candidate).
  std::unique_ptr<Lane> candidate;
  Nanos challenged = Nanos::max();  // when the first candidate came since the lane was last heard
  // Dialled beside the lane, whose connection backs off; takes its place when the peer answers there.
  std::unique_ptr<Lane> successor;
  Nanos successor_since;
  bool successor_stood = false;  // the peer's machine has answered
  std::string no_lane;           // why the last try to get a lane failed; "" once there is one
  PathEstimator estimator;

  // sending
  std::uint32_t next_sequence = 1;
  std::uint32_t first_unacked = 1;  // == next_sequence: nothing in flight
  std::uint64_t unacked_bytes = 0;
  std::vector<InFlight> in_flight;  // AckState::kWindow entries, by sequence; none before its rails are known
  Nanos last_progress;              // last ack of something, or when the path went from empty to busy
  Nanos stall_began;
  std::uint32_t stalls = 0;  // time-outs in a row with nowhere else to go
  bool stalled = false;      // in flight without acks for too long: gets no new pieces
  bool blocked = false;      // send() refused; on_writable clears it
  Nanos ack_asked;           // when an ack was last asked for at once
  bool ack_wanted = false;   // for an awaited frame that was not the last then
  bool needs_flush = false;

  // receiving
  AckState received;
  std::uint32_t ack_pending_frames = 0;
  std::uint64_t ack_pending_bytes = 0;
  bool ack_now = false;
  Nanos ack_due = Nanos::max();
  bool landing = false;  // a kSpan landing is in progress
  const std::byte* landing_place = nullptr;
  wire::Header landing_header;
  std::uint64_t landing_cookie = 0;

  // liveness
  Nanos last_heard;
  Nanos last_sent;
  Nanos state_since;
  Nanos next_dial;                     // kIdle
  Nanos answer_patience;               // kDialing, connected: how long the peer may take to say hello; grows
  Nanos refused_since = Nanos::max();  // every dial since then was refused or hung up on
  Nanos probation_until;
  Nanos probation_backoff;  // doubles with each return that fails
  Nanos up_since;
  bool echo_seen = false;          // since the lane came up
  std::uint64_t peer_sent_ns = 0;  // to echo
  Nanos peer_heard_at;

  // counters over all lanes of the path
  LaneCounters closed_lanes;
  std::uint64_t failovers = 0;
  ResendCounts resends{};

  InFlight& entry(std::uint32_t sequence) { return in_flight[sequence % AckState::kWindow]; }
  bool window_open() const { return next_sequence - first_unacked < AckState::kWindow; }
  LaneCounters counters() const {
    LaneCounters c = closed_lanes;
    if (lane) add(&c, lane->counters());
    return c;
  }
  static void add(LaneCounters* to, const LaneCounters& c) {
    to->bytes_sent += c.bytes_sent;
    to->bytes_received += c.bytes_received;
    to->frames_sent += c.frames_sent;
    to->frames_received += c.frames_received;
    to->header_errors += c.header_errors;
    to->payload_errors += c.payload_errors;
  }
};

}  // namespace canarynet
