// sync/session_rounds.h -- one worker's decisions in a staleness-bounded exchange: what is joined to which round, when
// a round is opened, what is taken back from them, who is overtime.
//
// Source: Canary (TPDS 2021), made exact: workers are asynchronous, their engines are not. Per colayer there is a
// numbered sequence of rounds, each an ordinary all-reduce that every engine joins at once, with data or with null
// pieces, so the committed rounds form one log that is the same everywhere. One object covers Canary, BSP, SSP and ASP:
// they differ in their Thresholds.
//
// The caller owns all numbers: per colayer an accumulator `acc`, the joined input `in`, the result of the last round
// `last`, and a backlog of results. This object only says what happens to them, and keeps the books: which iterations
// each of them holds. After every call that may have made a round due, the caller runs
//     while ((z = rounds.due(now)) >= 0) start_round(z, rounds.join(now, z));
// and it calls due() again at next_deadline().
//
// Every engine has to hear of a round before it has anything to say itself. Where the schedule's first steps do not
// lead from everybody to everybody (a leaf of a tree gets nothing before it sends), the engine that opens a round sends
// the others a notice.
//
// Iterations are the worker's own and count from 1; rounds count from 1 per colayer. A worker's contract: it pushes
// every colayer once per iteration, then calls step(). A round's value is scaled by 1/n, not by the number of its
// contributors (noise 0.017 against 0.108 with one to three contributors per round).
//
// Mode wait with a quorum: a step goes on without whoever is late, once the quorum is there and a deadline has passed
// that all learn alike: each gradient says, in the last colayer's round, how long after the first one of its iteration
// it was pushed (quorum.h). Where rounds are joined with data only (s = 0), the library of a worker that is late by as
// much joins without. The late gradient goes with whatever round comes next, and its worker then with the newest
// iteration, so a slow worker makes fewer iterations than the others and none is lost. That some worker's every
// iteration is late holds up nobody; `absences` bounds how many steps in a row go on without the same one.
// docs/decisions/0070-steps-that-go-on-without-stragglers.md.
//
// One owner thread. Nothing allocates after construction, nothing throws; foreign values (what pieces say, what
// survivors report) are judged, and the caller's own mistakes have results of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "sync/contributors.h"
#include "sync/gei.h"
#include "sync/quorum.h"
#include "sync/running_median.h"

namespace canarynet::sync {

class SessionRounds {
 public:
  // Where a worker says up to which iteration none of its gradients is to come: it has finished.
  static constexpr Iteration kNoMore = std::numeric_limits<Iteration>::max();

  struct Options {
    int worker = 0;
    int workers = 1;
    int colayers = 1;
    Thresholds thresholds;
    Iteration staleness_max = 0;  // the bound may be raised up to here while running; at least the thresholds' own
    std::optional<Nanos> linger;  // how long an own gradient waits for another's round; none: a quarter of the median
                                  // iteration
    int backlog_max = 8;          // results of a colayer that are kept apart until step() takes them
    std::uint32_t epoch = 1;
  };
  static Status check(const Options& options);
  // Of options that check() accepts.
  explicit SessionRounds(const Options& options);

  // --- The worker ---

  // The first iteration begins; without it, at time 0. The median iteration, and so linger, counts from here.
  void begin(Nanos now) { entered_at_ = now; }

  enum class Push {
    kAdded,     // acc += gradient
    kReplaced,  // acc = gradient: what waited there is too old by now, and counted as dropped. What a codec has left in
                // acc, which has no tags, goes with it, as wherever an accumulator is cleared
    kDropped,   // the gradient is dropped: the worker is overtime, all accumulators are to be cleared, it has to pull
    kRepeated,  // not taken: this colayer was pushed in this iteration already
  };
  Push push(Nanos now, int z);

  enum class Step {
    kEntered,   // take the backlog, apply it, and begin iteration(): the next one, or the newest after others went on
    kBlocked,   // at the bound, mode wait: ask again after the next commit, and at step_deadline()
    kOvertime,  // pull, then adopt(); all accumulators are to be cleared
    kUnpushed,  // not before every colayer has been pushed
  };
  Step step(Nanos now);
  // When a step that is blocked may go on without those who are late, if nothing else happens; Nanos::max() if never.
  Nanos step_deadline() const { return blocked_ && !frozen_ ? waits_until_ : Nanos::max(); }

  // This worker pushes no more, and from now on joins every round without data. Others in mode wait may run on to the
  // last iteration that it did not drop; beyond that it has to leave the session, as if it had died. With a quorum it
  // has left out iterations that they may wait for, and opens a last round of each colayer to say that none will come.
  void finish() { finished_ = true; }
  // The end of colayer z has been told where it has to be.
  bool settled(int z) const { return !finished_ || !has_quorum() || merged(options_.worker, z) == kNoMore; }

