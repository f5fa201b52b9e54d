// sim/swarm_policies.h -- workers of policies that ask (sync/policy.h) in a swarm's life: they train, ask the
// coordinator, average with the ranks that it names, and leave.
//
// A worker's loop is that of embed/policy_capi.cc, whose engine is a simulated one. What is judged: no worker is in two
// exchanges that run, as far as their members can know (an exchange runs from the first word of it until all members
// have said that it is done, or have died); all members of an exchange are told the same list, with themselves in it;
// rounds of ESync ascend; exchanges take the right mean (sim/swarm_exchanges.h); errors name what was really done; and
// every worker hears, in bounded time, that nobody counts on it any more.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "sim/lent_memory.h"
#include "sim/lent_shelf.h"
#include "sim/swarm_exchanges.h"
#include "sim/swarm_life.h"
#include "sim/swarm_part.h"
#include "sync/policy_name.h"

namespace canarynet {

class SwarmPolicies final : public SwarmPart {
 public:
  // Returns "" if a worker may get this error, otherwise what is wrong with it.
  using Excuse = std::function<std::string(int rank, const Status& status)>;
  SwarmPolicies(const Life& life, std::uint64_t seed, Excuse excuse, SwarmExchanges::Excuse of_exchanges);

  void begin(Cluster* cluster) override;
  bool act() override;
  Nanos wakes() const override;
  bool finished() const override;
  void give_up(int) override {}
  void bury(int host) override;
  void close() override;
  std::string pending() const override;
  void polled(int host) override;

  std::string shape() const;  // for people
  std::uint64_t answers() const { return answers_; }
  std::uint64_t exchanges() const;

 private:
  struct Policy;
  struct Worker {
    enum class At : std::uint8_t { kWaiting, kGoing, kLeaving, kOver, kClosed, kBuried };
    Policy* policy = nullptr;
    int rank = 0;
    At at = At::kWaiting;
    std::unique_ptr<sync::WorkerPolicy> decides;
    Nanos until;          // when it begins, or has trained
    Nanos iteration;      // takes this long
    int left = 0;         // iterations
    bool trains = false;  // also beside an exchange, where the policy says so
    bool ready = false;   // something has happened, and it has had no turn since
    bool named = false;   // told of an exchange that is not over
    bool last = false;    // told that nothing follows
    sync::WorkerSet members;
    std::int64_t number = -1;  // of the exchange that it was told of last
    double value = 0;
    std::unique_ptr<LentMemory> answer;  // of the call that waits for one
    std::unique_ptr<OpTicket> ticket;    // nullptr: there is none
    bool waits = false;                  // it comes back with an answer only
  };
  // An exchange that somebody was told of.
  struct Told {
    std::vector<int> members;
    std::vector<bool> over;  // by place
    std::vector<int> heard;  // members that were told
  };
  struct Policy {
    std::uint64_t number = 0;
    std::string name;
    sync::PolicySpec spec;
    bool listens = false;   // waits for answers all the time, not only where there is nothing else to do
    std::size_t count = 1;  // elements of an exchange
    std::unique_ptr<SwarmExchanges> exchanges;
    std::deque<Worker> workers;         // stay where they are
    std::map<std::int64_t, Told> told;  // those that are not over
  };
  bool go(Worker& worker);
  void open(Worker& worker);
  void decide(Worker& worker);
  void ask(Worker& worker, const sync::Question& question);
  void leave(Worker& worker);
  void finish_leaving(Worker& worker);
  void exchange(Worker& worker);
  void exchanged(Worker& worker, const SwarmExchanges::End& end);
  bool exchanges(const Worker& worker) const { return worker.policy->exchanges->calls(worker.rank); }
  void listen(Worker& worker);
  void take_answers(Worker& worker);
  void await(Worker& worker, bool waits);
  bool hear(Worker& worker);
  void tell(Worker& worker, std::int64_t number, const std::vector<int>& members);
  void over(const Worker& worker);
  void refused(Worker& worker, const Status& status);
  // One of its calls that never waits.
  template <typename Make>
  bool call(Worker& worker, const Make& make);
  void give_back(std::unique_ptr<LentMemory>* memory);
  void look(const Policy& policy) {
    if (!policy.exchanges->failure().empty()) fail(policy.name + ": " + policy.exchanges->failure());
  }
  std::string name(const Worker& worker) const;
  bool can_call(const Worker& worker) const;
  Nanos below(Nanos most) {
    return Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count) + 1))};
  }

  const Life& life_;
  Random random_;
  Excuse excuse_;
  Cluster* cluster_ = nullptr;
  std::deque<Policy> policies_;
  std::vector<std::uint64_t> hosts_;  // of the world's ranks
  LentShelf shelf_;
  std::uint64_t answers_ = 0;
};

}  // namespace canarynet
