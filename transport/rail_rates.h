// transport/rail_rates.h -- what all channels of a process know together of its rails.
//
// A channel that has sent next to nothing to its peer knows nothing of its lanes; what others have proved of the NICs
// that they leave by is better than a guess. Plain data; one owner thread. Allocates with the first mention of a rail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "transport/path_estimator.h"
#include "transport/probe_train.h"

namespace canarynet {

class RailRates {
 public:
  // Makes room for what will be known of the rail.
  void mention(int rail) { entry(rail); }
  // A lane of this rail has proved `rate`: the highest one counts, and is slowly forgotten.
  void note(int rail, BytesPerSec rate) {
    BytesPerSec& known = entry(rail).rate;
    known.count = std::max(rate.count, known.count - (known.count - rate.count) / 64);
    any_ = true;
  }
  // Urgent pieces under way, over all rails: `more` of them, or less.
  void add_urgent(int more, Nanos now) {
    urgent_ += more;
    urgent_at_ = now;
  }
  int urgent() const { return urgent_; }
  Nanos urgent_at() const { return urgent_at_; }  // when their number last changed; far back: never
  // Probes that wait to be acknowledged, over all lanes of the rail: what is sent now comes behind them.
  void add_probes(int rail, std::int64_t bytes) { entry(rail).probes += bytes; }

  // The trains over idle links.
  ProbeTrains& trains() { return trains_; }

  // The NIC's queue: a frame joins it when a lane of the rail takes it, and leaves it when it is acknowledged, taken
  // back, or given up with its lane.
  PathEstimator::NicQueue join(int rail, std::uint64_t bytes, Nanos now) {
    Entry& e = entry(rail);
    const Nanos idle = std::clamp(now - e.acked_at, Nanos{}, 1_s);
    // Where a peer has stopped, its frames are under way though the NIC is idle.
    if (e.under_way == 0 || idle > kStandsStill)
      e.burst_used -= std::min(e.burst_used, PathEstimator::kRefill.bytes_in(idle).count);
    e.free_at = now + wait(e, now) + time_for(e, static_cast<std::int64_t>(bytes));
    const Bytes before{e.under_way};
    e.under_way += static_cast<std::int64_t>(bytes);
    return {before, Bytes{e.under_way}, e.free_at, e.burst_used >= PathEstimator::kBurstBytes};
  }
  void leave(int rail, std::uint64_t bytes) {
    Entry& e = entry(rail);
    e.under_way -= static_cast<std::int64_t>(bytes);
    CANARY_CHECK(e.under_way >= 0, "more leaves the NIC than was given to it");
  }
  Bytes under_way(int rail) const { return {known(rail) ? at(rail).under_way : 0}; }

  // A lane of this rail shows what it carries when nothing else is sent. The highest one counts, and is slowly
  // forgotten.
  void note_capacity(int rail, BytesPerSec capacity) {
    BytesPerSec& known = entry(rail).capacity;
    known.count = std::max(capacity.count, known.count - (known.count - capacity.count) / 64);
  }
  BytesPerSec capacity(int rail) const { return known(rail) ? at(rail).capacity : BytesPerSec{}; }
  // Until the NIC has sent what was given to all its lanes, by its capacity.
  Nanos wait(int rail, Nanos now) const { return known(rail) ? wait(at(rail), now) : Nanos{}; }

  // Over all lanes of the rail, after they left.
  void add_acked(int rail, std::uint64_t bytes, Nanos now) {
    Entry& e = entry(rail);
    e.carried.acked.count += static_cast<std::int64_t>(bytes);
    e.burst_used = std::min(e.burst_used + static_cast<std::int64_t>(bytes), PathEstimator::kBurstBytes);
    e.acked_at = std::max(e.acked_at, now);
  }
  void add_received(int rail, std::uint64_t bytes) {
    entry(rail).carried.received.count += static_cast<std::int64_t>(bytes);
  }

  PathEstimator::NicBytes carried(int rail) const { return known(rail) ? at(rail).carried : PathEstimator::NicBytes{}; }
  BytesPerSec rate(int rail) const { return known(rail) ? at(rail).rate : BytesPerSec{}; }
  std::int64_t probes(int rail) const { return known(rail) ? at(rail).probes : 0; }
  bool any() const { return any_; }

 private:
  struct Entry {
    BytesPerSec rate;
    std::int64_t probes = 0;
    PathEstimator::NicBytes carried;
    BytesPerSec capacity;
    std::int64_t under_way = 0;
    std::int64_t burst_used = 0;  // of a shaper's bucket, at most
    Nanos acked_at;
    Nanos free_at;  // when the NIC has sent what it was given
  };
  static Nanos time_for(const Entry& e, std::int64_t bytes) {
    return e.capacity.count == 0 ? Nanos{} : e.capacity.time_for(Bytes{bytes});
  }
  // No longer than what is under way takes, however little the NIC was believed to carry when that was given to it.
  static Nanos wait(const Entry& e, Nanos now) {
    return std::clamp(e.free_at - now, Nanos{}, time_for(e, e.under_way));
  }
  static constexpr Nanos kStandsStill = 100_ms;
  const Entry& at(int rail) const { return rails_[static_cast<std::size_t>(rail)]; }
  bool known(int rail) const { return rail >= 0 && static_cast<std::size_t>(rail) < rails_.size(); }
  Entry& entry(int rail) {
    const auto i = static_cast<std::size_t>(std::max(rail, 0));
    if (i >= rails_.size()) rails_.resize(i + 1);
    return rails_[i];
  }
  std::vector<Entry> rails_;
  ProbeTrains trains_;
  bool any_ = false;
  int urgent_ = 0;
  Nanos urgent_at_{-(3600_s).count};
};

}  // namespace canarynet
