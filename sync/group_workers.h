// sync/group_workers.h -- the worker's side of averaging in groups: Ripples (asked for or static), AD-PSGD, D-PSGD.
//
// AD-PSGD: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML 2018); D-PSGD: Lian et
// al., "Can Decentralized Algorithms Outperform Centralized Algorithms?" (NIPS 2017).
#pragma once

#include "sync/policy.h"
#include "sync/static_groups.h"

namespace canarynet::sync {

// Trains a section of iterations, asks the group generator, averages. Members of a random group hear of it while they
// train, and take part when their section ends; a passive worker of AD-PSGD at once, beside its iteration: the gradient
// taken at x is then applied to the average.
class GroupWorker final : public WorkerPolicy {
 public:
  GroupWorker(int worker, int section, bool passive) : worker_(worker), section_(section), passive_(passive) {}

  Task next(Nanos now) override;
  void trained(Nanos now, Nanos took) override;
  void exchanged(Nanos now) override;
  Reaction answered(Nanos now, const Answer& answer) override;

 private:
  int worker_;
  int section_;
  bool passive_;
  int trained_ = 0;     // iterations of this section
  bool ask_ = false;    // the section has ended, and the question is not asked yet
  bool open_ = false;   // asked, not answered
  bool done_ = false;   // a group ended here, and the generator does not know yet
  bool group_ = false;  // told of `answer_`; the lock vector allows one at a time
  Answer answer_;
};

// Knows its group of every iteration by itself.
class StaticGroupWorker final : public WorkerPolicy {
 public:
  StaticGroupWorker(int worker, int hosts, int workers_per_host, int section, bool rotating)
      : worker_(worker),
        section_(section),
        groups_(hosts, workers_per_host, rotating),
        members_(hosts * workers_per_host) {}

  Task next(Nanos now) override;
  void trained(Nanos now, Nanos took) override;
  void exchanged(Nanos now) override;

 private:
  int worker_;
  int section_;
  StaticGroups groups_;
  WorkerSet members_;
  Iteration iterations_ = 0;
  bool averages_ = false;
};

// Averages with its neighbours on a ring in every iteration. All have two of them (or one, of two workers), so equal
// weights make the matrix doubly stochastic. Where a death has cut the ring they no longer do: then the weight of two
// neighbours is 1 / (1 + the larger number of neighbours), and the rest stays with oneself (Metropolis weights).
class NeighbourWorker final : public WorkerPolicy {
 public:
  NeighbourWorker(int worker, int workers);

  Task next(Nanos now) override;
  void trained(Nanos, Nanos) override { averages_ = true; }
  void exchanged(Nanos) override {
    averages_ = false;
    ++iterations_;
  }

 private:
  WorkerSet members_;
  Iteration iterations_ = 0;
  bool averages_ = false;
};

}  // namespace canarynet::sync
