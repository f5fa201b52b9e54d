// sync/esync.h -- ESync: a fast worker trains on locally until the slowest one is about to finish its iteration.
//
// Source: Li, Zhou, Yu, "ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in Heterogeneous
// Clusters". The rule here is not the letter of its algorithm 2. The state server looks at E, the latest predicted
// finish among the *other* workers that are *not yet ready*; no decision makes E later, so with exact speeds nobody
// waits for longer than one iteration of its own, and else for less than that plus what the last one to be ready ran
// over its prediction. Taking the slowest by its time per iteration breaks that bound in 4 % of the waits, taking the
// latest finish of all workers in 28 %.
#pragma once

#include <optional>
#include <vector>

#include "base/units.h"
#include "sync/handover.h"
#include "sync/meetings.h"
#include "sync/policy.h"

namespace canarynet::sync {

// Decides per question whether a worker trains on or aggregates. Times are the server's: a question's iteration ended
// when the question was asked, which is half a round trip before it came (or, where that is not known, when it came).
// What workers aggregate are deltas from parameters that they share (local_updates.h). An exchange that fails for some
// leaves those behind, as their questions say: all who live have asked before the first one is told of the next round,
// which names them, and one that gives them the newest parameters.
class StateServer final : public Coordinator {
 public:
  // ε: a worker that would finish this little before the slowest aggregates all the same. The source of a round can
  // exchange with as many of those who are behind as `meetings` allow.
  explicit StateServer(int workers, bool silent_unless_ready = false, Nanos epsilon = 1_ns, Meetings meetings = {});

  // True: ready. Worker r ended its k-th local iteration of this round at t_e, and needs c for another one.
  bool query(Nanos now, int r, std::int64_t round, Iteration k, Nanos c, Nanos finished);
  // Worker r has the parameters of `round` since t_e.
  void reset(int r, std::int64_t round, Nanos finished);
  void died(int r);

  // In non-blocking mode "not ready" is assumed, and not said.
  void asked(Nanos now, const Question& question, Answers* answers) override;
  void died(Nanos, int worker, Answers*) override { died(worker); }
  bool counted(int worker) const override;
  void recall(Nanos now, const Recollection& r) override;
  void recalled(Nanos now, Answers* answers) override;

 private:
  void decide(std::int64_t round);

  struct Record {
    std::int64_t round = -1;  // -1: not heard of yet
    Nanos capability;
    Nanos finished;
    bool ready = false;
    std::int64_t applied = -1;     // the last round whose result it has,
    std::int64_t doubted = -1;     // and a later one that failed for it
    std::optional<Question> open;  // recalled
  };
  std::vector<Record> records_;
  bool silent_unless_ready_;
  Nanos epsilon_;
  std::int64_t decided_ = -1;           // the round that some were told to aggregate, with
  std::optional<std::int64_t> newest_;  // the last one that somebody had the result of then; none: not known here
  int source_ = -1;
  WorkerSet behind_;
  Handover handover_;
  WorkerSet alive_;
};

// The worker's side. Blocking: it waits for every answer. Non-blocking (delayed ACK): it trains on meanwhile; on a
// "ready" it gives up the running iteration k + δ and aggregates the iterations 1 to k + δ - 1.
class EsyncWorker final : public WorkerPolicy {
 public:
  // `first_capability`: time of a first, uncounted iteration.
  EsyncWorker(int worker, bool blocking, Nanos first_capability);

  Task next(Nanos now) override;
  void trained(Nanos now, Nanos took) override;
  void exchanged(Nanos) override { end(true); }
  void exchange_failed(Nanos) override { end(false); }
  Reaction answered(Nanos now, const Answer& answer) override;

  Iteration local_iterations() const { return iterations_; }
  std::int64_t round() const { return round_; }

 private:
  enum class State { kPulled, kTraining, kIterated, kAsked, kReady };
  Question question(Question::Kind kind, Nanos capability) const;
  void end(bool well);
  int worker_;
  bool blocking_;
  State state_ = State::kPulled;
  std::int64_t round_ = 0;
  Iteration iterations_ = 0;
  Nanos took_;
  Nanos round_trip_;
  Nanos asked_at_;
  Answer answer_;  // of kReady
  std::int64_t applied_ = -1, doubted_ = -1;
};

}  // namespace canarynet::sync
