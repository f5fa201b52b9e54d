// sim/swarm_faults.h -- faults in a swarm's life that may cost nothing but time: NICs and lanes that die and come back,
// one-way losses, hosts that stop for a while or are slow. Every pair keeps a path, or gets it back before it counts as
// lost.
//
// run() does what is due; next() says when that is again. It draws from the swarm's own randomness and heals what it
// did.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "sim/cluster.h"
#include "sim/swarm_life.h"

namespace canarynet {

class SwarmFaults {
 public:
  SwarmFaults(const Life& life, Random& random) : life_(life), random_(random) {}

  void begin(Cluster* cluster);
  Nanos next() const;
  void run();
  // Ends the faults; what is still broken heals now.
  void end();
  // Spares this host from now on: something worse is happening to it. `stopped`: it stays stopped, whenever it was to
  // go on. Its blocks heal now, so that they undo nothing later of what may be cut.
  void spare(int host, bool stopped);
  std::uint64_t count() const { return count_; }

 private:
  struct Heal {
    enum class Kind : std::uint8_t { kNic, kThaw, kSpeed, kLoss, kBlock };
    Nanos at;
    Kind kind;
    int host = 0;
    int rail = 0;                // kBlock: the other host
    bool in = false;             // kLoss: of incoming frames
    std::uint32_t loss_ppm = 0;  // kLoss: the rate before
  };
  void inject();
  void freeze(int host, Nanos span);
  void lose_one_way(int host, int rail, Nanos span);
  void later(const Heal& heal);
  void undo(const Heal& heal);
  Nanos below(Nanos most) {
    return Nanos{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most.count)))};
  }
  int any_host() { return static_cast<int>(random_.below(static_cast<std::uint64_t>(life_.cluster.hosts))); }

  const Life& life_;
  Random& random_;
  Cluster* cluster_ = nullptr;
  std::vector<Heal> heals_;  // ascending
  Nanos next_fault_ = Nanos::max();
  int spared_ = -1;
  bool stopped_ = false;
  std::uint64_t count_ = 0;
};

}  // namespace canarynet
