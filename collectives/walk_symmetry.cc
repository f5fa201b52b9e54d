// Which ranks stand for all in a walk (collectives/walk.h).
#include <algorithm>
#include <cstddef>
#include <vector>

#include "collectives/plan_builder.h"
#include "collectives/walk.h"

namespace canarynet {
namespace {

// Ranks per host if the ranks of a host follow each other and all hosts have as many; 1 if hosts are not told; else 0.
int ranks_in_a_row(const PlanRequest& request) {
  const auto& hosts = request.host_of;
  if (hosts.empty()) return 1;
  int each = 1;
  while (each < request.ranks && hosts[static_cast<std::size_t>(each)] == hosts[0]) ++each;
  if (request.ranks % each != 0) return 0;
  std::vector<int> firsts;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const std::size_t first = r - r % static_cast<std::size_t>(each);
    if (hosts[r] != hosts[first]) return 0;
    if (r == first) firsts.push_back(hosts[r]);
  }
  std::sort(firsts.begin(), firsts.end());
  return std::adjacent_find(firsts.begin(), firsts.end()) == firsts.end() ? each : 0;
}

}  // namespace

Symmetry walked_ranks(PlannerId id, const PlanRequest& request, const CostModel& model, bool exactly) {
  const auto symmetric = planner(id).symmetry;
  if (symmetric == nullptr || request.ranks < 2) return {};
  Symmetry symmetry = symmetric(request);
  const int n = request.ranks, each = ranks_in_a_row(request);
  if (symmetry.cell == 0 || (exactly && !symmetry.in_order) || each == 0 || (symmetry.radix != 0 && each != 1))
    return {};
  if (symmetry.cell % each != 0) {
    if (symmetry.cell != 1) return {};
    symmetry.cell = each;
  }
  if (symmetry.cell >= n) return {};
  if (model.links != nullptr && !model.links->alike()) return {};
  for (std::size_t i = kRailsMax; i < request.rail_rates.size(); ++i) {
    if (request.rail_rates[i] != request.rail_rates[i - kRailsMax]) return {};
  }
  std::vector<std::uint64_t> leaves;
  planner(id).leaves(request, &leaves);
  std::uint64_t longest = 0, shortest = ~std::uint64_t{0};
  for (std::size_t i = 0; i + 1 < leaves.size(); ++i) {
    longest = std::max(longest, leaves[i + 1] - leaves[i]);
    shortest = std::min(shortest, leaves[i + 1] - leaves[i]);
  }
  if (longest - shortest > (exactly ? 0 : cut_unit(request.element_bytes))) return {};
  // The rails between any two that exchange something must be those between the ranks that stand for them.
  std::vector<bool> seen(static_cast<std::size_t>(n));
  for (int a = 0; a < symmetry.cell; ++a) {
    Plan plan;
    planner(id).plan(request, a, &plan);
    seen.assign(seen.size(), false);
    for (const Step& s : plan.steps) {
      if (s.peer < 0 || seen[static_cast<std::size_t>(s.peer)]) continue;
      seen[static_cast<std::size_t>(s.peer)] = true;
      const std::uint32_t there = request.reach->rails(a, s.peer), back = request.reach->rails(s.peer, a);
      for (int by = 0; by < n; by += symmetry.cell) {
        const int from = symmetry.moved(a, by, n), to = symmetry.moved(s.peer, by, n);
        if (request.reach->rails(from, to) != there || request.reach->rails(to, from) != back) return {};
      }
    }
  }
  return symmetry;
}

}  // namespace canarynet
