#include "collectives/cube.h"

#include <algorithm>
#include <bit>

#include "collectives/plan_builder.h"

namespace canarynet {

Cube::Cube(const BCubeShape& shape) : r(shape.r), levels(shape.levels) {
  for (int l = 0; l < levels; ++l) {
    stride.push_back(n);
    n *= r;
  }
}

int rail_between(const Reachability& reach, int rank, int peer, int level) {
  const std::uint32_t rails = reach.rails(rank, peer) & ~(Reachability::kLocalBit | Reachability::kHostBit);
  if ((rails >> level & 1u) != 0) return level;
  return std::has_single_bit(rails) ? std::countr_zero(rails) : -1;
}

namespace {

// The rate of each level's NICs as whole numbers up to kFastest; empty if the rails of a level are not what carries it.
// Each rate takes one division and one product, which no compiler can round in another way.
constexpr double kFastest = 1 << 20;
std::vector<std::uint64_t> rates_of_levels(const PlanRequest& request) {
  const Cube cube(request.bcube);
  if (request.rail_rates.empty() || cube.levels < 2) return {};
  std::vector<double> slowest(static_cast<std::size_t>(cube.levels));
  for (int l = 0; l < cube.levels; ++l) {
    double& rate = slowest[static_cast<std::size_t>(l)];
    for (int a = 0; a < cube.n; ++a) {
      const double own = request.rail_rates[static_cast<std::size_t>(a) * kRailsMax + static_cast<std::size_t>(l)];
      rate = a == 0 ? own : std::min(rate, own);
      for (int by = 1; by < cube.r; ++by) {
        if (rail_between(*request.reach, a, cube.mate(a, l, by), l) != l) return {};
      }
    }
  }
  const double fastest = *std::max_element(slowest.begin(), slowest.end());
  std::vector<std::uint64_t> rates;
  for (const double rate : slowest)
    rates.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rate / fastest * kFastest)));
  return rates;
}

}  // namespace

std::vector<std::uint64_t> part_weights(int r, std::span<const std::uint64_t> rates) {
  const std::size_t levels = rates.size();
  const auto base = static_cast<std::uint64_t>(r);
  // Twice around: the second time each level knows what all others can take.
  std::vector<std::uint64_t> load(rates.begin(), rates.end());
  for (std::size_t i = 2 * levels; i-- > 0;) {
    std::uint64_t& own = load[i % levels];
    own = std::min(own, base * load[(i + 1) % levels]);
  }
  std::vector<std::uint64_t> weights;
  for (std::size_t l = 0; l < levels; ++l) weights.push_back(base * load[l] - load[(l + levels - 1) % levels]);
  return weights;
}

PartCut::PartCut(const PlanRequest& request) : levels_(request.bcube.levels), element_bytes_(request.element_bytes) {
  const std::vector<std::uint64_t> rates = rates_of_levels(request);
  if (rates.empty() || std::all_of(rates.begin(), rates.end(), [&](std::uint64_t r) { return r == rates.front(); }))
    return;
  weight_before_.push_back(0);
  for (const std::uint64_t weight : part_weights(request.bcube.r, rates))
    weight_before_.push_back(weight_before_.back() + weight);
}

void PartCut::cut(std::uint64_t begin, std::uint64_t elements, std::vector<std::uint64_t>* out) const {
  if (weight_before_.empty()) return cut_evenly(begin, elements, levels_, element_bytes_, out);
  const std::uint64_t unit = cut_unit(element_bytes_);
  const std::uint64_t units = (elements + unit - 1) / unit, all = weight_before_.back();
  for (int e = 0; e < levels_; ++e) {
    const std::uint64_t before = weight_before_[static_cast<std::size_t>(e)];
    const std::uint64_t first = units / all * before + units % all * before / all;
    out->push_back(begin + std::min(elements, first * unit));
  }
}

Status check_cube(const Planner& planner, const PlanRequest& request) {
  if (Status status = check_request(planner, request); !status.ok()) return status;
  const int n = request.ranks;
  if (n == 1) return {};
  const std::string ranks = std::to_string(n);
  if (request.bcube.levels <= 0 || request.bcube.r < 2) {
    return {CANARY_INVALID_ARGUMENT,
            std::string(name_of(planner.id)) +
                " needs n = r^L ranks on BCube wiring; no such shape is known for n = " + ranks};
  }
  std::int64_t product = 1;
  for (int l = 0; l < request.bcube.levels && product <= n; ++l) product *= request.bcube.r;
  if (product != n || request.bcube.levels > kRailsMax) {
    return {CANARY_INVALID_ARGUMENT, std::string(name_of(planner.id)) + "(" + std::to_string(request.bcube.r) + "," +
                                         std::to_string(request.bcube.levels) + ") does not fit n = " + ranks};
  }
  const Cube cube(request.bcube);
  for (int a = 0; a < n; ++a) {
    for (int l = 0; l < cube.levels; ++l) {
      for (int by = 1; by < cube.r; ++by) {
        if (Status status = need_edge(planner.id, *request.reach, a, cube.mate(a, l, by)); !status.ok()) return status;
      }
    }
  }
  return {};
}

}  // namespace canarynet
