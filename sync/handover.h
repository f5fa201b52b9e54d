// sync/handover.h -- who hands the newest state to workers that have an older one (behind), for coordinators whose
// workers share a state: ESync and DiLoCo.
//
// One owner thread; nothing allocates after construction.
#pragma once

#include "sync/meetings.h"
#include "sync/worker_set.h"

namespace canarynet::sync {

class Handover {
 public:
  // The source and those that it serves can exchange as far as `meetings` allow that.
  Handover(int workers, Meetings meetings);

  // The source: one of `here` that is not behind. Those behind to whom no way leads from it but through others are
  // left_out(): as few as possible, and so that the others can exchange without them. -1: there is nobody, and nobody
  // is left out.
  int choose(const WorkerSet& here, const WorkerSet& behind);
  const WorkerSet& left_out() const { return left_out_; }

 private:
  Meetings meetings_;
  WorkerSet left_out_;
  WorkerSet served_, rest_;  // scratch
};

}  // namespace canarynet::sync
