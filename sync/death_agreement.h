// sync/death_agreement.h -- a worker's part in the agreement after a death: which round of each colayer is the last one
// that counts for the survivors of a session.
//
// What: rounds are ordinary all-reduces of all members, so a death may leave some survivors with a round that others
// lack, but never with two: nobody commits a round that somebody has not joined. Whoever learns of a death stops, and
// says to all others who is dead and how far it got. A report counts for those who know of the same deaths; whoever
// hears of more takes them over and reports anew. With the reports of all living workers on one set of dead the last
// round of a colayer is the newest that one of them has committed. The lowest of those that have it hands its result
// and its contributors to those that lack it. A worker that has every last round goes on, in an epoch that the number
// of the dead names.
// Why that is enough, and the states that a test has walked through:
// docs/decisions/0052-the-last-round-after-a-death.md.
// The caller passes reports and hand-outs between workers, in order and only between those that it does not know to be
// dead; SessionRounds (freeze, regroup, recover, resume) has the books of the rounds. Who is dead is the caller's word:
// it is final, and all survivors hear of it in the end.
// Thread: one owner. Foreign values are judged. Allocates with construction, copies of reports aside.
#pragma once

#include <cstdint>
#include <vector>

#include "sync/gei.h"
#include "sync/worker_set.h"

namespace canarynet::sync {

class DeathAgreement {
 public:
  // How far a worker that has stopped got.
  struct Standing {
    std::vector<std::uint32_t> next_rounds;  // per colayer
    Iteration iteration = 0;
  };
  struct Report {
    WorkerSet dead;  // of the session's workers, since it was opened
    Standing standing;
  };

  DeathAgreement(int worker, int workers, int colayers);

  // The worker learns of a death. False: it knows. True: it stops if it has not, and sends report() to all living
  // others. `own` is its standing once it has stopped.
  bool died(int worker, const Standing& own);
  enum class Heard {
    kIgnored,     // of fewer deaths than are known here, from a dead worker, or said again
    kNoted,       // ask decided()
    kSay,         // of deaths that were not known here: stop, send report() to all living others, ask decided()
    kExpelled,    // others go on without this worker
    kImpossible,  // no worker of this session says that; nothing has changed
  };
  Heard heard(int from, const Report& report, const Standing& own);
  Report report() const;

  // Whether the last rounds are known. What follows may be asked then.
  bool decided() const { return active_ && reported_.count() + dead_.count() == dead_.workers(); }
  // The round of z that the new epoch begins with.
  std::uint32_t next_round(int z) const;
  // The newest iteration of a living worker.
  Iteration newest() const;
  // Who hands out the last round of z: the lowest worker that has it; -1: all have it.
  int holder(int z) const;
  // To whom this worker hands its last round of z: nobody where another one does, or where all have it.
  WorkerSet lacking(int z) const;

  // Whether `round` of z that `from` hands out after these deaths is to be committed, where `own` is the worker's next
  // round of z. May come before decided().
  bool takes(int from, const WorkerSet& dead, int z, std::uint32_t round, std::uint32_t own) const;
  // This worker has all last rounds and goes on.
  void finish() { active_ = false; }

  bool active() const { return active_; }
  const WorkerSet& dead() const { return dead_; }
  std::uint32_t epoch() const { return 1 + static_cast<std::uint32_t>(dead_.count()); }

 private:
  void restart(const Standing& own);
  const Standing& standing(int worker) const { return standings_[static_cast<std::size_t>(worker)]; }
  std::size_t colayers() const { return standings_[static_cast<std::size_t>(worker_)].next_rounds.size(); }

  int worker_;
  bool active_ = false;
  WorkerSet dead_;
  WorkerSet reported_;               // who has reported on dead_
  std::vector<Standing> standings_;  // of reported_
};

}  // namespace canarynet::sync
