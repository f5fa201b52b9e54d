// sync/local_steps.h -- DiLoCo: many local steps, then one exchange of what they changed, applied by an outer step.
//
// Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105):
// about 500 inner steps, outer Nesterov momentum 0.9 with learning rate 0.7. Liu et al., "Asynchronous Local-SGD
// Training for Language Modeling" (arXiv:2401.09135): every worker does as many steps as its speed allows, so that all
// arrive together. Douillard et al., "Streaming DiLoCo with overlapping communication" (arXiv:2501.18512): the
// parameters are cut into fragments that are exchanged in turn, so each exchange is a fraction of the whole, and runs
// beside the next iterations.
// Round r exchanges fragment r modulo their number. A worker that comes too late for a round keeps what it has trained
// and takes part in a later one, where a worker that has the newest parameters hands them to it. What goes into an
// exchange, and what follows from it, is sync/local_updates.h.
#pragma once

#include <optional>
#include <vector>

#include "sync/handover.h"
#include "sync/meetings.h"
#include "sync/policy.h"
#include "sync/quorum.h"
#include "sync/running_median.h"

namespace canarynet::sync {

struct LocalSteps {
  int steps = 50;            // h, of the fastest worker
  int fragments = 1;         // streaming: every h / fragments steps one of them is exchanged
  int quorum_percent = 100;  // of the workers; see quorum.h
  int overlap = 0;           // iterations that may be made while an answer is waited for, and beside an exchange
  double outer_rate = 0.7;
  double outer_momentum = 0.9;
  std::optional<double> mix = {};  // see local_updates.h
};

// Closes rounds, and tells each worker how many steps the next one takes: h for the fastest, fewer for the others in
// proportion to their speed, at least one. Per worker and fragment it knows the last round that the worker has applied.
// Those that have applied less than another living one are behind. A round is closed with somebody who is not: after a
// round that failed for some, those for whom it may have succeeded are waited for. Nobody is late twice in a row: a
// worker that is late again is waited for.
class LocalStepsCoordinator final : public Coordinator {
 public:
  // A round's members, and a source with those that it serves, can exchange as far as `meetings` allow that.
  LocalStepsCoordinator(const LocalSteps& options, int workers, Meetings meetings = {});

  void asked(Nanos now, const Question& question, Answers* answers) override;
  void died(Nanos now, int worker, Answers* answers) override;
  Nanos next_deadline() const override { return !stuck_ && expected_.empty() ? quorum_.next_deadline() : Nanos::max(); }
  void expire(Nanos now, Answers* answers) override { settle(now, answers); }
  void recall(Nanos now, const Recollection& r) override;
  void recalled(Nanos now, Answers* answers) override;

 private:
  // What a worker has of a fragment. Until it says so itself, a round that it was told to aggregate counts as applied.
  struct Standing {
    std::int64_t applied = -1;
    std::int64_t doubted = -1;
    bool voided = false;  // the doubted round counts nowhere
  };
  Standing& standing(int worker, std::int64_t round);
  const Standing& standing(int worker, std::int64_t round) const {
    return const_cast<LocalStepsCoordinator*>(this)->standing(worker, round);
  }
  std::int64_t newest(std::int64_t round) const;
  int steps_of(int worker) const;
  void note(const Question& question);
  void come_late(Nanos now, const Question& question, Answers* answers);
  void settle(Nanos now, Answers* answers);

  LocalSteps options_;
  Quorum quorum_;
  std::vector<Nanos> capability_;    // time of a step, per worker; 0: not known
  std::vector<Standing> standings_;  // by worker and fragment
  WorkerSet was_late_;               // and has not come to a round since
  WorkerSet expected_;               // was late again, and comes at once
  WorkerSet behind_[2];              // of the last two rounds
  Handover handover_;
  bool stuck_ = false;    // those who are here can't go on without another one
  Nanos closed_;          // the round before this one
  RunningMedian period_;  // between two rounds
  // Recalled: questions that are not answered, and the last round that a worker was told of.
  std::vector<Question> open_;
  const WorkerSet* told_ = nullptr;  // its members
  std::int64_t told_round_ = -1;
  int source_ = -1;
};

class LocalStepsWorker final : public WorkerPolicy {
 public:
  LocalStepsWorker(const LocalSteps& options, int worker);

  Task next(Nanos now) override;
  void trained(Nanos now, Nanos took) override;
  void exchanged(Nanos) override { end(true); }
  void exchange_failed(Nanos) override { end(false); }
  Reaction answered(Nanos now, const Answer& answer) override;

 private:
  enum class State {
    kTraining,
    kAsked,       // it is here for round_
    kReady,       // told to aggregate
    kExchanging,  // beside its iterations
  };
  std::size_t fragment_of(std::int64_t round) const { return static_cast<std::size_t>(round % options_.fragments); }
  Task exchange() const;
  void begin();
  void end(bool well);

  LocalSteps options_;
  int worker_;
  State state_ = State::kTraining;
  std::int64_t round_ = 0;
  Iteration done_ = 0;  // of this round's steps
  Iteration planned_;
  Iteration beside_ = 0;  // iterations since it asked, or since the exchange began
  Nanos spent_;           // on this round's steps
  Answer answer_;
  std::vector<std::int64_t> applied_, doubted_;  // by fragment, as questions tell them
};

}  // namespace canarynet::sync
