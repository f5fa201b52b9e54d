// collectives/schedule.h -- a collective as data: a list of steps per rank, which a pure planner makes and the one
// executor runs.
//
// Coordinates. Every schedule lives in one space of elements [0, total): total = count for all-reduce, reduce,
// broadcast and barrier; ranks * count for reduce-scatter, all-gather, gather and scatter (rank i's block is [i*count,
// (i+1)*count)). The space is cut in *leaves*: ranges that no step ever splits; a step covers a run of whole leaves.
// collectives/layout.h says where a leaf lies in a rank's buffers; a rank has memory only for the leaves that its own
// steps cover. When the plan is compiled each leaf is cut into *pieces* of at most piece_bytes, so dependencies between
// pieces are one to one: piece c of a step waits for piece c of the steps it depends on (if both cover c).
//
// Buffers. kInput is the caller's, never written. kOutput is the caller's result. kScratch is the operation's own. For
// the in-place call kInput and kOutput are the same memory: a schedule must be right for both.
//   all-reduce, broadcast  input and output cover the whole space (broadcast: input is read at the root only)
//   reduce-scatter         input covers the space, output only the own block; partial sums of other blocks live in
//                          scratch
//   all-gather             input covers only the own block, output the whole space
//   reduce                 as all-reduce, but only the root's output is written: partial sums elsewhere live in scratch
//   gather                 as all-gather, but only the root's output is written: blocks that other ranks pass on live
//                          in scratch
//   scatter                input covers the space and is read at the root only, output covers only the own block
//   all-gather-v           as all-gather, but each rank's block has a length of its own; the blocks lie one behind the
//                          other
//   all-to-all             rank i's block for rank j is the leaf i * ranks + j, at [leaf * count, (leaf + 1) * count)
//                          of a space of ranks^2 blocks. A rank's input covers its row of them, its output its column,
//                          which lies in its memory in one run; blocks that pass through a rank live in scratch. It
//                          never works in place: block j of the input and block j of the output are two leaves
//   all-to-all-v           the same leaves. Only their rank knows the lengths and places of a row and a column, so
//                          there is no common space, and only plans in which every block goes straight from its source
//                          to its target
//   barrier                total = 1 element of u8 in scratch (input and output are scratch too)
//
// A Plan promises (and collectives/checker.h proves): exactly-once contributions, no read before the write, no two
// writes of one range unordered, no overwrite of a range whose sends are not acked, no deadlock under any order of
// arrival.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "topology/rails.h"

namespace canarynet {

enum class StepKind : std::uint8_t {
  kSend,           // src[range] to peer; done when acked
  kReceive,        // peer's bytes to dst[range]
  kReceiveReduce,  // dst[range] = src[range] (+) peer's bytes; dst may equal src
  kCopy,    // dst[range] = src[range]; if both are one memory (in place) nothing is moved, `finish` still divides
  kReduce,  // dst[range] = dst[range] (+) src[range], both of this rank and never one memory
};
std::string_view name_of(StepKind kind);

enum class Buffer : std::uint8_t { kInput, kOutput, kScratch };
std::string_view name_of(Buffer buffer);

struct Step {
  StepKind kind = StepKind::kSend;
  Buffer src = Buffer::kInput;
  Buffer dst = Buffer::kOutput;
  bool finish =
      false;  // this write completes the reduction of the range: the owner divides here for AVG (not kReceive)
  std::int16_t rail = -1;   // preferred rail of the sender; -1: any
  std::uint16_t tag = 0;    // step number on the wire; unique per (source, destination); equal at both ends
  std::uint16_t round = 0;  // depth, for printing and cost
  std::int32_t peer = -1;   // rank in the group; -1 for kCopy and kReduce
  std::uint32_t leaf_begin = 0;
  std::uint32_t leaf_end = 0;  // one past
  // Into Plan::deps: steps of this rank that must be done (per piece) before this one begins. A dependency on a kSend
  // waits for its ack, since the source is then written again.
  std::uint32_t deps_begin = 0;
  std::uint32_t deps_end = 0;
};

// One rank's part of a schedule.
struct Plan {
  std::vector<Step> steps;  // any order that respects deps (each dep index is smaller than its step's)
  std::vector<std::uint32_t> deps;

