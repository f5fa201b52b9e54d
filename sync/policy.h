// sync/policy.h -- the shape of a policy: who decides what about a job's exchanges, and in which words it says so.
//
// A policy has up to two parts. Each worker has a WorkerPolicy, which sees only what this worker sees. Some policies
// also have one Coordinator for the whole job, at the supervisor, which sees only what workers tell it. Neither knows
// how its words travel: a trainer in virtual time hands questions and answers over after a delay, the supervisor sends
// them over control, and both run the same objects. Sessions have a third part, the rounds (session_rounds.h), which
// the engine runs (docs/decisions/0042-the-shape-of-a-policy.md).
//
// The loop of every worker, under every policy:
//
//     for (;;) switch (task = policy.next(now); task.kind) {
//       kTrain:    run an iteration; policy.trained(now, took)
//       kAsk:      send task.question to the coordinator; go on
//       kExchange: run task.exchange;  policy.exchanged(now)
//                  with exchange.beside: begin it, and go on; when it has ended, policy.exchanged(now)
//       kWait:     until an answer comes: policy.answered(now, answer), or an exchange that runs beside has ended
//     }
//
// All times are the deciding object's own: an answer carries none, and a question's durations are durations. One owner
// thread per object; after construction nothing allocates but `answers` beyond its capacity. Results have one order,
// which depends on the calls alone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "sync/contributors.h"
#include "sync/worker_set.h"

namespace canarynet::sync {

// What a worker gives to others and gets from them.
struct Exchange {
  enum class Kind {
    kNone,
    kSession,     // push every colayer of the gradient into the session's rounds, then step(), or pull
    kAllReduce,   // mean of `what` over `members`, one round after another
    kGroup,       // mean of the parameters over `members`, all of them at once; no other exchange of theirs meanwhile
    kNeighbours,  // parameters: x = sum over `members` of weight * x, each worker over its own neighbours
    kServer,      // push the gradient to the servers, pull the parameters; `waits` says for whom
    kPartition,   // send one partition of the accumulated gradient to every peer, add what has come meanwhile
  };
  // kDelta: what local training has changed, and no exchange before had (sync/local_updates.h).
  enum class What { kGradient, kDelta };

  Kind kind = Kind::kNone;
  What what = What::kGradient;
  std::int64_t number = 0;  // of this exchange: equal at all who take part in the same one
  // The policy's or coordinator's, valid until this exchange is reported as done. nullptr: everybody. Whoever runs the
  // exchange leaves out the dead, since its epochs say of all members alike who they are.
  const WorkerSet* members = nullptr;
  bool waits = true;  // kServer: the pull waits until the push of every worker is in
  int partition = 0;  // this one of `partitions` of the gradient or the parameters
  int partitions = 1;
  bool beside = false;   // it runs beside the next iterations: next() says it once, and then what to do meanwhile
  bool counted = false;  // kDelta: the last exchange of this partition failed here, but others had this worker's part
  // kDelta: after the mean this worker gives what the outer step made to the members in `behind`, whose own state is
  // an older one; -1: nobody is behind. The set is valid as long as `members`.
  int source = -1;
  const WorkerSet* behind = nullptr;
};

// From a worker to the coordinator.
struct Question {
  enum class Kind {
    kIterated,  // ESync: an iteration ended; train on, or aggregate?
    kPulled,    // ESync: the new parameters are here
    kGroup,     // Ripples: with whom?
    kDone,      // Ripples: the group `number` is done here
    kArrived,   // quorum: here for round `number`
  };
  Kind kind = Kind::kIterated;
  int worker = 0;
  std::int64_t number = 0;   // round or group
  Iteration iterations = 0;  // k: local iterations in this round
  Nanos capability;          // c: time of an iteration, with the question's round trip
  // Of the rounds that exchange the same partition: the last one whose result this worker has, and a later one that
  // failed here and may have succeeded elsewhere; -1: there is none.
  std::int64_t applied = -1;
  std::int64_t doubted = -1;
  bool unsure = false;  // an exchange has failed here, of whatever partition, and no later one has made up for it
};

// From the coordinator to a worker.
struct Answer {
  enum class Kind : std::uint8_t {
    kTrain,      // go on by yourself
    kAggregate,  // the round `number` is to be reduced now, over `members`
    kGroup,      // average with `members`, as group `number`
    kAlone,      // nobody is free: go on without an exchange
    kLate,       // your round went on without you: keep what you have, train `steps` more, and come to round `number`
  };
  Kind kind = Kind::kTrain;
  int worker = 0;
  std::int64_t number = 0;
  const WorkerSet* members = nullptr;  // the coordinator's; valid until all members have said kDone, or the next round
  bool requested = true;               // kGroup: it answers this worker's own question
  int steps = 1;                       // kAggregate, kLate: iterations before the next exchange
  // kAggregate; see Exchange. The set is valid as long as `members`.
  int source = -1;
  const WorkerSet* behind = nullptr;
  bool counted = false;
};
using Answers = std::vector<Answer>;

struct Task {
  enum class Kind { kTrain, kAsk, kExchange, kWait };
  Kind kind = Kind::kTrain;
  Question question;
  Exchange exchange;
};

class WorkerPolicy {
 public:
  virtual ~WorkerPolicy() = default;
  // What to do now. kAsk goes with its question: the next call says what comes after it.
  virtual Task next(Nanos now) = 0;
  virtual void trained(Nanos now, Nanos took) = 0;
  // The exchange that next() asked for has ended; and the same where it failed here, and changed nothing.
  virtual void exchanged(Nanos now) = 0;
  virtual void exchange_failed(Nanos now) { exchanged(now); }
  enum class Reaction {
    kNone,       // go on with what is running; if nothing is, ask next()
    kInterrupt,  // give up the running iteration, without trained(), and ask next()
    kBeside,     // next() has an exchange that runs beside the iteration
  };
  virtual Reaction answered(Nanos, const Answer&) { return Reaction::kNone; }
};

// What a worker told a coordinator and heard from it, for the one that takes its place.
struct Recollection {
  struct Told {
    Answer::Kind kind = Answer::Kind::kTrain;  // kAggregate or kGroup
    std::int64_t number = 0;
    std::vector<std::uint32_t> members;      // workers, ascending
    bool done = false;                       // the worker has said so, or would have
    int source = -1;                         // as in the answer
    std::vector<std::uint32_t> behind = {};  // likewise
  };
  int worker = 0;
  const Question* question = nullptr;  // its last one; nullptr: it has asked nothing
  Nanos ago;                           // when it was asked
  bool open = false;                   // no answer has come
  bool leaves = false;                 // it asks no more: it ends what it was told of, and died() follows
  const Told* told = nullptr;          // the last exchange that it was told of; nullptr: none
};

class Coordinator {
 public:
  virtual ~Coordinator() = default;
  // `answers` is appended to.
  virtual void asked(Nanos now, const Question& question, Answers* answers) = 0;
  virtual void died(Nanos now, int worker, Answers* answers) = 0;
  // When it wants to be asked without any event: expire(). Nanos::max() if never.
  virtual Nanos next_deadline() const { return Nanos::max(); }
  virtual void expire(Nanos, Answers*) {}
  // Answer::counted of the last exchange that was decided on, for a worker that leaves and was not told of it.
  virtual bool counted(int) const { return false; }
  // Takes over from another coordinator, whose state went with it: one call for each worker that is known, and then
  // recalled(), which answers what is open. Workers of whom one hears later come the same way, again with recalled().
  virtual void recall(Nanos, const Recollection&) {}
  virtual void recalled(Nanos, Answers*) {}
};

}  // namespace canarynet::sync
