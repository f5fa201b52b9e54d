// sim/swarm_partials.h -- waves of partial all-reduces in a swarm's life: in each the ranks that nothing ends are
// divided at random, and every set takes a mean or a sum.
//
// Each rank goes from wave to wave at a pace of its own, so waves overlap. A plain mean over disjoint sets is a doubly
// stochastic matrix: what the ranks have in all stays the same, and that is checked for every wave that went well. What
// is drawn after something has ended or cut off a host leaves that host out, and has to work.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "base/random.h"
#include "sim/swarm_exchanges.h"
#include "sim/swarm_life.h"
#include "sim/swarm_part.h"

namespace canarynet {

class SwarmPartials final : public SwarmPart {
 public:
  SwarmPartials(const Life& life, std::uint64_t seed, SwarmExchanges::Excuse excuse);

  void begin(Cluster* cluster) override;
  bool act() override;
  Nanos wakes() const override;
  bool finished() const override;
  void give_up(int host) override { gone_[static_cast<std::size_t>(host)] = true; }
  void bury(int host) override;
  void close() override;
  std::string pending() const override { return exchanges_.pending(); }
  void polled(int host) override;

  std::string shape() const;  // for people
  std::uint64_t exchanges() const { return exchanges_.called(); }

 private:
  struct Wave {
    std::vector<SwarmExchanges::Terms> sets;
    bool keeps_mean = true;  // all are plain means, and all went well so far
    std::size_t open = 0;    // ranks that have yet to end
    double given = 0, taken = 0, size = 0;
  };
  struct Task {
    std::size_t wave = 0, set = 0;
  };
  struct Rank {
    std::deque<Task> tasks;
    double value = 0;
    Nanos pauses_until;
  };
  void plan();
  void drop(const Task& task);
  void end(const SwarmExchanges::End& end);
  std::size_t open_waves() const;

  const Life& life_;
  Random random_;
  SwarmExchanges exchanges_;
  Cluster* cluster_ = nullptr;
  int waves_left_;
  std::size_t depth_;       // waves at once
  std::int64_t pause_;      // at most, between two exchanges of a rank
  std::size_t most_;        // elements
  std::vector<bool> gone_;  // hosts
  std::deque<Wave> waves_;
  std::vector<Rank> ranks_;
  std::vector<Task> current_;  // by rank: what it has called
};

}  // namespace canarynet
