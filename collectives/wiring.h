// collectives/wiring.h -- the effect of a wiring on plans that move the same bytes. If every host reaches all others
// over the same NICs, plans differ by their steps alone. If some peers are behind other NICs than others (a link per
// pair, BCube), a ring may load one NIC and leave the others idle. Pure: equal on all ranks for equal requests;
// allocates.
#pragma once

#include "collectives/schedule.h"

namespace canarynet {

// Whether some host reaches two other hosts over different rails.
bool rails_differ_by_peer(const PlanRequest& request);

// Seconds of a plan that has passed the planner's check. The walk uses the rails that reach each peer at their rates
// (request.rail_rates; else 10 Gbit/s each), and the message times of kernel TCP.
double wiring_cost(PlannerId id, const PlanRequest& request);

// Whether hosts that exchange the request's bytes, one carrier each, are done sooner if each sends straight to every
// other one than if they form a ring. False if rails don't differ by peer.
bool straight_beats_ring_between_hosts(const PlanRequest& request);

}  // namespace canarynet
