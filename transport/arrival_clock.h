// transport/arrival_clock.h -- when frames arrived by the peer's clock, and what that tells of the way there alone.
//
// What: an acknowledgement tells when the youngest of its frames had arrived, so it does not matter how long it waited
// itself behind what the peer sends. (arrival - departure) differs from a frame's way by what the two clocks differ by;
// beyond the least of it lies the time in which the frame stood in queues, and that of its own bytes. The least may
// rise by what two clocks drift apart, and no faster: a link that is never idle shows no shorter way for minutes, and
// its queue would otherwise become the least.
// Units: ns. What the peer tells may be anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/units.h"

namespace canarynet {

class ArrivalClock {
 public:
  // Clocks are off by 20 ppm or so.
  static constexpr std::int64_t kDriftPart = 20'000;

  // A frame that left at `sent` had arrived by the peer's clock.
  void note(Nanos now, Nanos sent, std::uint64_t arrived_ns) {
    const std::int64_t way = difference(arrived_ns, sent);
    if (way <= least(now)) begin(now, way);
  }
  // The same, and how long it was under way beyond the least. The ack came `now`, so it was no more than what has
  // passed beyond the least round trip.
  Nanos queued(Nanos now, Nanos sent, std::uint64_t arrived_ns, Nanos round_trip) {
    note(now, sent, arrived_ns);
    const std::int64_t way = difference(arrived_ns, sent);
    const Nanos beyond{way - least(now)}, passed = now - sent;
    // It did not arrive after its ack: the least is that of a clock that has jumped since, or was read too early.
    if (beyond > passed) begin(now, way);
    return std::clamp(passed - round_trip, Nanos{}, beyond > passed ? Nanos{} : beyond);
  }
  // The way is another one now.
  void forget() { *this = {}; }

 private:
  // Far beyond the age of any clock; sums of two of them fit.
  static constexpr std::int64_t kMost = std::int64_t{1} << 61;
  static std::int64_t difference(std::uint64_t arrived_ns, Nanos sent) {
    const auto way = static_cast<std::int64_t>(arrived_ns - static_cast<std::uint64_t>(sent.count));
    return std::clamp(way, -kMost, kMost);
  }
  std::int64_t least(Nanos now) const { return least_ + (now - least_at_).count / kDriftPart; }
  void begin(Nanos now, std::int64_t way) {
    least_ = way;
    least_at_ = now;
  }

  std::int64_t least_ = kMost;
  Nanos least_at_;
};

}  // namespace canarynet
