// sim/swarm_exchanges.h -- partial all-reduces of a swarm's ranks, and the judgement of each result: the sum or the
// mean of what the members gave, to the same bits at all of them.
//
// Element i of what a rank gives is its value times 1 + i mod 7. A result is judged the moment its ticket is done: then
// the rank's buffers are overwritten, and watched until the life ends. Those who draw the lists own one of these each.
// One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/cluster.h"
#include "sim/lent_memory.h"
#include "sim/lent_shelf.h"

namespace canarynet {

class SwarmExchanges {
 public:
  struct Terms {
    std::uint64_t number = 0;  // with the lowest rank it names the exchange
    std::vector<int> ranks;
    std::size_t count = 1;
    DataType type = CANARY_F64;  // or CANARY_F32
    ReduceOp redop = CANARY_AVG;
    bool weighted = false;
    bool in_place = false;
  };
  // What a rank's call came to. `value` is the result's first element.
  struct End {
    int rank = 0;
    std::uint64_t number = 0;
    bool ok = false;
    double value = 0;
  };
  // Returns "" if the rank may get this error in an exchange of these, otherwise what is wrong with it.
  using Excuse = std::function<std::string(const std::vector<int>& ranks, int rank, const Status& status)>;
  explicit SwarmExchanges(Excuse excuse) : excuse_(std::move(excuse)) {}

  void begin(Cluster* cluster) { cluster_ = cluster; }
  void call(int rank, const Terms& terms, double value, double weight = 1);
  // Judges the calls of a host's ranks that have ended.
  void settle(int host, const std::function<void(const End&)>& told);
  void bury(int host);
  void close();

  bool calls(int rank) const { return pending_.count(rank) != 0; }
  std::string pending() const;
  const std::string& failure() const { return failure_; }
  std::uint64_t called() const { return called_; }
  std::uint64_t errors() const { return errors_; }

 private:
  struct Call {
    double value = 0, weight = 1;
    bool called = false, ok = false;
    std::unique_ptr<LentMemory> input, output;  // in place: both are `output`
    std::unique_ptr<OpTicket> ticket;
    std::uint64_t digest = 0;  // of the result
  };
  struct Exchange {
    Terms terms;
    std::vector<Call> calls;  // by place in terms.ranks
  };
  static std::string describe(const Terms& terms);
  End settle(Exchange& exchange, std::size_t place);
  std::string check(const Exchange& exchange, const std::byte* result) const;
  void give_back(Call& call);
  void fail(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }

  Excuse excuse_;
  Cluster* cluster_ = nullptr;
  std::map<std::pair<std::uint64_t, int>, Exchange> exchanges_;  // by number and lowest rank
  std::map<int, std::pair<Exchange*, std::size_t>> pending_;     // by rank, which makes one call at a time
  LentShelf shelf_;
  std::string failure_;
  std::uint64_t called_ = 0, errors_ = 0;
};

}  // namespace canarynet
