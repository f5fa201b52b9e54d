// engine/session.h -- a worker's part in a session: the numbers whose books SessionRounds keeps.
//
// What: per colayer an accumulator of own gradients, the input of the running round, and results that the worker has
// not taken. A round is an all-reduce of a group that the colayer has for itself; behind its values stand four numbers
// per worker (first and last iteration that it contributed, the one that it is in, and how many microseconds late its
// gradient was), of which only its own are not zero. So the sum says who contributed what. One that contributes nothing
// says 0 and up to which iteration nothing of it is to come. Design: docs/decisions/0053-sessions-of-dense-rounds.md.
// Where a colayer has a codec, a round is two all-reduces: its values travel encoded, and the numbers, which must be
// exact, by themselves. What the codec leaves out stays here, untagged, and goes with the worker's next gradient:
// docs/decisions/0054-rounds-with-codecs.md.
// Where the session goes on after deaths, a round leaves its input as it is, so that it can be redone, and the last
// result stays where it is until the next one is there, so that it can be handed out:
// docs/decisions/0052-the-last-round-after-a-death.md.
// The engine (session_operations.cc, session_deaths.cc) enters the rounds; nothing here does I/O or knows a group's
// inside.
// Memory: (2 + backlog) times the colayers, those with a codec once more; where it goes on after deaths, all once more
// and those with a codec twice. Allocated by allocate(); nothing afterwards but a death's few words.
// Thread: the engine's owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "port/command.h"
#include "port/ticket.h"
#include "sync/death_agreement.h"
#include "sync/session_rounds.h"

namespace canarynet {

struct GroupMember;

// What callers may read of a session.
struct SessionView {
  sync::Iteration iteration = 0, newest = 0, oldest_row = 0;
  int proportion = 0;  // of the worker's own iteration
  int workers = 0, colayers = 0;
  int living = 0;  // workers
  std::uint64_t dropped = 0;
  std::uint64_t rounds = 0;     // committed, of all colayers
  std::uint64_t bytes = 0;      // of all buffers
  sync::Iteration stalest = 0;  // the most that an own gradient was behind the newest iteration when it was joined
  Nanos linger;                 // how long a gradient waits for another's round
  std::uint64_t went_on = 0;    // steps, without somebody
  std::uint64_t was_late = 0;   // steps, after others had gone on without this worker
  bool overtime = false;
};

class Session {
 public:
  // Numbers behind a colayer's values, for each worker.
  static constexpr std::size_t kWords = 4;
  // Iterations travel as floats.
  static constexpr sync::Iteration kIterationMax = 1 << 24;

  enum class State : std::uint8_t { kOpening, kOpen, kFinishing, kFinished, kEnded };

  struct Colayer {
    static constexpr std::size_t kNone = ~std::size_t{0};
    GroupMember* member = nullptr;  // in the group of its rounds
    std::size_t count = 0;
    std::uint32_t codec = 0;      // its number; 0: none
    bool finite = false;          // the codec encodes no NaN and no infinity
    std::vector<float> acc, in;   // with room for the words
    std::vector<float> out;       // where a round's result comes; empty: into `in`
    std::vector<float> left_out;  // of what this worker has encoded; empty: there is no codec
    std::vector<float> left_now;  // by the running round; empty: to left_out itself
    bool took_left = false;       // the running round's input has left_out
    std::vector<std::vector<float>> backlog;
    std::size_t kept = 0;      // of them
    std::size_t last = kNone;  // where the last round's result lies among them
    OpTicket ticket;           // of the running round,
    OpTicket words_ticket;     // and where it has a codec, of its words
    bool running = false;
    std::vector<float>& result() { return out.empty() ? in : out; }
    std::vector<float>& left() { return left_now.empty() ? left_out : left_now; }
    // That a round takes in its group.
    std::uint32_t operations() const { return codec != 0 ? 2 : 1; }
    bool done() const { return ticket.done() && (codec == 0 || words_ticket.done()); }
    // nullptr: no operation of the round has failed.
    const OpTicket* failed() const {
      if (ticket.done() && ticket.code != CANARY_OK) return &ticket;
      return codec != 0 && words_ticket.done() && words_ticket.code != CANARY_OK ? &words_ticket : nullptr;
    }
  };
  // A worker that a step waits for, and the last iteration of which its gradients were exchanged.
  struct Awaited {
    int worker = -1;
    sync::Iteration exchanged = 0;
    bool operator==(const Awaited&) const = default;
  };
  // What follows a death.
  enum class Recovery : std::uint8_t { kNone, kReporting, kHanding };
  // A step of the worker's that has no answer yet.
  struct Asked {
    OpTicket* ticket = nullptr;
    port::SessionStep what{};
    std::span<float> sums;
    void* result = nullptr;
    Nanos since;  // the call, or later: when `awaited` changed
    Nanos deadline = Nanos::max();
    Awaited awaited = {};
  };

