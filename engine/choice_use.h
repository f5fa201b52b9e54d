// engine/choice_use.h -- what a group runs, by collective and class of sizes, and how long it took: what the measured
// table is made for, and what explains it.
//
// Operations that carry what a codec makes (encoded pieces, or the values of AR-Topk) have cells of their own, by the
// number of that codec and class of sizes.
//
// Memory: a cell stays where it is while this lives; the first operation of a collective makes the cells of all its
// classes, the first one with a codec that of its kind. Beyond kCodedMax kinds nothing is noted. Units: bytes, ns.
// Thread: the engine's owner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/serial.h"
#include "base/types.h"
#include "base/units.h"
#include "collectives/measured_table.h"
#include "collectives/selector.h"
#include "collectives/table_costs.h"
#include "compress/codec_ask.h"

namespace canarynet {

class ChoiceUse {
 public:
  static constexpr std::size_t kCodedMax = 32;
  // Operations by one planner: since another table decides, and lately, at the slowest rank.
  struct Took {
    // So many operations tell how long the next one takes: kEnough, kFew where each takes kLong, kVeryFew kVeryLong.
    static constexpr std::uint32_t kVeryFew = 2, kFew = 3, kEnough = 6;
    static constexpr std::int64_t kLong = 100'000'000, kVeryLong = 1'000'000'000;
    std::uint64_t operations = 0, ns = 0;
    // The same of the last table before by which any ran.
    struct Before {
      std::uint32_t table = 0;  // its version; 0: there was none yet
      std::uint64_t operations = 0, ns = 0;
    } before;
    std::uint32_t lately = 0;
    std::int64_t recent_ns = 0;  // the median of the latest ones
    double cost = 0, least = 0;  // see CostedClass::Known
    bool aged = false, before_change = false, doubted = false;
    void note(Nanos time) {
      ++operations;
      ns += static_cast<std::uint64_t>(time.count);
    }
    void note_slowest(Nanos time) {
      constexpr std::int64_t kMostUs = std::numeric_limits<std::uint32_t>::max();
      if (lately < kFew + kLatest) ++lately;
      // The first operations find lanes that were not used for a while.
      if (lately <= kFew) noted_ = 0;
      latest_us_[noted_ % kLatest] = static_cast<std::uint32_t>(std::min(time.count / 1000, kMostUs));
      if (++noted_ == 2 * kLatest) noted_ = kLatest;
      // A probe can hold up a few operations for ten times as long as the others take, and would decide their mean.
      std::array<std::uint32_t, kLatest> sorted = latest_us_;
      const std::uint32_t count = std::min(noted_, kLatest), middle = (count - 1) / 2;
      std::nth_element(sorted.begin(), sorted.begin() + middle, sorted.begin() + count);
      recent_ns = std::int64_t{sorted[middle]} * 1000;
    }
    void forget() {
      lately = 0;
      cost = 0;
      aged = before_change = doubted = false;
    }
    // It decides again: what it took then is not mixed with what it takes now.
    void begin_again() {
      lately = std::min(lately, 1u);
      cost = 0;
      aged = before_change = doubted = false;
    }

   private:
    static constexpr std::uint32_t kLatest = 9;
    std::array<std::uint32_t, kLatest> latest_us_{};  // a ring, entry noted_ % kLatest is the next
    std::uint32_t noted_ = 0;
  };
  struct Cell {
    std::uint64_t operations = 0, bytes = 0;  // entered here, ever more lightly weighted
    std::uint32_t element_bytes = 1;
    int root = 0;
    bool static_known = false;  // `static_choice` has been asked for
    bool measured = true;       // what was measured may choose another one
    PlannerId static_choice = PlannerId::kRing;
    std::array<std::array<Took, kVariants>, kPlannerCount> took{};  // by planner and variant_of()

    // Only times of operations of one size can be compared: of this one, which is often seen. Others since then.
    std::uint64_t usual_bytes = 0;
    std::uint32_t others = 0;
    // The latest one that will be timed, if there was one. Of a class that is idle nothing is waited for, nor is
    // anything tried.
    static constexpr std::uint32_t kIdleAfter = 32;  // operations of the group
    bool timed_once = false;
    std::uint32_t latest = 0;
    bool idle(std::uint32_t entered) const { return !timed_once || later(entered, latest + kIdleAfter); }
    // At the first rank: the row of the class is there to be tried, and how long what decides took when it was judged.
    bool on_trial = false;
    std::int64_t judged_ns = 0;

