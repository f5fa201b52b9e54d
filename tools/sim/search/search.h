// tools/sim/search/search.h -- codec, its parameter, piece size and planner of an all-reduce, chosen jointly:
// `canary-sim search`.
//
// Minimised are the three objectives of FlexComm 3-E (compress/ratio_controller.h): seconds to compress, seconds to
// exchange, 1 / gain. Front and knee are those of all designs that were tried. docs/canary-sim.md has the model.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tools/sim/search/design_costs.h"
#include "tools/sim/search/nsga2.h"
#include "tools/sim/search/space.h"

namespace canarynet::sim {

// As many as the engine walks the plans of (kCostedRanksMax in collectives/selector.h).
constexpr int kSearchRanksMax = 64;

struct SearchStudy {
  CostedRun run;
  SpaceOptions space;
  double least_gain = 0.1;  // designs with less are passed over
  Nsga2Options nsga2;
  bool exhaustive = false;  // tries all designs instead
};

struct Tried {
  Design design;
  DesignCost costs;
};
struct SearchResult {
  std::vector<Tried> front;  // by seconds to exchange; no two with the same costs
  std::size_t knee = 0;      // of `front`
  std::size_t tried = 0, designs = 0;
  std::string codecs;  // that were searched
};
// Takes pagmo unless it is exhaustive (has_nsga2()).
SearchResult search(const SearchStudy& study);

std::string text_of(const SearchStudy& study, const SearchResult& result);
// {"front": [{"codec": …, "planner": …, "piece_bytes": …, "compress_seconds": …, "exchange_seconds": …, "gain": …}, …],
//  "knee": {…}, …}, and the request.
std::string json_of(const SearchStudy& study, const SearchResult& result);
// An SVG file: gain over seconds to exchange, a dot per design of the front, larger with the seconds to compress.
std::string plot_of(const SearchStudy& study, const SearchResult& result);

}  // namespace canarynet::sim
