// collectives/cost.h -- how long a schedule takes by the α-β model: a walk over its steps, and the closed forms that
// the walk must agree with.
//
// Model: a message starts when its dependencies are done and its sender's port is free. It occupies the sender's port
// for bytes·β (+ `post` before the next one may start), reaches the receiver α after its start, occupies the receiver's
// port for bytes·β, and for bytes·γ more if it is added. Among messages that wait for a port the lowest piece goes
// first, then the one that has waited longest; first come, first served would let the sums of a pipelined tree run
// ahead and hold its results back. A host has one port each way per rail (request.host_of; unless told, every rank is a
// host), as fast as request.rail_rates says or β each. A step that names a rail uses that one if it reaches the peer;
// any other step uses all rails that reach the peer together. A message between ranks of one host uses no rail: it
// takes `local_alpha`, and occupies each of the two ranks for bytes·local_beta. If model.links knows each link, a
// message starts with its α, messages of one link follow each other at its β, a NIC is as fast as its fastest link, and
// a piece takes one rail (collectives/walk_lanes.h). An ack costs nothing: data that would be overwritten is staged.
// Units: seconds, bytes. Pure; allocates, so it stays off the data path. docs/collectives.md has the closed forms.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collectives/link_costs.h"
#include "collectives/schedule.h"

namespace canarynet {

struct CostModel {
  double alpha = 0;        // start-up of one message on a link
  double beta = 0;         // per byte on one rail
  double gamma = 0;        // per byte added
  double post = 0;         // to post one more message ("o")
  double local_alpha = 0;  // between ranks of one host
  double local_beta = 0;
  // The costs of each link between two hosts, under their first ranks; null: alpha and beta hold for all. Borrowed.
  const LinkCosts* links = nullptr;
  std::uint64_t piece_bytes = 0;  // messages are pieces of this size, which pipeline; 0: a step's bytes are one message
};

// Seconds until the last rank is done. The request has passed the planner's check. The walk covers all ranks'
// plans, or, where all do alike, those of a few (collectives/walk.h).
double walk_cost(PlannerId id, const PlanRequest& request, int rails, const CostModel& model);

// The closed form of the planner on a homogeneous network, or an error if it has none ("dbtree has no closed form for
// broadcast"). The forms of trees and of halving are exact for powers of two only, and refused otherwise.
Result<double> closed_form(PlannerId id, const PlanRequest& request, int rails, const CostModel& model);

}  // namespace canarynet
