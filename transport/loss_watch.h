// transport/loss_watch.h -- whether a connection loses what no full queue explains: then the choice of TCP's congestion
// control matters.
//
// What: congestion drops where a queue is full, so the round trip is long when it happens. Segments that are sent again
// while the round trip is as short as ever were lost by the way itself; cubic and reno take that for congestion and
// slow down for nothing.
// Thread: the owner's. Pure. Nothing here allocates.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace canarynet {

// The word of the connection's own protocol on the way. Counts begin with the connection.
struct WayLosses {
  std::uint64_t segments = 0;  // with payload, sent
  std::uint64_t resent = 0;    // of them again
  Nanos round_trip;            // smoothed
  Nanos least_round_trip;
};

class LossWatch {
 public:
  // So many, and this share of all: in 100,000 segments.
  static constexpr std::uint64_t kLostMin = 20;
  static constexpr std::uint64_t kLostPer100000 = 50;
  // A round trip that is no longer than this part and this time more than the least has met no queue.
  static constexpr int kQueuePart = 4;
  static constexpr Nanos kQueueTime = 200_us;

  // To be called about once per second. True from when on the losses are the way's own.
  bool look(const WayLosses& now) {
    const bool queue = now.round_trip > now.least_round_trip + now.least_round_trip / kQueuePart + kQueueTime;
    if (!queue && now.resent > seen_) lost_ += now.resent - seen_;
    seen_ = now.resent;
    return lost_ >= kLostMin && lost_ * 100'000 >= now.segments * kLostPer100000;
  }

 private:
  std::uint64_t seen_ = 0;
  std::uint64_t lost_ = 0;  // without a queue
};

}  // namespace canarynet
