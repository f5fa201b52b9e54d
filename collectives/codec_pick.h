// collectives/codec_pick.h -- which of a few codecs takes the least time for an all-reduce, or none of them. Pure.
//
// Model: an operation takes as long as its bytes on the wire and what its ranks compute. The time of dense operations
// tells what all bytes of f32 take there, a codec's share of the bytes takes as much less, and encoding and decoding
// come on top. How much longer computing takes here than alone (ranks that share cores, links that leave none idle)
// shows once a codec has run; until then another codec's slowdown counts, or none. Times that operations took go before
// all of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/link_costs.h"
#include "collectives/schedule.h"
#include "compress/spec.h"

namespace canarynet {

// Seconds per byte of f32 on one core of this machine.
struct CodecSpeed {
  double encode = 0;  // with the fit
  double decode = 0;
};

struct CodecTrial {
  double share = 1;     // of the time that dense's bytes take on the wire
  double work = 0;      // seconds that a rank computes; 0 for dense
  double took = 0;      // seconds of an operation at the slowest rank, lately; 0: none has run
  double slowdown = 0;  // of `work`, as far as it has shown; 0: never. pick_codec() keeps it
};

struct CodecPick {
  std::size_t best = 0, runner_up = 0;  // the same: nothing is known of any other
  double expected = 0, runner_up_expected = 0;
};

// A codec that has not run must promise to be clearly faster than the present one, which has. One that has run need
// only be faster by more than operations differ.
inline constexpr double kWorthATrial = 0.9, kFaster = 0.97;

// Of the bytes of f32, those on the wire, for pieces of coded_piece_bytes() or of the whole share of a rank.
double wire_share(const CodecSpec& spec, std::uint64_t bytes, int ranks, std::uint32_t piece_bytes);
// Of artopk and agtopk (compress/spec.h), whose exchange is another one: the time that it takes, of a dense ring's or
// tree's, by the closed forms of collectives/topk_cost.h. `link`: a usual one; without a beta the bytes alone count.
double top_k_share(const CodecSpec& spec, std::uint64_t bytes, int ranks, LinkCost link);
// Seconds that a rank encodes and decodes for an all-reduce by a mesh: every value is encoded twice in all.
double codec_work(const CodecSpeed& speed, std::uint64_t bytes, int ranks, bool feedback);
// The same by any planner, of the rank that has the most to do: one with partial sums encodes each of them for the next
// hop. The request is an all-reduce of f32 that has passed the planner's check.
double codec_work(const CodecSpeed& speed, PlannerId id, const PlanRequest& request, bool feedback);
// trials[0] is dense. The present one stays best until it has run.
CodecPick pick_codec(std::span<CodecTrial> trials, std::size_t present);

}  // namespace canarynet
