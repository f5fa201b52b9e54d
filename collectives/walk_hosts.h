// collectives/walk_hosts.h -- the hosts of a cost walk (collectives/walk.h): their ports, the rails between them, and
// how fast those are. A host goes by the number of its first rank. Pure; one thread; allocates when it is made. What it
// is made of is borrowed.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "collectives/cost.h"
#include "collectives/schedule.h"

namespace canarynet {

class WalkHosts {
 public:
  WalkHosts(const PlanRequest& request, int rails, const CostModel& model);

  std::uint32_t host_of(std::uint32_t rank) const { return host_[rank]; }
  // The port that rank a uses towards b: its host's, under the host's number, or, on the same host, its own, which
  // follow all of those.
  std::uint32_t port_of(std::uint32_t a, std::uint32_t b) const { return host_[a] == host_[b] ? a + n_ : host_[a]; }
  bool is_local(std::uint32_t port) const { return port >= n_; }
  // The rails of a, a bit each, that reach b.
  std::uint32_t rails_between(std::uint32_t a, std::uint32_t b) const;
  // Those that a message takes whose step names `preferred` (< 0: none): that one if it reaches b, otherwise all.
  std::uint32_t rails_of_step(std::uint32_t a, std::uint32_t b, int preferred) const;
  // Seconds per byte that the port's rails carry together.
  double beta_of(std::uint32_t port, std::uint32_t rails) const;
  // Visits the rails of a that reach b, each with the one of b that it meets: the k-th of one host meets the k-th of
  // the other, and surplus ones start over at the first.
  template <typename Visit>
  void each_rail(std::uint32_t a, std::uint32_t b, Visit visit) const {
    const std::uint32_t in = rails_between(b, a);
    std::uint32_t theirs = in;
    for (std::uint32_t mine = rails_between(a, b); mine != 0; mine &= mine - 1, theirs &= theirs - 1) {
      if (theirs == 0) theirs = in;
      visit(std::countr_zero(mine), std::countr_zero(theirs));
    }
  }

 private:
  void find_hosts();
  void find_nic_rates();

  const PlanRequest& request_;
  const CostModel& model_;
  const std::uint32_t rails_, n_;
  std::vector<std::uint32_t> host_;  // [rank]: the first rank of its host
  std::vector<double> nic_rates_;    // [host * kRailsMax + rail], bytes a second; with model.links only
};

}  // namespace canarynet