  // A result that step() hands out, or the sum of several neighbouring ones.
  struct Backlog {
    std::uint32_t first_round = 0;
    std::uint32_t last_round = 0;
    Iteration gradients = 0;  // summed in it
    Iteration oldest = 0;     // iteration among them; 0 of null rounds
  };
  std::span<const Backlog> backlog(int z) const { return colayer(z).backlog; }
  void clear_backlog(int z) { colayer(z).backlog.clear(); }
  // The first round that is not yet in the parameters of a worker which has applied all that it took: what a published
  // snapshot carries per colayer.
  std::uint32_t applied_before(int z) const;

  // A pull ends: the parameters are those of a worker in iteration t that had applied all rounds before rounds[z]. What
  // the backlog holds of them is discarded, so nothing counts twice; all accumulators are to be cleared. False, and
  // nothing changes, where the snapshot is of no use: still behind the bound, from the middle of a sum in the backlog,
  // or from beyond any round that can have been committed. A newer one is needed then.
  bool adopt(Nanos now, Iteration t, std::span<const std::uint32_t> rounds);

  // --- The engine's rounds ---

  enum class Piece {
    kTake,    // of the running round
    kHold,    // of the next round to be joined: keep it under credit; join() follows, or the running round's commit
    kIgnore,  // of another round or epoch
  };
  // A piece of colayer z came; what it says (sub_header.h) has been validated.
  Piece arrive(Nanos now, int z, std::uint32_t epoch, std::uint32_t round, Iteration newest, int source,
               Iteration source_iteration);

  // A notice came that a round of z was opened: as arrive(), but there is nothing to keep.
  void opened(Nanos now, int z, std::uint32_t epoch, std::uint32_t round, Iteration newest, int source,
              Iteration source_iteration) {
    arrive(now, z, epoch, round, newest, source, source_iteration);
  }

  // A colayer whose next round is to be joined now; -1 if there is none.
  int due(Nanos now) const;
  // When due() will say so without any further event; Nanos::max() if never.
  Nanos next_deadline() const;

  struct Input {
    std::uint32_t round = 0;
    IterationRange tags;       // empty: null pieces
    bool opens = false;        // nobody else's piece was here: the others may need a notice
    bool discard_acc = false;  // what waited is beyond the bound: acc is cleared, its gradients are counted as dropped
    Nanos late;                // the last colayer's newest gradient, after the first one of its iteration
    Iteration settled = 0;     // without tags: up to here no gradient of this worker is to come in z
  };
  // Joins the next round of z, which due() named: in = acc, acc = 0, for the whole colayer at once.
  Input join(Nanos now, int z);

  enum class Commit {
    kAppended,  // the value is a new entry of the backlog
    kMerged,    // the two oldest entries were made one (the caller adds them up), then the value was appended
    kSkipped,   // not for the worker: a pull already brought it
    kRefused,   // nothing changed: `set` has lost our gradient or invented one, so an engine errs and the epoch is over
  };
  // All segments of z's running round are here and all carry `set`. last = value, in is forgotten.
  Commit commit(Nanos now, int z, const Contributors& set);
  // What the round said of worker j besides, before its commit(): the iteration that it was in when it joined, and of a
  // gradient in the last colayer how late it was.
  void hear(int j, Iteration iteration);
  void hear_late(int j, Nanos late) { history_.note(j, late); }
  // And of one that joined without data, up to which iteration nothing of it is to come.
  void hear_settled(int j, int z, Iteration settled);

  // --- Deaths ---

  // A member died: round traffic stops. The survivors now compare next_round() of every colayer, and iteration().
  void freeze() { frozen_ = true; }
  // Who is left, and the largest iteration() among them, which is ζ now: nobody can pull from a dead worker.
  void regroup(const WorkerSet& members, Iteration newest);
  enum class Recovery {
    kNothing,
    kFetchLast,     // another survivor has committed our running round: commit() its value and set, which it hands out
    kReturnInput,   // acc += in: the round is redone
    kDropInput,     // in is beyond the bound, or what followed it was dropped: forgotten and counted
    kInconsistent,  // no survivor can have got there
  };
  // After regroup(); `newest` is the largest next_round() of colayer z among the survivors.
  Recovery recover(Nanos now, int z, std::uint32_t newest);
  // After recover() of every colayer and the commits it asked for. A blocked step() may be asked again. True if the
  // worker was overtime and is no longer, since those ahead of it are dead: it gives up its pull and calls step().
  bool resume(std::uint32_t epoch);

  // --- Anybody ---

  // InvalidArgument if the bound needs more rows than the session was opened with; nothing changes then.
  Status set_thresholds(const Thresholds& thresholds);
  const Thresholds& thresholds() const { return thresholds_; }
  void set_linger(std::optional<Nanos> linger) { options_.linger = linger; }
  // Mode wait: a worker whose gradient step() waits for; -1: it waits for nobody.
  int awaited() const;
  // What a round's aggregators need to know of ζ, besides arrive().
  void observe(Iteration newest);