    // With a codec: its number (0: none) and name, the class of sizes, and the bytes of the caller's operation, the
    // latest one.
    std::uint32_t codec = 0;
    std::string codec_name;
    int coded_class = 0;
    std::uint64_t called_bytes = 0;
    // What the model must know of encoded pieces (but for the speeds).
    CostedClass::Encoding encoding;

    // `operation`: its number in the group. Not `timed`: its time will not be noted here.
    void note_entered(std::uint64_t size, std::uint32_t operation, bool timed = true) {
      constexpr std::uint32_t kNotSeen = 64;
      if (timed) latest = std::exchange(timed_once, true) ? later_of(latest, operation) : operation;
      ++operations;
      bytes += size;
      if (size == usual_bytes) {
        others = 0;
      } else if (usual_bytes == 0 || ++others >= kNotSeen) {
        usual_bytes = size;
        others = 0;
        for (auto& by : took) {
          for (Took& t : by) {
            t.forget();
            t.before = {};
          }
        }
      }
    }
    // Whether the times of a planner tell how long it takes, or that it takes far longer than another one.
    bool enough(const Took& t) const {
      if (t.lately >= Took::kEnough) return true;
      if (t.lately >= Took::kVeryFew && t.recent_ns >= Took::kVeryLong) return true;
      if (t.lately < Took::kFew) return false;
      if (t.recent_ns >= Took::kLong) return true;
      for (const auto& by : took) {
        for (const Took& other : by) {
          if (other.lately >= Took::kEnough && t.recent_ns / 3 > other.recent_ns / 2) return true;
        }
      }
      return false;
    }
    // What the table says of the class: the planner's times.
    const Took& in_force(const MeasuredRow* row) const {
      const bool decides = row != nullptr && !row->keeps_static;
      return took[static_cast<std::size_t>(decides ? row->planner : static_choice)]
                 [decides ? variant_of(row->piece_bytes != 0, row->in_order) : 0];
    }
    Took& in_force(const MeasuredRow* row) { return const_cast<Took&>(std::as_const(*this).in_force(row)); }
    struct Sum {
      std::uint64_t operations = 0, ns = 0;
    };
    // Since another table decides, in whatever variant.
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
  // Of all-reduces that carry what the codec of this number makes; nullptr: there are too many kinds.
  Cell* coded_cell(std::uint32_t codec, std::uint64_t bytes) {
    if (const Cell* const known = find_coded(codec, bytes); known != nullptr) return const_cast<Cell*>(known);
    if (coded_.size() == kCodedMax) return nullptr;
    Cell& made = *coded_.emplace_back(std::make_unique<Cell>());
    made.codec = codec;
    made.codec_name = text_asked(codec);
    made.coded_class = canarynet::size_class(bytes);
    made.element_bytes = sizeof(float);
    made.measured = false;  // until somebody says so
    return &made;
  }
  const Cell* find_coded(std::uint32_t codec, std::uint64_t bytes) const {
    const int size = canarynet::size_class(bytes);
    for (const auto& c : coded_) {
      if (c->codec == codec && c->coded_class == size) return c.get();
    }
    return nullptr;
  }
  const std::vector<std::unique_ptr<Cell>>& coded_cells() const { return coded_; }
  bool measures_coded() const {
    return std::any_of(coded_.begin(), coded_.end(), [](const auto& c) { return c->measured; });
  }
  // nullptr: no operation of the collective was entered here.
  const Cell* find(Collective collective, std::uint64_t bytes) const {
    const auto& cells = cells_[static_cast<std::size_t>(collective)];
    return cells ? &(*cells)[static_cast<std::size_t>(size_class(bytes))] : nullptr;
  }
  // The classes to be costed: a static choice was asked for, and something is moved. `entered`: the group's latest
  // operation.
  std::vector<CostedClass> classes(std::uint32_t entered) const {
    std::vector<CostedClass> out;
    each_measured(*this, [&](Collective collective, int, const Cell& cell) {
      if (cell.usual_bytes < cell.element_bytes) return;
      CostedClass& costed = out.emplace_back();
      costed.collective = collective;
      costed.bytes = cell.usual_bytes;
      costed.on_trial = cell.on_trial;
      costed.idle = cell.idle(entered);
      costed.element_bytes = cell.element_bytes;
      costed.root = cell.root;
      costed.static_choice = cell.static_choice;
      costed.codec = cell.codec;
      costed.encoding = cell.encoding;
      for (std::size_t p = 0; p < cell.took.size(); ++p) {
        for (std::size_t v = 0; v < kVariants; ++v) {
          const Took& took = cell.took[p][v];
          if (!cell.enough(took)) continue;
          costed.known[p][v] = {static_cast<double>(took.recent_ns) * 1e-9,
                                took.cost,
                                took.least,
                                took.aged,
                                took.doubted,
                                took.before_change};
        }
      }
    });
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
    for (const auto& cell : coded_) {
      if (cell->operations != 0) fn(Collective::kAllReduce, cell->coded_class, std::as_const(*cell));
    }
  }
  // Another table decides from now on.
  void begin_anew(const MeasuredTable& before, const MeasuredTable& now) {
    for_each_measured(now, [&](Collective collective, Cell& cell, const MeasuredRow* row) {
      const Took* const last = &cell.in_force(before.find(collective, cell.usual_bytes, cell.codec));
      Took& present = cell.in_force(row);
      if (last == &present) return;
      present.begin_again();
      cell.judged_ns = 0;
    });
    for_each_cell([&](Cell& cell) {
      for (auto& by : cell.took) {
        for (Took& took : by) {
          if (took.operations != 0) took.before = {before.version(), took.operations, took.ns};
          took.operations = took.ns = 0;
        }
      }
      if (cell.operations < 2) return;
      cell.bytes = cell.bytes / cell.operations * (cell.operations / 2);
      cell.operations /= 2;
    });
  }

