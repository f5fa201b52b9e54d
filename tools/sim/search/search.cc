#include "tools/sim/search/search.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"

namespace canarynet::sim {
namespace {

auto key_of(const Design& d) {
  return std::tuple(d.codec.kind, d.codec.bits, d.codec.member_mean, d.codec.ratio_ppm, d.piece_bytes, d.planner);
}
auto values_of(const Tried& t) {
  const RatioCost& c = t.costs.cost;
  return std::tuple(c.sync_seconds, c.compress_seconds, c.inverse_gain);
}

// What was tried, each design once.
class Trials {
 public:
  explicit Trials(const SearchStudy& study)
      : study_(study), costs_(study.run), space_(study.space, costs_.planners()) {}

  const Space& space() const { return space_; }
  const DesignCost& of(const Design& design) {
    auto [at, added] = tried_.try_emplace(key_of(design));
    if (added) at->second = {design, costs_.of(design)};
    return at->second.costs;
  }
  bool good(const DesignCost& costs) const { return costs.gain >= study_.least_gain; }
  std::size_t count() const { return tried_.size(); }

  // The front of all, in an order that does not depend on how they were tried.
  std::vector<Tried> front() const {
    std::vector<Tried> all;
    for (const auto& [key, tried] : tried_) {
      if (good(tried.costs)) all.push_back(tried);
    }
    // Of designs with the same costs the first one by its key stays.
    std::stable_sort(all.begin(), all.end(),
                     [](const Tried& a, const Tried& b) { return values_of(a) < values_of(b); });
    const auto same = [](const Tried& a, const Tried& b) { return values_of(a) == values_of(b); };
    all.erase(std::unique(all.begin(), all.end(), same), all.end());
    std::vector<RatioCost> costs;
    for (const Tried& t : all) costs.push_back(t.costs.cost);
    std::vector<Tried> front;
    for (const std::size_t i : pareto_front(costs)) front.push_back(all[i]);
    return front;
  }

 private:
  const SearchStudy& study_;
  DesignCosts costs_;
  Space space_;
  std::map<decltype(key_of(Design())), Tried> tried_;
};

}  // namespace

SearchResult search(const SearchStudy& study) {
  Trials trials(study);
  const std::vector<Design> all = trials.space().all();
  if (study.exhaustive) {
    for (const Design& design : all) trials.of(design);
  } else {
    // Every other design is better than one that is passed over.
    constexpr double kPassedOver = 1e12;
    const auto counts = trials.space().counts();
    run_nsga2(counts, study.nsga2, [&](std::span<const int> genes) -> std::array<double, 3> {
      const DesignCost& costs = trials.of(trials.space().at(genes));
      if (!trials.good(costs)) return {kPassedOver, kPassedOver, kPassedOver};
      return {costs.cost.compress_seconds, costs.cost.sync_seconds, costs.cost.inverse_gain};
    });
  }
  SearchResult result;
  result.front = trials.front();
  result.tried = trials.count();
  result.designs = all.size();
  result.codecs = trials.space().text();
  std::vector<RatioCost> costs;
  for (const Tried& t : result.front) costs.push_back(t.costs.cost);
  if (!costs.empty()) result.knee = knee_of(costs);
  return result;
}

}  // namespace canarynet::sim
