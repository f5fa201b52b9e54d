// Parameter server: the star that the others are measured against. Ranks 0 … servers-1 own a part each; every rank
// sends them its contributions and gets the sums back. One server carries 2(n-1)M through its NICs; with as many
// servers as ranks it is the mesh. A server adds its own contribution, then those of the ranks after it (mod n), so the
// order is fixed.
#include <algorithm>

#include "collectives/plan_builder.h"

namespace canarynet {
namespace {

bool defines(Collective collective, int) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
         collective == Collective::kBarrier || collective == Collective::kReduce;
}

// An operation with a root has the root as its only server, a barrier rank 0.
int servers_of(const PlanRequest& request) {
  return request.collective == Collective::kAllReduce ? std::clamp(request.servers, 1, request.ranks) : 1;
}
int first_server_of(const PlanRequest& request) { return has_root(request.collective) ? request.root : 0; }

Status check(const PlanRequest& request) {
  if (Status status = check_request(kParameterServerPlanner, request); !status.ok()) return status;
  const int first = first_server_of(request);
  for (int s = first; s < first + servers_of(request); ++s) {
    for (int a = 0; a < request.ranks; ++a) {
      if (a == s) continue;
      if (Status status = need_edge(PlannerId::kParameterServer, *request.reach, s, a); !status.ok()) return status;
    }
  }
  return {};
}

void leaves(const PlanRequest& request, std::vector<std::uint64_t>* out) {
  out->clear();
  cut_evenly(0, request.total(), servers_of(request), request.element_bytes, out);
  out->push_back(request.total());
}

Run leaf(int i) { return {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i) + 1}; }

// Contributions go to the servers, sums to every rank. Servers are workers of each other.
void plan_sums(const PlanRequest& request, int rank, Buffer own, Buffer result, bool finish, PlanBuilder& build) {
  const int n = request.ranks, servers = servers_of(request);
  const auto after = [n, rank](int j) { return (rank + j) % n; };
  const bool serves = rank < servers;
  for (int j = 1; j < n; ++j) {
    const int server = after(n - j);
    if (server < servers) build.send({.peer = server, .round = 0, .run = leaf(server)}, own);
  }
  for (int j = 1; serves && j < n; ++j) {
    build.receive_reduce({.peer = after(j), .round = 0, .run = leaf(rank)}, j == 1 ? own : result, result,
                         finish && j == n - 1);
  }
  for (int j = 1; serves && j < n; ++j) build.send({.peer = after(n - j), .round = 1, .run = leaf(rank)}, result);
  for (int j = 1; j < n; ++j) {
    const int server = after(j);
    if (server < servers) build.receive({.peer = server, .round = 1, .run = leaf(server)}, result);
  }
}

void plan(const PlanRequest& request, int rank, Plan* out) {
  const int n = request.ranks;
  const auto leaf_count = static_cast<std::uint32_t>(servers_of(request));
  if (n == 1) return plan_alone(request, leaf_count, out);
  PlanBuilder build(out, n, leaf_count);
  switch (request.collective) {
    case Collective::kBroadcast:
      if (rank != request.root)
        return build.receive({.peer = request.root, .round = 0, .run = leaf(0)}, Buffer::kOutput);
      build.copy(leaf(0), Buffer::kInput, Buffer::kOutput, false);
      for (int j = 1; j < n; ++j) build.send({.peer = (rank + j) % n, .round = 0, .run = leaf(0)}, Buffer::kInput);
      break;
    case Collective::kReduce:
      if (rank != request.root) return build.send({.peer = request.root, .round = 0, .run = leaf(0)}, Buffer::kInput);
      for (int j = 1; j < n; ++j) {
        build.receive_reduce({.peer = (rank + j) % n, .round = 0, .run = leaf(0)},
                             j == 1 ? Buffer::kInput : Buffer::kOutput, Buffer::kOutput, j == n - 1);
      }
      break;
    case Collective::kBarrier:
      plan_sums(request, rank, Buffer::kScratch, Buffer::kScratch, false, build);
      break;
    default:
      plan_sums(request, rank, Buffer::kInput, Buffer::kOutput, true, build);
      break;
  }
}

}  // namespace

constinit const Planner kParameterServerPlanner = {
    PlannerId::kParameterServer,
    "parameter server: CANARY_PS_SERVERS ranks collect, add and hand out; the star as a baseline",
    defines,
    check,
    leaves,
    plan};

}  // namespace canarynet
