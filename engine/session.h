// engine/session.h -- a worker's part in a session: the numbers whose books SessionRounds keeps.
//
// What: per colayer an accumulator of own gradients, the input of the running round, and results that the worker has
// not taken. A round is an all-reduce of a group that the colayer has for itself; behind its values stand three numbers
// per worker (first and last iteration that it contributed, and the one that it is in), of which only its own are not
// zero. So the sum says who contributed what. Design: docs/decisions/0053-sessions-of-dense-rounds.md.
// The engine (session_operations.cc) enters the rounds; nothing here does I/O or knows a group's inside.
// Memory: (2 + backlog) times the colayers, allocated by open(); nothing afterwards. Thread: the engine's owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "port/command.h"
#include "port/ticket.h"
#include "sync/session_rounds.h"

namespace canarynet {

struct GroupMember;

// What callers may read of a session.
struct SessionView {
  sync::Iteration iteration = 0, newest = 0, oldest_row = 0;
  int proportion = 0;  // of the worker's own iteration
  int workers = 0, colayers = 0;
  std::uint64_t dropped = 0;
  std::uint64_t rounds = 0;     // committed, of all colayers
  std::uint64_t bytes = 0;      // of all buffers
  sync::Iteration stalest = 0;  // the most that an own gradient was behind the newest iteration when it was joined
  Nanos linger;                 // how long a gradient waits for another's round
  bool overtime = false;
};

class Session {
 public:
  // Numbers behind a colayer's values, for each worker.
  static constexpr std::size_t kWords = 3;
  // Iterations travel as floats.
  static constexpr sync::Iteration kIterationMax = 1 << 24;

  enum class State : std::uint8_t { kOpening, kOpen, kFinishing, kFinished, kEnded };

  struct Colayer {
    GroupMember* member = nullptr;  // in the group of its rounds
    std::size_t count = 0;
    std::vector<float> acc, in;  // with room for the words
    std::vector<std::vector<float>> backlog;
    std::size_t kept = 0;  // of them
    OpTicket ticket;       // of the running round
    bool running = false;
  };
  // A worker that a step waits for, and the last iteration of which its gradients were exchanged.
  struct Awaited {
    int worker = -1;
    sync::Iteration exchanged = 0;
    bool operator==(const Awaited&) const = default;
  };
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

  static Status read(std::span<const std::uint64_t> numbers, int worker, int workers,
                     sync::SessionRounds::Options* options);
  static sync::Thresholds thresholds_of(std::span<const std::uint64_t> numbers, int colayers);
  static std::optional<Nanos> linger_of(std::span<const std::uint64_t> numbers);

  Session(port::MemberId caller, std::uint64_t number, const sync::SessionRounds::Options& options,
          std::span<const std::uint64_t> counts);
  void allocate();

  // Adds the gradient to what waits for a round.
  Status push(Nanos now, int z, std::span<const float> gradient);
  // What the next round of z takes along; it is lent to the engine until commit().
  std::span<float> join(Nanos now, int z);
  // The round of z is done. An error: its contributors contradict each other, and the session is over.
  Status commit(Nanos now, int z);
  // A colayer whose round is to be joined now, -1: none.
  int due(Nanos now) const;
  // Whether all own gradients are in rounds that are committed.
  bool drained() const;
  // Answers a step: false while it has to wait. `status` is its result.
  bool answer(Nanos now, Status* status);
  SessionView view() const;

  const port::MemberId caller;
  const std::uint64_t number;
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

  int backlog_max_;
  sync::Contributors set_;
  std::uint64_t committed_ = 0;
  std::uint64_t bytes_ = 0;
  sync::Iteration stalest_ = 0;
};

}  // namespace canarynet
