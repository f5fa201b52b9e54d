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
#include "collectives/selector.h"
#include "collectives/table_costs.h"

namespace canarynet {

class ChoiceUse {
 public:
  // Operations by one planner: since another table decides, and lately, since the links last changed.
  struct Took {
    static constexpr std::uint32_t kEnough = 6;  // operations that tell how long the next one takes
    std::uint64_t operations = 0, ns = 0;
    std::uint32_t lately = 0;
    std::int64_t recent_ns = 0;  // a moving mean
    void note(Nanos time) {
      ++operations;
      ns += static_cast<std::uint64_t>(time.count);
    }
    // At the slowest rank.
    void note_slowest(Nanos time) {
      // The first ones find lanes that were not used for a while.
      if (lately < kEnough) ++lately;
      recent_ns = lately < kEnough / 2 ? time.count : recent_ns + (time.count - recent_ns) / 8;
    }
  };
  struct Cell {
    std::uint64_t operations = 0, bytes = 0;  // entered here, ever more lightly weighted
    std::uint32_t element_bytes = 1;
    int root = 0;
    bool static_known = false;  // `static_choice` has been asked for
    PlannerId static_choice = PlannerId::kRing;
    std::array<std::array<Took, 2>, kPlannerCount> took{};  // by planner; with the job's pieces, with smaller ones

    struct Sum {
      std::uint64_t operations = 0, ns = 0;
    };
    // Since another table decides, with pieces of any size.
    Sum took_by(PlannerId planner) const {
      Sum sum;
      for (const Took& t : took[static_cast<std::size_t>(planner)]) {
        sum.operations += t.operations;
        sum.ns += t.ns;
      }
      return sum;
    }
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
        CostedClass& costed = out.emplace_back();
        costed.collective = static_cast<Collective>(c);
        costed.bytes = cell.bytes / cell.operations;
        costed.element_bytes = cell.element_bytes;
        costed.root = cell.root;
        costed.static_choice = cell.static_choice;
        // A rank's part in what has a root says little of the whole.
        if (has_root(costed.collective)) continue;
        for (std::size_t p = 0; p < cell.took.size(); ++p) {
          for (std::size_t smaller = 0; smaller < 2; ++smaller) {
            const Took& took = cell.took[p][smaller];
            if (took.lately >= Took::kEnough) costed.took[p][smaller] = static_cast<double>(took.recent_ns) * 1e-9;
          }
        }
      }
    }
    return out;
  }
  // Calls fn(collective, size class, cell) for every class that operations were entered of.
  template <typename Fn>
  void for_each_used(Fn fn) const {
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      for (int s = 0; cells_[c] && s < kSizeClasses; ++s) {
        const Cell& cell = (*cells_[c])[static_cast<std::size_t>(s)];
        if (cell.operations != 0) fn(static_cast<Collective>(c), s, cell);
      }
    }
  }
  // Another table decides from now on.
  void begin_anew() {
    for (auto& cells : cells_) {
      if (!cells) continue;
      for (Cell& cell : *cells) {
        for (auto& by : cell.took) {
          for (Took& took : by) took.operations = took.ns = 0;
        }
        if (cell.operations < 2) continue;
        cell.bytes = cell.bytes / cell.operations * (cell.operations / 2);
        cell.operations /= 2;
      }
    }
  }

  // The links have changed: what operations took before says nothing any more.
  void forget_times() {
    for (auto& cells : cells_) {
      if (!cells) continue;
      for (Cell& cell : *cells) {
        for (auto& by : cell.took) {
          for (Took& took : by) took.lately = 0;
        }
      }
    }
  }
  // Whether enough operations of every class have run by the planner that decides it now.
  bool all_tried(const MeasuredTable& table) const {
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      if (!cells_[c] || !is_measured(static_cast<Collective>(c))) continue;
      for (int s = 0; s < kSizeClasses; ++s) {
        const Cell& cell = (*cells_[c])[static_cast<std::size_t>(s)];
        if (!cell.static_known || cell.operations == 0) continue;
        const MeasuredRow* const row = table.find(static_cast<Collective>(c), class_begin(s));
        const bool decides = row != nullptr && !row->keeps_static;
        const auto planner = static_cast<std::size_t>(decides ? row->planner : cell.static_choice);
        if (cell.took[planner][decides && row->piece_bytes != 0 ? 1 : 0].lately < Took::kEnough) return false;
      }
    }
    return true;
  }

 private:
  std::array<std::unique_ptr<std::array<Cell, kSizeClasses>>, kCollectiveCount> cells_;
};

// What decides an operation, and what is known of its kind.
struct ChoiceView {
  ChosenBy by = ChosenBy::kStatic;
  bool known = true;  // false: nobody has asked for the static choice yet
  PlannerId planner = PlannerId::kRing;
  std::uint32_t piece_bytes = 0;          // 0: the job's
  std::uint32_t table = 0;                // identity of the table in force
  const MeasuredRow* row = nullptr;       // of that table, where it decides or keeps the static choice
  const ChoiceUse::Cell* cell = nullptr;  // null: no such operation was entered here
};

}  // namespace canarynet
