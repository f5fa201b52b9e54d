// collectives/plan_builder.h -- the planners' common code: steps with derived dependencies, leaf cuts, refusals.
//
// A planner emits its steps in an order that is right when they run one after the other. The builder finds, leaf by
// leaf, the earlier steps for which each step must wait (read after write, write after write, write after the acks of
// what was sent). It takes kInput and kOutput as one memory, so a plan is right in place too. Pure; allocates; planning
// is off the data path.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/schedule.h"

namespace canarynet {

// Leaves [begin, end).
struct Run {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// The place from which one message comes or to which it goes.
struct Hop {
  int peer = -1;
  int round = 0;
  Run run;
  int rail = -1;
};

class PlanBuilder {
 public:
  PlanBuilder(Plan* plan, int ranks, std::uint32_t leaf_count);

  // Tags count per peer and direction, so both ends must emit the messages between them in the same order.
  void send(const Hop& hop, Buffer src);
  void receive(const Hop& hop, Buffer dst);
  void receive_reduce(const Hop& hop, Buffer src, Buffer dst, bool finish);
  // Emit a copy from kInput to kOutput before the sends of its range: in place it moves nothing and no step waits for
  // it.
  void copy(Run run, Buffer src, Buffer dst, bool finish);
  // Adds `src` to `dst`, which must not be one memory even in place.
  void reduce(Run run, Buffer src, Buffer dst, bool finish);

 private:
  struct LeafState {
    std::int64_t last_write = -1;        // step index
    std::vector<std::uint32_t> readers;  // since then
  };
  // The caller's input and output count as one, since they may be.
  std::vector<LeafState>& memory_of(Buffer b) { return b == Buffer::kScratch ? scratch_ : caller_; }
  void depend_on_write(const Step& step, Buffer src);
  void depend_on_everything(const Step& step, Buffer dst);
  std::uint32_t emit(const Step& step);
  void mark_read(const Step& step, Buffer src, std::uint32_t index);
  void mark_write(const Step& step, Buffer dst, std::uint32_t index);
  void emit_local(Step step, Run run);

  Plan* plan_;
  std::vector<LeafState> caller_, scratch_;
  std::vector<std::uint16_t> send_tag_, receive_tag_;  // per peer: the next one
  std::vector<std::uint32_t> pending_;                 // dependencies of the step being made
};

// Appends `parts` ascending begins that cut [begin, begin + elements) evenly at multiples of 128 bytes (or of a longer
// element): the kernels get whole cache lines, and a tiny operation sends no message of a few bytes per rank. The
// caller appends the end.
std::uint64_t cut_unit(std::uint32_t element_bytes);  // elements of such a multiple
void cut_evenly(std::uint64_t begin, std::uint64_t elements, int parts, std::uint32_t element_bytes,
                std::vector<std::uint64_t>* out);
// Makes one leaf of each rank's block, or `parts` leaves of each, with the end.
void cut_blocks(const PlanRequest& request, std::vector<std::uint64_t>* out, int parts = 1);

// For pairwise collectives: the leaf of a pair is source * ranks + target; with the end.
void cut_pairs(const PlanRequest& request, std::vector<std::uint64_t>* out);

// Whether an all-reduce by halving_doubling is so small that only the number of messages counts: partners then send
// each other everything, in half the rounds.
bool exchanges_whole(const PlanRequest& request);

// The plan for n = 1: it copies (and does nothing for a barrier).
void plan_alone(const PlanRequest& request, std::uint32_t leaf_count, Plan* out);

// Checks ranks, root and element size of a request, and that the planner defines its collective.
Status check_request(const Planner& planner, const PlanRequest& request);
// Returns OK, or "ring needs ranks 1 and 2 to meet, but they share no rail".
Status need_edge(PlannerId id, const Reachability& reach, int a, int b);

// Tags and ranks have 16 bits; BCube(2, 13) sends 53,248 tagged blocks between two mates, BCube(2, 14) would not fit.
inline constexpr int kPlanRanksMax = 8192;
inline constexpr int kTagsMax = 65536;  // per peer and direction

// The planners, one file each.
extern const Planner kRingPlanner;
extern const Planner kMeshPlanner;
extern const Planner kBCubePlanner;
extern const Planner kHalvingDoublingPlanner;
extern const Planner kTreePlanner;
extern const Planner kDoubleTreePlanner;
extern const Planner kParameterServerPlanner;
extern const Planner kRingPerRailPlanner;
extern const Planner kHierarchicalPlanner;
extern const Planner kBCubeXPlanner;
extern const Planner kMeshRelayPlanner;

}  // namespace canarynet