  int worker() const { return options_.worker; }
  const WorkerSet& members() const { return members_; }
  std::uint32_t epoch() const { return epoch_; }
  Iteration iteration() const { return iteration_; }
  Iteration newest() const { return index_.newest(); }
  const Gei& index() const { return index_; }
  bool overtime() const { return overtime_; }
  bool joined(int z) const { return colayer(z).joined; }
  std::uint32_t next_round(int z) const { return colayer(z).round; }
  const Contributors& last(int z) const { return colayer(z).last; }
  IterationRange waiting(int z) const { return colayer(z).acc; }
  Nanos linger() const;
  // t_j as last heard of worker j; 0 before that. To choose whom to pull from.
  Iteration last_seen(int j) const { return seen_[static_cast<std::size_t>(j)]; }
  // The last iteration of which a gradient of worker j is in a committed round of any colayer; 0: none.
  Iteration last_merged(int j) const;

  std::uint64_t dropped() const { return dropped_; }    // gradients, one per iteration and colayer
  std::uint64_t ignored() const { return ignored_; }    // pieces
  std::uint64_t went_on() const { return went_on_; }    // steps, without somebody
  std::uint64_t was_late() const { return was_late_; }  // steps of this worker, after others had gone on without it

 private:
  struct Colayer {
    std::uint32_t round = 1;
    bool joined = false;
    bool wanted = false;  // a piece of `round` is here, which is not joined
    bool boxed = false;   // pieces of round + 1 are here
    bool pushed = false;  // in this iteration
    // Since when `round` was open with a gradient of an iteration that this worker owes one of; Nanos::max(): it is not
    // known to be. And who opened the round after it, and when.
    Nanos awaited_since = Nanos::max();
    int boxed_by = -1;
    Nanos boxed_at;
    IterationRange acc;
    Nanos acc_since;
    IterationRange in;
    Contributors last;
    std::vector<Backlog> backlog;
    std::uint32_t apply_from = 1;  // earlier rounds came with a pull
  };
  Colayer& colayer(int z) { return colayers_[static_cast<std::size_t>(z)]; }
  const Colayer& colayer(int z) const { return colayers_[static_cast<std::size_t>(z)]; }
  bool beyond_bound(Iteration t) const;
  bool waits() const { return thresholds_.at_bound == AtBound::kWait; }
  bool only_with_data() const { return waits() && thresholds_.staleness == 0; }
  bool has_quorum() const { return waits() && thresholds_.quorum < 100; }
  // The last iteration of worker j whose gradient of colayer z is in a committed round, or will be in none.
  Iteration& merged(int j, int z) { return merged_[static_cast<std::size_t>(j * options_.colayers + z)]; }
  Iteration merged(int j, int z) const { return merged_[static_cast<std::size_t>(j * options_.colayers + z)]; }
  // Mode wait: the member whose gradient of z step() waits for; -1: nobody's.
  int awaited(int z) const;
  bool missing(int z) const { return awaited(z) >= 0; }
  // Iterations of worker j that are in committed rounds with all their colayers, or will be in none.
  Iteration complete(int j) const { return complete_[static_cast<std::size_t>(j)]; }
  // The iteration that the furthest worker is in, or about to enter.
  Iteration ahead() const { return std::max(index_.newest(), furthest_ + 1); }
  // Others have gone on without this worker.
  bool left_behind() const { return has_quorum() && ahead() > iteration_ + thresholds_.staleness + 1; }
  bool may_enter(Nanos now);
  bool note_complete(int j);  // whether it has changed
  // A gradient of iteration t of the last colayer exists. The ring keeps when that was first known of each iteration.
  void note_first(Iteration t, Nanos now);
  Nanos first_of(Iteration t) const;
  void note_opening(Nanos now, int z, int source);
  // When the next round of z is joined without this worker's gradient.
  Nanos cut_at(const Colayer& c) const;
  void drop(IterationRange* range);
  void go_overtime();
  void enter(Nanos now, Iteration t);

  Options options_;
  Thresholds thresholds_;
  std::uint32_t epoch_;
  WorkerSet members_;
  Gei index_;
  std::vector<Colayer> colayers_;
  std::vector<Iteration> merged_;
  std::vector<Iteration> seen_;
  std::vector<Iteration> complete_;
  std::vector<int> absences_;  // steps in a row that went on without each worker
  Iteration furthest_ = 0;     // the largest complete() of a member
  ArrivalHistory history_;
  std::vector<Nanos> first_;
  Iteration newest_first_ = 0;  // the newest iteration in the ring
  Nanos late_;                  // the newest own gradient of the last colayer
  Nanos waits_until_ = Nanos::max();
  Iteration iteration_ = 0;
  Nanos entered_at_;
  bool measured_ = false;  // this iteration's duration is noted
  bool blocked_ = false;
  bool awaits_itself_ = false;  // blocked until its own gradients have come back
  bool overtime_ = false;
  bool frozen_ = false;
  bool finished_ = false;
  RunningMedian iteration_time_;
  std::uint64_t dropped_ = 0;
  std::uint64_t ignored_ = 0;
  std::uint64_t went_on_ = 0;
  std::uint64_t was_late_ = 0;
};

}  // namespace canarynet::sync
