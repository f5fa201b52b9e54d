#include "collectives/cost.h"

#include <algorithm>
#include <bit>
#include <string>

#include "collectives/plan_builder.h"
#include "collectives/walk.h"

namespace canarynet {
namespace {

// Ranks per host; 0 if hosts have different numbers of them.
double ranks_per_host(const PlanRequest& request) {
  if (request.host_of.empty()) return 1;
  const auto ranks_of = [&](int host) { return std::count(request.host_of.begin(), request.host_of.end(), host); };
  const auto k = ranks_of(request.host_of.front());
  const bool equal =
      std::all_of(request.host_of.begin(), request.host_of.end(), [&](int host) { return ranks_of(host) == k; });
  return equal ? static_cast<double>(k) : 0;
}

}  // namespace

double walk_cost(PlannerId id, const PlanRequest& request, int rails, const CostModel& model) {
  // Up to 64 ranks a walk over all of them takes milliseconds, so only exact repetition is used.
  constexpr int kExactRanksMax = 64;
  return walk(id, request, rails, model, walked_ranks(id, request, model, request.ranks <= kExactRanksMax));
}

Result<double> closed_form(PlannerId id, const PlanRequest& request, int rails, const CostModel& model) {
  const double n = request.ranks;
  const double alpha = model.alpha, beta = model.beta, gamma = model.gamma, post = model.post;
  const double all = std::max(rails, 1);  // a step without a preference uses all rails together
  // The larger of one rank's two buffers.
  const double bytes =
      static_cast<double>(request.total() * request.element_bytes) / (is_pairwise(request.collective) ? n : 1);
  const double share = (n - 1) / n * bytes;
  const bool power = std::has_single_bit(static_cast<unsigned>(request.ranks));
  const double lg = std::bit_width(static_cast<unsigned>(request.ranks)) - 1;
  const bool all_reduce = request.collective == Collective::kAllReduce;
  const bool broadcast = request.collective == Collective::kBroadcast;
  const bool gathers = request.collective == Collective::kAllGather || request.collective == Collective::kAllGatherV;
  const bool pairwise = is_pairwise(request.collective);
  const bool scatters = request.collective == Collective::kReduceScatter;
  const bool to_root = request.collective == Collective::kReduce;
  const bool collects = request.collective == Collective::kGather;
  const bool deals = request.collective == Collective::kScatter;
  const auto none = [&] {
    return Status(CANARY_INVALID_ARGUMENT, std::string(name_of(id)) + " has no closed form for " +
                                               std::string(name_of(request.collective)) + " among " +
                                               std::to_string(request.ranks) + " ranks");
  };
  if (request.ranks == 1) return 0.0;
  // The forms add up what pieces overlap; only that of the pipelined trees accounts for pieces.
  if (model.piece_bytes != 0 && id != PlannerId::kDoubleTree) return none();
  const double adders = id == PlannerId::kRingPerRail ? all : 1;
  const double half = !reduces(request.collective)
                          ? share * beta / all
                          : share * (beta / all + gamma / adders);  // one half of an all-reduce
  switch (id) {
    case PlannerId::kRing:
    case PlannerId::kRingPerRail:
      if (all_reduce) return 2 * (n - 1) * alpha + share * (2 * beta / all + gamma / adders);
      if (gathers || scatters) return (n - 1) * alpha + half;
      if (broadcast) return (n - 1) * (alpha + bytes * beta / all);
      if (to_root) return (n - 1) * (alpha + bytes * (beta / all + gamma / adders));
      return none();
    case PlannerId::kMesh:
      if (all_reduce) return 2 * (alpha + (n - 2) * post) + share * (2 * beta / all + gamma);
      if (gathers || scatters || deals || pairwise) return alpha + (n - 2) * post + half;
      if (collects) return alpha + half;
      if (to_root) return 2 * alpha + (n - 2) * post + share * (2 * beta / all + gamma);
      return none();
    case PlannerId::kMeshRelay:  // depends on the wiring
      return none();
    case PlannerId::kBCube: {
      const double L = request.bcube.levels, r = request.bcube.r;
      if (all_reduce && rails >= request.bcube.levels)
        return 2 * L * (alpha + (r - 2) * post) + share * (2 * beta + gamma) / L;
      return none();
    }
    case PlannerId::kBCubeX: {
      // Up to the last level 1/r^(L-1) is left of each part, which then goes to all mates.
      const double L = request.bcube.levels, r = request.bcube.r, left = r / n;
      if (all_reduce && rails >= request.bcube.levels) {
        return (2 * L - 1) * (alpha + (r - 2) * post) +
               bytes / L * ((1 - left) * (2 * beta + gamma) + (r - 1) * left * (beta + gamma));
      }
      return none();
    }
    case PlannerId::kHalvingDoubling:
      if (!power) return none();
      if (exchanges_whole(request)) return lg * (alpha + bytes * (beta / all + gamma));
      if (all_reduce) return 2 * lg * alpha + share * (2 * beta / all + gamma);
      if (gathers || scatters) return lg * alpha + half;
      if (to_root) return 2 * lg * alpha + share * (2 * beta / all + gamma);
      return none();
    case PlannerId::kTree:
      if (!power) return none();
      if (all_reduce) return 2 * lg * alpha + lg * bytes * (2 * beta / all + gamma);
      if (broadcast) return lg * (alpha + bytes * beta / all);
      if (to_root) return lg * (alpha + bytes * (beta / all + gamma));
      return none();
    case PlannerId::kDoubleTree:
      if (power && all_reduce && model.piece_bytes != 0 && post == 0)
        return 2 * lg * alpha + bytes * (2 * beta / all + gamma);
      return none();
    case PlannerId::kHierarchical: {
      // All hosts have the same number of ranks, whose NICs serve them all. The α terms of one part hide behind the β
      // terms of another, so this is exact for either alone and a bound for both; the work inside a host hides behind
      // the exchange as well.
      const double k = ranks_per_host(request);
      if (k == 0 || !all_reduce || post != 0 || gamma != 0 || model.local_beta != 0) return none();
      const double hosts = n / k, wire = (hosts - 1) / hosts * bytes;
      const double local = k > 1 ? 2 * model.local_alpha : 0;
      if (hosts == 1) return local;
      // Data goes straight to its home and back if a ring would not pipeline.
      const double steps = hosts > 2 && bytes < hosts * 128 * 1024 ? 1 : hosts - 1;
      return 2 * (steps * alpha + wire * beta / all) + local;
    }
    case PlannerId::kParameterServer:
      if (all_reduce && request.servers == 1)
        return 2 * alpha + (n - 2) * post + (n - 1) * bytes * (2 * beta / all + gamma);
      if (broadcast) return alpha + (n - 2) * post + (n - 1) * bytes * beta / all;
      if (to_root) return alpha + (n - 1) * bytes * (beta / all + gamma);
      return none();
  }
  return none();
}

}  // namespace canarynet
