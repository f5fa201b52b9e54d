// collectives/table_costs.h -- makes the rows of a measured table: walks the planners of a group's operations over what
// was measured of its links, one walk at a time.
//
// What: fill_costs() turns the levels that were announced into the costs of every link. TableCosting then walks, for
// each class of sizes that is in use, every planner that can run there. The model knows neither queues nor processors,
// so nothing takes the place of a planner before that one has run often enough, and what the model puts close to the
// best is tried: the row names it until it has run often enough, then the next one. Among those that were tried the
// times decide; they are not scaled by costs, which change by far more than times do while rates become known. A
// planner whose cost has changed against those of the others, or at all since the network changed, is tried again.
// While no rate of a link is known (links tell it only once they are busy for a while), it is the one by which the
// planner in force takes the time that it took; what is not small waits until that is known. Where a few hosts' links
// alone show rates, what would be close to the best if the others were fast is tried, too. Operations with a codec are
// classes of their own: their bytes are fewer, and what their ranks encode and decode by a plan comes on top. Cost: a
// walk of more than kWalkTasks is left out, so that a step takes 1 to 2 ms at most; longer operations are walked in
// larger pieces, and plans that send more than others in still larger ones (kLargerAtMost). Pure; one thread;
// allocates.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/codec_pick.h"
#include "collectives/cost.h"
#include "collectives/measured_table.h"
#include "collectives/schedule.h"

namespace canarynet {

// How else a planner can run than in the job's pieces with ranks in their own order.
inline constexpr std::size_t kVariants = 4;
constexpr std::size_t variant_of(bool smaller_pieces, bool in_order) {
  return (smaller_pieces ? 1u : 0u) | (in_order ? 2u : 0u);
}

// What was announced of the link from one rank's host over its rail to another's.
struct LinkMeasure {
  int from = 0, to = 0;  // any rank of either host
  int rail = 0;
  std::uint32_t alpha_us = 0;   // 0: not known
  std::uint32_t beta_kbps = 0;  // kilobytes a second; 0: not known
};

struct RatesKnown {
  bool any = false;
  // All links that show a rate begin or end at the same few hosts, which are slow, or the only ones that others send
  // to: ways between the others may be far faster, as they are never busy for long.
  bool of_few_hosts = false;
};

// The costs of every link between the hosts of the group, as the walk takes them (model->links is left alone). A link
// whose rate nobody measured is as fast as what both of its NICs have shown on others, else as fast as the median one;
// where rates are of few hosts, a way between two others is as fast as the median one, and that is a guess. Alpha is
// the median. What nobody measured at all takes kernel TCP's time at 10 Gbit/s. `request` needs ranks, reach and
// host_of. Sets local_alpha and local_beta of the model by links between ranks of one host.
LinkCosts fill_costs(const PlanRequest& request, std::span<const LinkMeasure> measured, CostModel* model,
                     RatesKnown* rates);

// A class of sizes that the group uses.
struct CostedClass {
  Collective collective = Collective::kAllReduce;
  std::uint64_t bytes = 0;  // operation_bytes() of a usual one; says which class it is
  std::uint32_t element_bytes = 1;
  int root = 0;
  PlannerId static_choice = PlannerId::kRing;
  // Of operations that carry what a codec makes: its number (compress/spec.h); 0: there is none.
  std::uint32_t codec = 0;
  // Where that is encoded pieces: bytes of f32 in a piece, the bytes that travel for each of them, and what encoding
  // and decoding take. The values of AR-Topk travel as they are: piece_bytes 0.
  struct Encoding {
    std::uint32_t piece_bytes = 0;
    double share = 1;
    CodecSpeed speed;
    bool feedback = false;
  } encoding;
  // What is known of a planner, by variant. Seconds.
  struct Known {
    double took = 0;             // by operations, lately; 0: too few ran
    double cost = 0, least = 0;  // by measured rates, of it and of the cheapest, when that was first used; 0: not yet
    bool aged = false;           // from before this round of trials
    bool doubted = false;        // it has stood for long, and may be of operations that something held up
    bool before = false;         // from before the network changed
  };
  std::array<std::array<Known, kVariants>, kPlannerCount> known{};
  bool on_trial = false;  // the present row is there to be tried
  bool idle = false;      // no operations of it run now: nothing can be tried
};

class TableCosting {
 public:
  static constexpr std::uint64_t kWalkTasks = 4096;
  static constexpr std::uint64_t kLargerAtMost = 8;  // a walk's pieces are at most so many times as large as usual
  // What costs so much more than the best, by the model, is tried; and what took so much more before this round. Of
  // what is doubted also what costs less than the best.
  static constexpr double kClose = 1.3, kCloseBefore = 1.15;
  static constexpr double kSameCost = 1.3;        // a cost that has changed by less has not changed
  static constexpr double kMayBeAlike = 1.15;     // a cost that exceeds the time by less than that explains it
  static constexpr double kClearlyCheaper = 0.9;  // is tried at any time
  // What was tried and is only so little better than what decides, or than the static choice, does not replace it.
  static constexpr double kBetter = 0.95, kLikeStatic = 0.99;

