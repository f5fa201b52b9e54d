// collectives/table_costs.h -- makes the rows of a measured table: walks the planners of a group's operations over what
// was measured of its links, one walk at a time.
//
// What: fill_costs() turns the levels that were announced into the costs of every link. TableCosting then walks, for
// each class of sizes that is in use, every planner that can run there. The model knows neither queues nor processors,
// so a planner takes the static choice's place, or that of the one which the present table has, only where it is
// clearly cheaper; and the static choice comes back as soon as it is no dearer. Where a planner has run since the links
// last changed, the time that it took counts instead of its cost, and the costs of those that have not run are scaled
// as the one in force is wrong: a choice that turns out badly is taken back, and not tried again. While no rate of a
// link is known (links tell it only once they are busy for a while), it is the one by which the planner in force takes
// the time that it took; what is not small waits until that is known. Cost: a walk of more than kWalkTasks is left out,
// so that a step takes 1 to 2 ms at most; longer operations are walked in larger pieces. Pure; one thread; allocates.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/cost.h"
#include "collectives/measured_table.h"
#include "collectives/schedule.h"

namespace canarynet {

// What was announced of the link from one rank's host over its rail to another's.
struct LinkMeasure {
  int from = 0, to = 0;  // any rank of either host
  int rail = 0;
  std::uint32_t alpha_us = 0;   // 0: not known
  std::uint32_t beta_kbps = 0;  // kilobytes a second; 0: not known
};

// The costs of every link between the hosts of the group, as the walk takes them (model->links is left alone). A link
// whose rate nobody measured is as fast as what both of its NICs have shown on others, else as fast as the median one;
// alpha is the median. What nobody measured at all takes kernel TCP's time at 10 Gbit/s. `request` needs ranks, reach
// and host_of. Sets local_alpha and local_beta of the model by links between ranks of one host.
// *rates_known: some rate was measured.
LinkCosts fill_costs(const PlanRequest& request, std::span<const LinkMeasure> measured, CostModel* model,
                     bool* rates_known);

// A class of sizes that the group uses.
struct CostedClass {
  Collective collective = Collective::kAllReduce;
  std::uint64_t bytes = 0;  // operation_bytes() of a usual one; says which class it is
  std::uint32_t element_bytes = 1;
  int root = 0;
  PlannerId static_choice = PlannerId::kRing;
  // Seconds that operations took lately, by planner, in the job's pieces and in smaller ones; 0: it did not run.
  std::array<std::array<double, 2>, kPlannerCount> took{};
};

class TableCosting {
 public:
  static constexpr std::uint64_t kWalkTasks = 4096;
  static constexpr double kClearlyCheaper = 0.9;

  // `group` has what is equal for all operations: ranks, reach, bcube, servers, host_of, rail_rates; what it borrows
  // outlives this. `present` is the table in force.
  TableCosting(const PlanRequest& group, std::uint32_t piece_bytes, LinkCosts links, bool rates_known,
               const CostModel& model, std::vector<CostedClass> classes, MeasuredTable present);

  // One walk at most. False: nothing was left to do.
  bool step();
  // The finished rows: those of the present table for classes that are not costed now, too.
  std::vector<MeasuredRow> rows() &&;

 private:
  struct Costed {
    PlannerId planner;
    std::uint32_t piece_bytes;  // 0: the job's
    double seconds;             // by the walk
    double expected = 0;        // by what operations took, too
  };
  void expect(const CostedClass& which);
  PlanRequest request_of(const CostedClass& which) const;
  bool is_in_force(const CostedClass& which, const Costed& candidate) const;
  static double took(const CostedClass& which, const Costed& candidate);
  double walk(const Costed& candidate) const;
  void infer_rate();
  void begin_class();
  void end_class();

  PlanRequest group_;
  std::uint32_t piece_bytes_;
  LinkCosts links_;
  bool rates_known_;
  CostModel model_;
  std::vector<CostedClass> classes_;
  MeasuredTable present_;
  std::vector<MeasuredRow> rows_;

  std::size_t class_ = 0;                 // that is being costed
  std::vector<Costed> planned_, costed_;  // of it: still to be walked, in reverse order; walked
  std::uint64_t walk_piece_bytes_ = 0;    // of walks with the job's pieces
  bool rate_inferred_ = false;            // for this class, where none is known
  bool begun_ = false;
};

}  // namespace canarynet