  // Appends a step with its dependencies; returns its index.
  std::uint32_t add(Step step, std::span<const std::uint32_t> depends_on = {});
  std::span<const std::uint32_t> deps_of(const Step& s) const {
    return std::span(deps).subspan(s.deps_begin, s.deps_end - s.deps_begin);
  }
};

enum class PlannerId : std::uint8_t {
  kRing = 0,
  kMesh = 1,
  kBCube = 2,
  kHalvingDoubling = 3,
  kTree = 4,
  kDoubleTree = 5,
  kParameterServer = 6,
  kRingPerRail = 7,
  kHierarchical = 8,
  kBCubeX = 9,
  kMeshRelay = 10,
};
inline constexpr int kPlannerCount = 11;
std::string_view name_of(PlannerId id);  // "ring", "mesh", "bcube", "halving_doubling", "tree", "dbtree", …
bool parse(std::string_view name, PlannerId* id);

// Everything that a planner may look at. It is equal on all ranks of the group but for `rank`.
struct PlanRequest {
  Collective collective = Collective::kAllReduce;
  int ranks = 1;
  std::uint64_t count = 0;  // as the caller counts: elements per rank's block if there are blocks
  std::uint32_t element_bytes = 4;
  // For all-gather-v: the elements of each rank's block. For all-to-all-v, of one rank: elements for each rank, where
  // they begin in its input, elements from each rank, where they begin in its output (4 * ranks numbers). Empty:
  // `count` in every block. Borrowed.
  std::span<const std::uint64_t> counts = {};
  int root = 0;                         // broadcast, reduce, gather, scatter
  const Reachability* reach = nullptr;  // of the group; never null
  BCubeShape bcube = {};                // levels 0: none known; rank digits in base r, digit 0 least significant
  int servers = 1;                      // parameter_server only; more than ranks count as all of them
  std::span<const int> host_of = {};    // [rank]: equal numbers are one host; empty: every rank is a host of its own
  // [rank * kRailsMax + rail]: bytes a second that the rail is set or known to carry, > 0; empty: all are alike.
  std::span<const double> rail_rates = {};
  int cores = 0;  // of the one host that all ranks are on; 0: unknown, or there are several

  // ring, ring_per_rail: the ranks in the order in which they stand around the ring, each once; empty: 0, 1, 2, …
  std::span<const std::uint16_t> ring_order = {};

  std::uint64_t total() const {
    if (collective == Collective::kBarrier) return 1;
    if (!in_blocks(collective)) return count;
    const auto n = static_cast<std::uint64_t>(ranks);
    if (is_pairwise(collective)) return count * n * n;
    if (counts.empty()) return count * n;
    std::uint64_t sum = 0;
    for (const std::uint64_t c : counts) sum += c;
    return sum;
  }
  // Elements of rank i's block; not for pairwise collectives.
  std::uint64_t block(int i) const { return counts.empty() ? count : counts[static_cast<std::size_t>(i)]; }
  // The rank whose block has the element; for pairwise collectives the rank from which the element comes.
  int owner_of(std::uint64_t element) const {
    if (is_pairwise(collective)) return static_cast<int>(element / count / static_cast<std::uint64_t>(ranks));
    int i = 0;
    for (; i + 1 < ranks && element >= block(i); ++i) element -= block(i);
    return i;
  }
  // For pairwise collectives: the rank to which an element goes.
  int target_of(std::uint64_t element) const {
    return static_cast<int>(element / count % static_cast<std::uint64_t>(ranks));
  }
};

// The part that all ranks share. Leaf i is the elements [leaves[i], leaves[i+1]); it may be empty (count < ranks).
struct Schedule {
  PlannerId planner = PlannerId::kRing;
  PlanRequest request;                // reach and the lists but counts are not kept
  std::vector<std::uint64_t> leaves;  // ascending, first 0, last total()
};

// How the plans of a schedule repeat: moving all ranks of a plan of rank a gives the plan of the moved a, if all leaves
// are of one length. Then the ranks [0, cell) stand for all others, which cost walks use.
struct Symmetry {
  int cell = 0;   // 0: they don't, as far as is known
  int radix = 0;  // 0: ranks move by multiples of `cell` (mod n); else each digit in this base moves by itself
  // Plans repeat step by step. False: they repeat but for the order of leaves within a step or a round, so that a walk
  // over the cell alone is close and not exact.
  bool in_order = true;

  int moved(int rank, int by, int n) const;
  // The rank of the cell that stands for this one.
  int in_cell(int rank) const { return rank % cell; }
  // The number of `rank` once `stands_for` has been moved into the cell.
  int seen_from(int stands_for, int rank, int n) const;
};

// A planner; each has a file of its own (plan_ring.cc …). `leaves` and `plan` must come out the same for equal requests
// on every machine.
// Errors: CANARY_UNREACHABLE names the ranks that cannot meet; CANARY_INVALID_ARGUMENT says that the planner does not
// define the collective ("halving_doubling does not define broadcast") or the shape.
struct Planner {
  PlannerId id;
  const char* sentence;  // one line for help and docs
  // Whether the planner defines the collective at all (for this many ranks).
  bool (*defines)(Collective collective, int ranks);
  Status (*check)(const PlanRequest& request);  // OK, or why not
  void (*leaves)(const PlanRequest& request, std::vector<std::uint64_t>* out);
  void (*plan)(const PlanRequest& request, int rank, Plan* out);  // after check() said OK
  Symmetry (*symmetry)(const PlanRequest& request) = nullptr;     // likewise; null: none
};
const Planner& planner(PlannerId id);
std::span<const Planner> planners();

// For people to read, one step a line: "r1 s3 round 2  receive_reduce from 0 rail 1 leaves [2,3) after 0,1".
std::string to_string(const Plan& plan, int rank);

}  // namespace canarynet