  // "session #1"
  static std::string name_of(std::uint64_t number);
  static Status read(std::span<const std::uint64_t> numbers, int worker, int workers,
                     sync::SessionRounds::Options* options);
  static sync::Thresholds thresholds_of(std::span<const std::uint64_t> numbers, int colayers);
  static std::optional<Nanos> linger_of(std::span<const std::uint64_t> numbers);
  // The numbers of which the three above read these options: a session's head, which its colayers follow.
  static std::vector<std::uint64_t> words_of(const sync::SessionRounds::Options& options, bool goes_on);

  // `ranks`: of its workers, in the world.
  Session(port::MemberId caller, std::uint64_t number, const sync::SessionRounds::Options& options,
          std::span<const std::uint64_t> numbers, std::vector<int> ranks);
  void allocate();
  // It is closed, and stays for those that may ask how it has ended, with its index and without its buffers.
  void free_memory();

  // Adds the gradient to what waits for a round.
  Status push(Nanos now, int z, std::span<const float> gradient);
  // What the next round of z takes along; it is lent to the engine until commit().
  std::span<float> join(Nanos now, int z);
  // The round of z is done. An error: its contributors contradict each other, and the session is over.
  Status commit(Nanos now, int z) { return commit(now, z, false); }
  // A colayer whose round is to be joined now, -1: none.
  int due(Nanos now) const;
  // Whether all own gradients are in rounds that are committed.
  bool drained() const;

  // --- after deaths ---
  // Who lives, of those that the agreement does not know to be dead.
  void live();
  sync::DeathAgreement::Standing standing() const;
  // The worker's part of the sum that tells all survivors how far each one got.
  std::span<std::int64_t> report();
  // Hears the others' parts. False: they are impossible.
  bool hear_reports();
  // The last round of z, for all survivors. Lent until resume().
  std::span<float> hand_out(int z);
  // Takes the new epoch's first rounds; the results of those that lack here have been handed out.
  Status resume(Nanos now);
  // The number for the hash of one of its groups; place 0 is where the workers meet. After a death the survivors have
  // others, which all who know of the same deaths find.
  std::uint64_t group_number(std::size_t place, const sync::WorkerSet& dead) const;
  // The worker of a rank in the session's groups, which have only the living.
  int worker_at(std::size_t group_rank) const { return living[group_rank]; }

  // Answers a step: false while it has to wait. `status` is its result.
  bool answer(Nanos now, Status* status);
  SessionView view() const;

  const port::MemberId caller;
  const std::uint64_t number;
  const bool goes_on;            // after a death
  const std::vector<int> ranks;  // of all workers, in the world
  std::vector<int> living;       // workers, ascending
  sync::DeathAgreement agreement;
  Recovery recovery = Recovery::kNone;
  int handing = -1;     // the colayer whose last round is handed out
  int meetings = 0;     // of those that finish, which it has entered in this epoch
  bool closed = false;  // and kept for those that ask
  Nanos closed_at;
  sync::SessionRounds rounds;
  std::vector<Colayer> colayers;
  GroupMember* control = nullptr;  // in the group where all open and finish
  OpTicket control_ticket;
  float token = 0;  // what travels there
  State state = State::kOpening;
  bool opened = false;
  OpTicket* opening = nullptr;
  Asked asked;
  Status verdict;  // of kEnded
  Nanos committed_at;

 private:
  std::size_t words() const { return kWords * static_cast<std::size_t>(rounds.members().workers()); }
  void clear();
  void take(port::SessionResult* result);
  // `handed`: its result came from another survivor.
  Status commit(Nanos now, int z, bool handed);
  std::size_t report_words() const { return colayers.size() + 2; }

  int backlog_max_;
  sync::Contributors set_;
  std::vector<std::int64_t> reports_;  // per worker: next round of each colayer, iteration, whether all have finished
  bool spared_ = false;                // it was overtime, and those ahead of it are dead
  std::uint64_t committed_ = 0;
  std::uint64_t bytes_ = 0;
  sync::Iteration stalest_ = 0;
};

}  // namespace canarynet
