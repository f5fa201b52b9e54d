// sync/meetings.h -- which workers meet over a NIC or in memory, and so which sets of them can exchange.
//
// A set of workers can exchange where each has a way to each other one through the set alone: members pass on what two
// that don't meet have for each other (collectives/plan_mesh_relay.cc). On BCube wiring two workers of a diagonal don't
// meet, and are no group by themselves.
//
// Symmetric. One owner thread; nothing allocates after construction.
#pragma once

#include <vector>

#include "sync/worker_set.h"

namespace canarynet::sync {

class Meetings {
 public:
  // Of any number of workers, all of whom meet.
  Meetings() = default;
  // Nobody meets anybody before add() says so.
  explicit Meetings(int workers) : with_(static_cast<std::size_t>(workers), WorkerSet(workers)), scratch_(workers) {}

  void add(int a, int b) {
    with_[static_cast<std::size_t>(a)].add(b);
    with_[static_cast<std::size_t>(b)].add(a);
  }
  bool everybody() const { return with_.empty(); }
  // Whether the worker meets one of the set.
  bool meets(int worker, const WorkerSet& set) const {
    return everybody() ? !set.empty() : with_[static_cast<std::size_t>(worker)].meets(set);
  }
  // *reached: those of the set to which a way leads from `worker`, one of them, through the set.
  void reach(int worker, const WorkerSet& set, WorkerSet* reached) const;
  // Whether the set can exchange. One that is empty or has one worker can.
  bool connected(const WorkerSet& set) const;

 private:
  std::vector<WorkerSet> with_;  // per worker; empty: all meet
  mutable WorkerSet scratch_;
};

}  // namespace canarynet::sync
