// transport/rail_rates.h -- what all channels of a process know together of its rails.
//
// A channel that has sent next to nothing to its peer knows nothing of its lanes; what others have proved of the NICs
// that they leave by is better than a guess. Plain data; one owner thread. Allocates with the first mention of a rail.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

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

  // Over all lanes of the rail.
  void add_acked(int rail, std::uint64_t bytes) { entry(rail).carried.acked.count += static_cast<std::int64_t>(bytes); }
  void add_received(int rail, std::uint64_t bytes) {
    entry(rail).carried.received.count += static_cast<std::int64_t>(bytes);
  }

  PathEstimator::NicBytes carried(int rail) const {
    return known(rail) ? rails_[static_cast<std::size_t>(rail)].carried : PathEstimator::NicBytes{};
  }
  BytesPerSec rate(int rail) const { return known(rail) ? rails_[static_cast<std::size_t>(rail)].rate : BytesPerSec{}; }
  std::int64_t probes(int rail) const { return known(rail) ? rails_[static_cast<std::size_t>(rail)].probes : 0; }
  bool any() const { return any_; }

 private:
  struct Entry {
    BytesPerSec rate;
    std::int64_t probes = 0;
    PathEstimator::NicBytes carried;
  };
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
