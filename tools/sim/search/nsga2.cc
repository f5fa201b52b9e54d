// The one source that includes pagmo, whose headers are long to compile.
#include "tools/sim/search/nsga2.h"

#include <pagmo/algorithms/nsga2.hpp>
#include <pagmo/population.hpp>
#include <pagmo/problem.hpp>
#include <vector>

namespace canarynet::sim {
namespace {

// One gene in four changes in a mutation. pagmo's usual share, one in a hundred, is for many genes.
constexpr double kCrossover = 0.95, kCrossoverIndex = 10, kMutation = 0.25, kMutationIndex = 20;

// As pagmo wants it: it copies the problem, so this only points.
struct Grid {
  const std::vector<int>* counts = nullptr;
  const Objectives* objectives = nullptr;

  pagmo::vector_double fitness(const pagmo::vector_double& genes) const {
    std::vector<int> whole;
    for (const double gene : genes) whole.push_back(static_cast<int>(gene));
    const auto values = (*objectives)(whole);
    return {values.begin(), values.end()};
  }
  std::pair<pagmo::vector_double, pagmo::vector_double> get_bounds() const {
    if (counts == nullptr) return {{0}, {0}};  // pagmo also makes problems of nothing
    pagmo::vector_double high;
    for (const int count : *counts) high.push_back(count - 1);
    return {pagmo::vector_double(high.size(), 0), high};
  }
  pagmo::vector_double::size_type get_nobj() const { return 3; }
  pagmo::vector_double::size_type get_nix() const { return counts == nullptr ? 1 : counts->size(); }
};

}  // namespace

bool has_nsga2() { return true; }

void run_nsga2(std::span<const int> counts, const Nsga2Options& options, const Objectives& objectives) {
  const std::vector<int> held(counts.begin(), counts.end());
  const pagmo::problem problem{Grid{&held, &objectives}};
  const pagmo::population first(problem, options.population, options.seed);
  const pagmo::nsga2 algorithm(options.generations, kCrossover, kCrossoverIndex, kMutation, kMutationIndex,
                               options.seed);
  algorithm.evolve(first);
}

}  // namespace canarynet::sim