  // What is known of a class, by what decides it.
  template <typename Fn>
  void for_each_measured(const MeasuredTable& table, Fn fn) {
    each_measured(*this, [&](Collective collective, int size, Cell& cell) {
      fn(collective, cell, table.find(collective, class_begin(size), cell.codec));
    });
  }
  // And of each class all that does not decide it, as fn(cell, row, took).
  template <typename Fn>
  void for_each_other(const MeasuredTable& table, Fn fn) {
    for_each_measured(table, [&](Collective, Cell& cell, const MeasuredRow* row) {
      const Took* const present = &cell.in_force(row);
      for (auto& by : cell.took) {
        for (Took& t : by) {
          if (&t != present) fn(std::as_const(cell), row, t);
        }
      }
    });
  }
  // A link has changed: what operations took before says nothing of what runs now. What others took is kept as long as
  // their costs stay what they were (TableCosting).
  void forget_present(const MeasuredTable& table) {
    for_each_measured(table, [](Collective, Cell& cell, const MeasuredRow* row) { cell.in_force(row).forget(); });
  }
  // The network has changed. What others took is of before.
  void note_change(const MeasuredTable& table) {
    for_each_other(table, [](const Cell&, const MeasuredRow*, Took& t) { t.before_change |= t.lately != 0; });
  }
  // Rings have another order to be tried in.
  void forget_ordered() {
    for_each_cell([](Cell& cell) {
      for (auto& by : cell.took) {
        for (const bool smaller : {false, true}) by[variant_of(smaller, true)].forget();
      }
    });
  }
  // Whether enough operations of every class have run by the planner that decides it now, of those that run(cell).
  template <typename Fn>
  bool all_tried(const MeasuredTable& table, Fn run) {
    bool all = true;
    for_each_measured(table, [&](Collective, Cell& cell, const MeasuredRow* row) {
      all = all && (cell.enough(cell.in_force(row)) || !run(std::as_const(cell)));
    });
    return all;
  }
  bool all_tried(const MeasuredTable& table) {
    return all_tried(table, [](const Cell&) { return true; });
  }
  // What decides takes another time than when it was judged.
  bool any_moved(const MeasuredTable& table) {
    bool any = false;
    for_each_measured(table, [&](Collective, Cell& cell, const MeasuredRow* row) { any |= moved(cell, row) != 0; });
    return any;
  }
  // What decides has become faster: whatever did that may have done it to others, which are to be tried again. Where it
  // has become slower, it is compared with what others took before, and those are timed again.
  void renew_others_where_moved(const MeasuredTable& table) {
    for_each_other(table, [](const Cell& cell, const MeasuredRow* row, Took& t) {
      const int by = moved(cell, row);
      if (by == 0) return;
      if (by < 0) t.forget();
      t.aged = t.lately != 0;
    });
  }
  // A round of trials begins.
  void age() {
    for_each_cell([](Cell& cell) {
      for (auto& by : cell.took) {
        for (Took& t : by) t.aged = t.lately != 0;
      }
    });
  }
  // What was timed long ago is looked at again. What decides is timed all the time.
  void doubt(const MeasuredTable& table) {
    for_each_other(table, [](const Cell&, const MeasuredRow*, Took& t) { t.aged = t.doubted = t.lately != 0; });
  }
  // The classes have been costed, with these costs, and this is what is to be tried.
  void note_costs(const TableCosting& costing, const MeasuredTable& present) {
    for (const TableCosting::Cost& cost : costing.costs()) {
      Cell& cell = cost.codec != 0 ? *coded_cell(cost.codec, cost.bytes) : this->cell(cost.collective, cost.bytes);
      Took& t = cell.took[static_cast<std::size_t>(cost.planner)][cost.variant];
      if (cost.by_rates && cell.enough(t) && (t.cost == 0 || cost.in_force)) {
        t.cost = cost.seconds;
        t.least = cost.least;
      }
      cell.on_trial = cost.class_on_trial;
    }
    for_each_measured(present, [](Collective, Cell& cell, const MeasuredRow* row) {
      const Took& t = cell.in_force(row);
      if (cell.enough(t)) cell.judged_ns = t.recent_ns;
    });
  }

