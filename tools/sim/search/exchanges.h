// tools/sim/search/exchanges.h -- how long an exchange takes by the engine's cost model (collectives/cost.h), for ranks
// on hosts of their own that all meet over one NIC each.
//
// An encoded piece is a message of fewer bytes: beta counts for its share of them and for the frame's header. Long
// operations are walked at two smaller sizes and followed on a straight line from there, since a plan whose pipeline is
// full takes as much longer as there is more to send. Pure but for what it remembers; allocates. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "collectives/cost.h"
#include "collectives/schedule.h"
#include "tools/sim/search/coded_work.h"

namespace canarynet::sim {

struct Network {
  int ranks = 2;
  double alpha = 0;  // seconds
  double bits_per_second = 1e9;
  double post = 10e-6;  // seconds to post a message
};

class Exchanges {
 public:
  // `add`: seconds to add a byte of f32 that arrived as it is.
  Exchanges(const Network& network, double add);

  // That run the collective here; of all-reduces `coded`, those that complete every element on one rank. Left out are
  // those that come to the same as another one where there is one NIC, or one rank per host.
  std::vector<PlannerId> planners(Collective collective, bool coded) const;

  // Seconds. `bytes`: of the operation's whole buffer; `wire_share`: what is sent per byte of it.
  double dense(PlannerId planner, double bytes, std::uint64_t piece_bytes) const;
  double coded(PlannerId planner, double bytes, std::uint64_t piece_bytes, double wire_share) const;
  // One rank's `index_bytes` to all, by the cheapest planner, then an all-reduce of as many bytes of values.
  double ar_top_k(PlannerId planner, double index_bytes, std::uint64_t piece_bytes) const;
  // Every rank's `pair_bytes` to all.
  double all_gather(PlannerId planner, double pair_bytes, std::uint64_t piece_bytes) const;

  // Of a coded all-reduce of so many bytes.
  const CodedWork& work(PlannerId planner, double bytes);
  // The bytes of values in its longest piece: no more than a rank's part has.
  std::uint64_t longest_piece(PlannerId planner, double bytes, std::uint64_t piece_bytes) const;

  // More messages than these are not walked. A test sets another limit.
  std::uint64_t walked_messages_max = 32 * 1024;

 private:
  PlanRequest request(Collective collective, double bytes) const;
  // `add`: seconds per byte that is added.
  double seconds(PlannerId planner, const PlanRequest& whole, std::uint64_t piece_bytes, double wire_share,
                 double add) const;

  Network network_;
  double add_;
  Reachability reach_;
  std::map<PlannerId, CodedWork> work_;
};

}  // namespace canarynet::sim
