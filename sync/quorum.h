// sync/quorum.h -- when a synchronous round goes on without its stragglers, with a deadline learnt from their history:
// of a coordinator that all report to (Quorum), and the history alone, for workers that report to one another.
//
// Waiting for the first few of n workers is known from backup workers (Chen et al., "Revisiting Distributed Synchronous
// SGD", 2016), with a number to choose by hand and every round cut off. Here a round is closed early only if it is
// unusual: per worker the median is kept of how long after a round's first arrival it comes (also of late ones), and a
// round that has its quorum waits until half as long again as the time after which the quorum usually is there. So
// whoever usually comes with the others may jitter, and whoever never does holds up nobody. Without history everybody
// is waited for.
//
// One owner thread; nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "sync/running_median.h"
#include "sync/worker_set.h"

namespace canarynet::sync {

// So many of the living are `percent` of them.
constexpr int quorum_of(int living, int percent) { return (living * percent + 99) / 100; }

// How long after the first one each worker usually comes.
class ArrivalHistory {
 public:
  // What a worker usually takes is what `usual_percent` of its last arrivals were not above.
  ArrivalHistory(int workers, int usual_percent);

  void note(int w, Nanos late) { late_[static_cast<std::size_t>(w)].add(late); }
  // How long after a first arrival the others are waited for where `percent` of the members are enough: half as long
  // again as until that many usually are there. Nanos::max(): of some member too little is known.
  Nanos patience(const WorkerSet& members, int percent) const;

 private:
  int usual_percent_;
  std::vector<RunningMedian> late_;    // per worker
  mutable std::vector<Nanos> sorted_;  // scratch
};

class Quorum {
 public:
  // `percent` of the living workers are a quorum, rounded up; 100 waits for all, always.
  Quorum(int workers, int percent);

  std::int64_t round() const { return round_; }
  // Worker w is here for `round`. False: too late, that round is closed.
  bool arrive(Nanos now, int w, std::int64_t round);
  // A worker that came too late is here for this round instead. The round is open from the first of the others on.
  void join(int w);
  void died(int w);
  // It is not here after all, and comes to the next round.
  void leave(int w);
  // Whether the round is to be closed, and when it will be if nobody comes.
  bool complete(Nanos now) const;
  Nanos next_deadline() const;
  // Ends the round; who was here stays readable until the next but one is closed.
  const WorkerSet& close();
  // Goes on behind a round that another coordinator has closed with these members; later than all that are known here.
  const WorkerSet& closed(std::int64_t round, const std::vector<std::uint32_t>& members);

  const WorkerSet& here() const { return here_; }
  const WorkerSet& members() const { return members_; }

 private:
  int percent_;
  ArrivalHistory history_;
  std::int64_t round_ = 0;
  Nanos opened_;       // first arrival of this round
  Nanos last_opened_;  // of the round before, for those who come late
  WorkerSet members_;
  WorkerSet here_;
  WorkerSet joined_;     // of those
  WorkerSet closed_[2];  // of the last two rounds
};

}  // namespace canarynet::sync
