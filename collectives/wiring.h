// collectives/wiring.h -- what a wiring makes of plans that move the same bytes. Where every host reaches all others
// over the same NICs, plans differ by their steps alone; where some peers are behind other NICs than others (a link per
// pair, BCube), a ring may load one NIC and leave the others idle. Pure: equal on all ranks for equal requests;
// allocates.
#pragma once

#include "collectives/schedule.h"

namespace canarynet {

// Whether some host reaches two other hosts over different rails.
bool rails_differ_by_peer(const PlanRequest& request);

// Seconds of a plan that has passed the planner's check, walked over the rails that reach each peer, at their rates
// (request.rail_rates; else 10 Gbit/s each) and with the message times of kernel TCP.
double wiring_cost(PlannerId id, const PlanRequest& request);

// Whether hosts that exchange the request's bytes, one speaker each, are done sooner when each sends straight to every
// other one than when they form a ring. False where rails don't differ by peer.
bool straight_beats_ring_between_hosts(const PlanRequest& request);

}  // namespace canarynet