 private:
  // 1: it has become slower; -1: faster.
  static int moved(const Cell& cell, const MeasuredRow* row) {
    const Took& t = cell.in_force(row);
    if (t.lately < Took::kEnough || cell.judged_ns == 0) return 0;
    return t.recent_ns > cell.judged_ns / 4 * 5 ? 1 : t.recent_ns < cell.judged_ns / 4 * 3 ? -1 : 0;
  }

  template <typename Fn>
  void for_each_cell(Fn fn) {
    for (auto& cells : cells_) {
      if (cells) std::for_each(cells->begin(), cells->end(), fn);
    }
    for (const auto& cell : coded_) fn(*cell);
  }
  // Calls fn(collective, size class, cell) for all cells whose operations are chosen by what was measured.
  template <typename Self, typename Fn>
  static void each_measured(Self& self, Fn fn) {
    const auto look = [&](Collective collective, int size, auto& cell) {
      if (cell.measured && cell.static_known && cell.operations != 0) fn(collective, size, cell);
    };
    for (std::size_t c = 0; c < self.cells_.size(); ++c) {
      if (!self.cells_[c] || !is_measured(static_cast<Collective>(c))) continue;
      for (int s = 0; s < kSizeClasses; ++s)
        look(static_cast<Collective>(c), s, (*self.cells_[c])[static_cast<std::size_t>(s)]);
    }
    for (const auto& cell : self.coded_) look(Collective::kAllReduce, cell->coded_class, *cell);
  }

  std::array<std::unique_ptr<std::array<Cell, kSizeClasses>>, kCollectiveCount> cells_;
  std::vector<std::unique_ptr<Cell>> coded_;
};

// What decides an operation, and what is known of its kind.
struct ChoiceView {
  ChosenBy by = ChosenBy::kStatic;
  bool known = true;  // false: nobody has asked for the static choice yet
  PlannerId planner = PlannerId::kRing;
  std::uint32_t piece_bytes = 0;          // 0: the job's
  std::uint32_t codec = 0;                // the number of the codec of what such operations carry; 0: none
  std::uint32_t table = 0;                // identity of the table in force
  const MeasuredRow* row = nullptr;       // of that table, where it decides or keeps the static choice
  const ChoiceUse::Cell* cell = nullptr;  // null: no such operation was entered here
};

}  // namespace canarynet
