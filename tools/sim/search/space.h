// tools/sim/search/space.h -- what there is to choose from: the designs of an exchange, as points of a grid.
//
// A design is a codec with its parameter, the bytes of values in a piece, and a planner. A point has a number for each;
// parameters and planners are counted by share, since families of codecs have different numbers of them, so several
// points may be one design. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/schedule.h"
#include "compress/spec.h"

namespace canarynet::sim {

struct Design {
  CodecSpec codec;
  std::uint64_t piece_bytes = 0;
  PlannerId planner = PlannerId::kRing;
  bool operator==(const Design&) const = default;
};

struct SpaceOptions {
  double ratio_low = 0.001, ratio_high = 0.25;  // of sparsifiers, by equal factors
  int ratios = 25;
  std::uint64_t piece_low = 4096, piece_high = 1024 * 1024;  // bytes of values
  int pieces = 17;
};

class Space {
 public:
  struct Planners {
    std::vector<PlannerId> dense, coded, all_gather;
  };
  Space(const SpaceOptions& options, Planners planners);

  // Of each gene: codec family, parameter, piece, planner.
  std::array<int, 4> counts() const;
  Design at(std::span<const int> genes) const;
  // Every design once.
  std::vector<Design> all() const;
  // "dense, fp16, …, topk:0.001 … 0.25": what is searched, for people.
  std::string text() const;

 private:
  const std::vector<PlannerId>& planners_of(const CodecSpec& codec) const;

  SpaceOptions options_;
  Planners planners_;
  std::vector<std::vector<CodecSpec>> families_;
  std::vector<std::uint64_t> pieces_;
};

}  // namespace canarynet::sim