  // `group` has what is equal for all operations: ranks, reach, bcube, servers, host_of, rail_rates; what it borrows
  // outlives this. `present` is the table in force. `ring_order`: rings are tried in it as well, unless it is empty.
  TableCosting(const PlanRequest& group, std::uint32_t piece_bytes, LinkCosts links, RatesKnown rates,
               const CostModel& model, std::vector<CostedClass> classes, MeasuredTable present, bool may_try,
               std::vector<std::uint16_t> ring_order = {});

  // One walk at most. False: nothing was left to do.
  bool step();
  // What was found of each candidate.
  struct Cost {
    Collective collective;
    std::uint64_t bytes;  // says which class it is, with the codec
    std::uint32_t codec;
    PlannerId planner;
    std::size_t variant;    // variant_of()
    bool in_force;          // it decides by the present table
    bool outdated;          // it was tried when it cost something else
    bool class_on_trial;    // what the new row names is to be tried
    double seconds, least;  // by the walk, of it and of the cheapest of its class
    bool by_rates;          // that were measured
  };
  const std::vector<Cost>& costs() const { return costs_; }
  // Some row is there to be tried; or would be, if that were allowed.
  bool trying() const { return trying_; }
  bool would_try() const { return would_try_; }
  // What links that have shown no rate take for a byte, by the time of what decides: as much as the median of the
  // others, or less where that one's rate would have taken far longer. 0: that time says nothing of them.
  double guessed_beta() const { return guessed_beta_; }
  // The finished rows: those of the present table for classes that are not costed now, too.
  std::vector<MeasuredRow> rows() &&;

 private:
  struct Costed {
    PlannerId planner;
    std::uint32_t piece_bytes;  // 0: the job's
    bool in_order = false;      // in ring_order_
    double seconds = 0;         // by the walk
    double at_best = 0;         // by one where links whose rate is a guess carry bytes in no time
    bool walked_at_best = false;
    std::uint64_t walked_in = 0;  // bytes of its walk's pieces, where usual ones would be too many; 0: the usual ones
    double expected = 0;          // by what operations took, too
    bool tried = false;           // that says how long it takes
    bool outdated = false;        // it was tried when it cost something else
    bool aged = false;            // it was tried before this round
    bool doubted = false;         // and for long

    bool timed() const { return tried && !outdated; }
    std::size_t variant() const { return variant_of(piece_bytes != 0, in_order); }
    bool is_static(PlannerId choice) const { return planner == choice && variant() == 0; }
  };
  using Candidate = std::vector<Costed>::const_iterator;
  void expect(const CostedClass& which);
  bool open_to_trial(const Costed& candidate, double best_cost, double best_time) const;
  Candidate to_try(double best_cost, double best_time) const;
  struct Choice {
    Candidate chosen;
    RowReason reason = RowReason::kUntimed;
    std::uint16_t to_follow = 0;
  };
  Choice choose(const CostedClass& which);
  PlanRequest request_of(const CostedClass& which, bool in_order = false) const;
  bool is_in_force(const CostedClass& which, const Costed& candidate) const;
  static const CostedClass::Known& known(const CostedClass& which, const Costed& candidate);
  static double took(const CostedClass& which, const Costed& candidate) { return known(which, candidate).took; }
  double least_cost() const;
  double least_at_best() const;
  double walk(const LinkCosts& links, const Costed& candidate) const;
  std::uint64_t piece_bytes_of(const Costed& candidate) const;
  bool fits(Costed* candidate, std::uint64_t tasks) const;
  const MeasuredRow* present_row(const CostedClass& which) const;
  void infer_rate();
  void begin_class();
  void end_class();

  PlanRequest group_;
  std::uint32_t piece_bytes_;
  LinkCosts links_;
  RatesKnown rates_;
  LinkCosts links_at_best_;  // where rates are of few hosts
  CostModel model_;
  std::vector<CostedClass> classes_;
  MeasuredTable present_;
  bool may_try_;
  std::vector<std::uint16_t> ring_order_;
  bool takes_hierarchical_;
  std::vector<MeasuredRow> rows_;
  std::vector<Cost> costs_;
  bool trying_ = false, would_try_ = false;

  std::size_t class_ = 0;                 // that is being costed
  std::vector<Costed> planned_, costed_;  // of it: still to be walked, in reverse order; walked
  std::uint64_t walk_piece_bytes_ = 0;    // of walks with the job's pieces
  bool rate_inferred_ = false;            // for this class, of links that have shown none
  double guessed_beta_ = 0;               // over all classes so far
  bool begun_ = false;
};

}  // namespace canarynet
