#include "collectives/walk_hosts.h"

#include <algorithm>
#include <span>
#include <utility>

namespace canarynet {

WalkHosts::WalkHosts(const PlanRequest& request, int rails, const CostModel& model)
    : request_(request),
      model_(model),
      rails_(static_cast<std::uint32_t>(std::max(rails, 1))),
      n_(static_cast<std::uint32_t>(request.ranks)) {
  find_hosts();
  if (model_.links != nullptr) find_nic_rates();
}

void WalkHosts::find_hosts() {
  host_.resize(n_);
  std::vector<std::pair<int, std::uint32_t>> first;  // host, its first rank
  for (std::uint32_t r = 0; r < n_; ++r) host_[r] = r;
  if (request_.host_of.empty()) return;
  for (std::uint32_t r = 0; r < n_; ++r) first.emplace_back(request_.host_of[r], r);
  std::sort(first.begin(), first.end());
  for (std::size_t i = 1; i < first.size(); ++i) {
    if (first[i].first == first[i - 1].first) host_[first[i].second] = host_[first[i - 1].second];
  }
}

std::uint32_t WalkHosts::rails_between(std::uint32_t a, std::uint32_t b) const {
  const std::uint32_t all = (1u << rails_) - 1;
  if (host_[a] == host_[b]) return all;
  const std::uint32_t known = request_.reach->rails(static_cast<int>(a), static_cast<int>(b)) & all;
  return known == 0 ? all : known;
}

std::uint32_t WalkHosts::rails_of_step(std::uint32_t a, std::uint32_t b, int preferred) const {
  const std::uint32_t reaching = rails_between(a, b);
  if (host_[a] == host_[b]) return reaching;
  const std::uint32_t own = preferred >= 0 && preferred < static_cast<int>(rails_) ? 1u << preferred : 0;
  return (reaching & own) != 0 ? own : reaching;
}

double WalkHosts::beta_of(std::uint32_t port, std::uint32_t rails) const {
  if (is_local(port)) return model_.local_beta;
  const std::span<const double> rates = model_.links != nullptr ? std::span(nic_rates_) : request_.rail_rates;
  if (rates.empty()) return model_.beta / std::popcount(rails);
  double rate = 0;
  for (std::uint32_t left = rails; left != 0; left &= left - 1)
    rate += rates[std::size_t{port} * kRailsMax + static_cast<std::size_t>(std::countr_zero(left))];
  return rate > 0 ? 1 / rate : 0;
}

// A NIC carries at least as much as its fastest link, in either direction.
void WalkHosts::find_nic_rates() {
  const double beta = model_.links->of(0, 0, 0).beta;
  const bool alike = model_.links->alike();
  nic_rates_.assign(std::size_t{n_} * kRailsMax, alike && beta > 0 ? 1 / beta : 0);
  if (alike) return;
  for (std::uint32_t a = 0; a < n_; ++a) {
    for (std::uint32_t b = 0; b < n_; ++b) {
      if (host_[a] != a || host_[b] != b || a == b) continue;
      each_rail(a, b, [&](int mine, int theirs) {
        const double of_link = model_.links->of(static_cast<int>(a), static_cast<int>(b), mine).beta;
        if (of_link <= 0) return;
        double& of_a = nic_rates_[std::size_t{a} * kRailsMax + static_cast<std::size_t>(mine)];
        double& of_b = nic_rates_[std::size_t{b} * kRailsMax + static_cast<std::size_t>(theirs)];
        of_a = std::max(of_a, 1 / of_link);
        of_b = std::max(of_b, 1 / of_link);
      });
    }
  }
}

}  // namespace canarynet
