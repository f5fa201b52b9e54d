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
#include "transport/link_estimate.h"
#include "transport/path_estimator.h"
#include "transport/probe_train.h"
#include "transport/sequence_window.h"
#include "transport/wire.h"

namespace canarynet {

// The rails that a path joins, and where to dial.
struct PathSpec {
  int local_rail = 0;
  int remote_rail = 0;
  int lane_index = 0;
  Address remote;
};

// The arrivals on a lane: cumulative sequence and the 1024 after it.
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
    return wire::kAckFixedBytes + 8 * out->words;
  }
  // Begins anew, as if everything up to `cumulative` had arrived.
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
  kHedged,    // another lane will be much faster
};
using ResendCounts = std::array<std::uint64_t, 4>;  // by reason, from kLost

// A lane is tried with probes, for which nobody waits (Channel::try_lanes()).
struct Trial {
  Nanos began = Nanos::max();       // max: none is under way
  Nanos next;                       // not before
  std::uint64_t next_at_bytes = 0;  // nor before the channel has sent so much
  Nanos pause;                      // until the one after this; doubles with each that shows nothing new
  std::uint64_t bytes = 0;          // probes sent so far
  std::uint64_t delivered = 0;      // by the lane when it began
  BytesPerSec known;                // the rate when it began
  BytesPerSec best;                 // the highest rate that the lane had shown lately, when it began
};

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
    bool probe = false;
    bool measures = false;  // a probe for the link's estimate, of which the choice of lanes learns nothing
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
  bool successor_stood = false;         // the peer's machine has answered
  std::string no_lane;                  // why the last try to get a lane failed; "" once there is one
  Obstacle obstacle = Obstacle::kNone;  // likewise
  PathEstimator estimator;              // of the lane, for the choice of lanes
  BestRate best;                        // of all lanes of the path
  LinkEstimate link;                    // likewise, for planners and people

  // sending
  std::uint32_t next_sequence = 1;
  std::uint32_t first_unacked = 1;  // == next_sequence: nothing in flight
  std::uint64_t unacked_bytes = 0;
  SequenceWindow<InFlight> in_flight;  // of AckState::kWindow; none before its rails are known
  Nanos last_progress;                 // last ack of something, or when the path went from empty to busy
  Nanos stall_began;
  std::uint64_t acked_at_stall = 0;  // bytes that the peer's kernel had (Lane::progress())
  std::uint32_t stalls = 0;          // time-outs in a row with nowhere else to go
  bool stalled = false;              // in flight without acks for too long: gets no new pieces
  bool blocked = false;              // send() refused; on_writable clears it
  Nanos ack_asked;                   // when an ack was last asked for at once
  bool ack_wanted = false;           // for an awaited frame that was not the last then
  bool needs_flush = false;
  bool window_was_full = false;  // something would have gone here but for the window
  Trial trial;
  std::uint64_t probes_unacked = 0;   // bytes
  std::uint64_t measuring_bytes = 0;  // unacknowledged, of InFlight::measures
  TrainMemory train;
  Nanos chosen_at;  // when a piece was last entrusted to this lane

  // receiving
  AckState received;
  std::uint32_t ack_pending_frames = 0;
  std::uint64_t ack_pending_bytes = 0;
  bool ack_now = false;
  Nanos ack_due = Nanos::max();
  Nanos arrived_at;                 // the last sequenced frame
  Bytes nic_received;               // of all channels by its NIC then
  const char* malformed = nullptr;  // why the frame that is landing can't be right
  bool landing = false;             // a kSpan landing is in progress
  const std::byte* landing_place = nullptr;
  wire::Header landing_header;
  std::uint64_t landing_owner = 0, landing_cookie = 0;

  // liveness
  Nanos last_heard;
  Nanos quiet_looked_at;           // when the connection was asked since then what has come of an unfinished frame
  std::uint64_t came_by_then = 0;  // bytes (Lane::progress())
  Nanos last_sent;
  Nanos state_since;
  Nanos next_dial;                     // kIdle
  Nanos answer_patience;               // kDialing, connected: how long the peer may take to say hello; grows
  Nanos refused_since = Nanos::max();  // every dial since then was refused or hung up on
  Nanos probation_until;
  Nanos probation_backoff;  // doubles with each return that fails
  Nanos up_since;
  Nanos losses_due;                // when the lane is next asked what it loses
  bool losses_told = false;        // the log has the advice for this path
  bool echo_seen = false;          // since the lane came up
  std::uint64_t peer_sent_ns = 0;  // to echo
  Nanos peer_heard_at;
  // A heartbeat that left here: when, why, and what was unacknowledged. Echoes are of one of the last few.
  enum class BeatFor : std::uint8_t {
    kLife,      // nothing else was sent for a while
    kPause,     // in a pause of the traffic, for the link's round trip
    kQuestion,  // amid traffic: does the peer hear this end? The echo may wait behind whatever flows
    kAnswer,    // of that, amid traffic as well
  };
  struct Beat {
    Nanos sent;
    Bytes unacked;
    BeatFor why = BeatFor::kLife;
  };
  std::array<Beat, 4> beats;
  std::size_t last_beat = 0;
  Nanos last_beat_sent() const { return beats[last_beat].sent; }
  // nullptr: none of the last few left then. What is said of them is the peer's word, who may say anything.
  const Beat* find_beat(Nanos sent) const {
    const auto it = std::find_if(beats.begin(), beats.end(), [&](const Beat& b) { return b.sent == sent; });
    return it == beats.end() ? nullptr : &*it;
  }
  bool carried = false;  // pieces came since a heartbeat in a pause was last answered
  Nanos answered_at;

  // counters over all lanes of the path
  LaneCounters closed_lanes;
  std::uint64_t malformed_frames = 0;  // whose header is believed and whose fields can't be right
  std::uint64_t failovers = 0;
  ResendCounts resends{};

  InFlight& entry(std::uint32_t sequence) { return in_flight[sequence]; }
  bool window_open() const { return next_sequence - first_unacked < AckState::kWindow; }
  LaneCounters counters() const {
    LaneCounters c = closed_lanes;
    if (lane) add(&c, lane->counters());
    c.header_errors += malformed_frames;
    return c;
  }
  static void add(LaneCounters* to, const LaneCounters& c) {
    to->bytes_sent += c.bytes_sent;
    to->bytes_received += c.bytes_received;
    to->frames_sent += c.frames_sent;
    to->frames_received += c.frames_received;
    to->header_errors += c.header_errors;
    to->payload_errors += c.payload_errors;
    to->segments_sent += c.segments_sent;
    to->segments_resent += c.segments_resent;
  }
};

}  // namespace canarynet
