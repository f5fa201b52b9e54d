// sim/swarm_sessions.h -- workers of sessions in a swarm's life, each at a pace of its own, and the judgement of what
// they are handed.
//
// A gradient is marked: of the n-th one that rank r pushes of a colayer, one element alone is 1, which no other
// gradient has. So sums tell which gradients they hold. The rest of a colayer that has no codec counts gradients.
// What is judged as soon as a caller could see it: no gradient is handed out to a worker twice, or before it was
// pushed; counts are right; what a worker joins is not beyond the bound (algorithms, section 5, rule 10); errors name
// what was really done. When all workers of a session have ended, those that finished have the same log (the bits of
// each round's result) and the same gradients. Each of their own has been handed out, but for as many as its worker was
// told were dropped. Of the dead they may have fewer, but all the same ones.
// Buffers are overwritten as soon as the call is done, and watched until the life ends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/session.h"
#include "sim/lent_memory.h"
#include "sim/lent_shelf.h"
#include "sim/swarm_life.h"
#include "sim/swarm_part.h"

namespace canarynet {

class SwarmSessions final : public SwarmPart {
 public:
  // Returns "" if a worker may get this error, otherwise what is wrong with it.
  using Excuse = std::function<std::string(bool goes_on, int rank, const Status& status)>;
  SwarmSessions(const Life& life, std::uint64_t seed, Excuse excuse);

  void begin(Cluster* cluster) override;
  bool act() override;
  Nanos wakes() const override;
  bool finished() const override;
  void give_up(int host) override { gone_[static_cast<std::size_t>(host)] = true; }
  void bury(int host) override;
  void close() override;
  std::string pending() const override;
  void polled(int host) override;

  std::string shape() const;                              // for people
  std::uint64_t rounds() const { return rounds_; }        // whose results were seen, by any worker
  std::uint64_t gradients() const { return gradients_; }  // pushed
  std::uint64_t dropped() const { return dropped_; }
  std::uint64_t survived() const { return survived_; }  // sessions that finished though workers of theirs had died

 private:
  struct Session;
  struct Colayer {
    std::size_t count = 0;
    std::uint32_t codec = 0;  // its number; 0: none
    bool exact = true;        // the codec changes no value, but may leave it out
  };
  struct Worker {
    enum class At : std::uint8_t { kWaiting, kOpening, kComputing, kAsked, kEnded, kClosing, kClosed, kBuried };
    Session* session = nullptr;
    int rank = 0;
    At at = At::kWaiting;
    Nanos until;             // when it goes on by itself
    Nanos compute;           // of an iteration, on average
    int n = 0;               // gradients that it has pushed of every colayer,
    std::size_t pushed = 0;  // and of so many one more
    port::SessionStep asks{};
    bool again = false;  // asks it, at once: a deadline passed, or the worker has to pull
    bool finished = false;
    bool failed = false;
    std::unique_ptr<LentMemory> sums, result;
    std::unique_ptr<OpTicket> ticket;
    port::SessionResult last;
    std::vector<std::vector<float>> handed;    // by colayer and element
    std::vector<std::vector<float>> left_out;  // at the end, by colayer
    std::vector<std::uint32_t> seen;           // by colayer: the last round that is in the log
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> log;  // by colayer: round, CRC of its result
  };
  struct Session {
    std::uint64_t number = 0;
    sync::SessionRounds::Options rounds;  // as each worker opens it
    bool goes_on = false;
    sync::Iteration bound = 0;  // the largest staleness that any worker has set
    bool strict = true;         // nothing beyond it may be joined
    int iterations = 0;         // of each worker; with a quorum at most
    bool changes = false;       // workers change their thresholds
    bool deadlines = false;     // some of their steps have one
    std::size_t marks = 0;      // elements in front, by rank and n
    std::vector<Colayer> colayers;
    std::deque<Worker> workers;  // stay where they are
    bool judged = false;
    std::size_t elements() const;
    bool has_quorum() const { return rounds.thresholds.quorum < 100; }
    // With a quorum numbers of iterations are left out, and all end with the same one.
    bool over(const Worker& w) const { return has_quorum() ? w.last.iteration > iterations : w.n == iterations; }
  };
  Session draw_session(std::uint64_t number);
  std::optional<Nanos> draw_linger();
  bool go(Worker& worker);
  void open(Worker& worker);
  void push(Worker& worker);
  void ask(Worker& worker, port::SessionStep what);
  void set_thresholds(Worker& worker);
  void answered(Worker& worker);
  void take(Worker& worker, const port::SessionResult& result);
  std::uint64_t take_colayer(Worker& worker, std::size_t z, std::span<const float> sum);
  void note_rounds(Worker& worker);
  void refused(Worker& worker, const Status& status);
  void end(Worker& worker);
  void judge(Session& session);
  void check_view(const Worker& worker);
  void compare_logs(const Worker& a, const Worker& b, std::size_t z);
  void count_missing(const Session& session, std::size_t z, const std::vector<Worker*>& finished,
                     std::vector<std::uint64_t>* missing);
  void give_back(std::unique_ptr<LentMemory>* memory);
  std::string name(const Worker& worker) const;
  Engine& engine_of(const Worker& worker) const { return cluster_->engine(cluster_->host_of(worker.rank)); }
  port::MemberId member_of(const Worker& worker) const { return cluster_->world(worker.rank)->id; }
  Nanos below(Nanos most) {
    return Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count) + 1))};
  }

  const Life& life_;
  Random random_;
  Excuse excuse_;
  Cluster* cluster_ = nullptr;
  std::vector<bool> gone_;  // hosts that something has ended or cut off
  std::deque<Session> sessions_;
  LentShelf shelf_;
  std::uint64_t rounds_ = 0, gradients_ = 0, dropped_ = 0, survived_ = 0;
};

}  // namespace canarynet
