// engine/choice_use.h -- what a group runs, by collective and class of sizes, and how long it took: what the measured
// table is made for, and what explains it.
//
// Memory: a cell stays where it is while this lives; the first operation of a collective makes the cells of all its
// classes. Units: bytes, ns. Thread: the engine's owner.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/types.h"
#include "base/units.h"
#include "collectives/measured_table.h"
#include "collectives/table_costs.h"

namespace canarynet {

class ChoiceUse {
 public:
  struct Took {
    std::uint64_t operations = 0;
    std::uint64_t ns = 0;
  };
  struct Cell {
    std::uint64_t operations = 0, bytes = 0;  // entered here, ever more lightly weighted
    std::uint32_t element_bytes = 1;
    int root = 0;
    bool static_known = false;  // `static_choice` has been asked for
    PlannerId static_choice = PlannerId::kRing;
    std::array<Took, kPlannerCount> took{};  // by planner, since begin_anew()
  };

  Cell& cell(Collective collective, std::uint64_t bytes) {
    auto& cells = cells_[static_cast<std::size_t>(collective)];
    if (!cells) cells = std::make_unique<std::array<Cell, kSizeClasses>>();
    return (*cells)[static_cast<std::size_t>(size_class(bytes))];
  }
  // nullptr: no operation of the collective was entered here.
  const Cell* find(Collective collective, std::uint64_t bytes) const {
    const auto& cells = cells_[static_cast<std::size_t>(collective)];
    return cells ? &(*cells)[static_cast<std::size_t>(size_class(bytes))] : nullptr;
  }
  // The classes to be costed: a static choice was asked for, and something is moved.
  std::vector<CostedClass> classes() const {
    std::vector<CostedClass> out;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (!cells_[c] || !is_measured(static_cast<Collective>(c))) continue;
      for (const Cell& cell : *cells_[c]) {
        if (!cell.static_known || cell.operations == 0 || cell.bytes < cell.operations * cell.element_bytes) continue;
        out.push_back({static_cast<Collective>(c), cell.bytes / cell.operations, cell.element_bytes, cell.root,
                       cell.static_choice});
      }
    }
    return out;
  }
  // Another table decides from now on.
  void begin_anew() {
    for (auto& cells : cells_) {
      if (!cells) continue;
      for (Cell& cell : *cells) {
        cell.took = {};
        if (cell.operations < 2) continue;
        cell.bytes = cell.bytes / cell.operations * (cell.operations / 2);
        cell.operations /= 2;
      }
    }
  }

 private:
  std::array<std::unique_ptr<std::array<Cell, kSizeClasses>>, kCollectiveCount> cells_;
};

}  // namespace canarynet
