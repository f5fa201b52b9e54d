// collectives/program.h -- one rank's plan compiled onto the piece grid, ready for the executor. Immutable; its group
// caches it.
//
// Pieces: every leaf that the rank's steps cover is cut into pieces of piece_bytes (the last one shorter). Piece c
// takes the bytes [piece_offset[c], piece_offset[c+1]) of the covered leaves laid end to end, which is its place in
// scratch; its places in the caller's buffers are in place[]. A step covers pieces [piece_begin, piece_end); on the
// wire a piece has its number within the step, piece - piece_begin. A *task* is one (step, piece). The tasks of all
// steps share one numbering, so that the state of an operation is plain arrays.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"
#include "compress/spec.h"

namespace canarynet {

struct ProgramStep {
  StepKind kind = StepKind::kSend;
  Buffer src = Buffer::kInput;
  Buffer dst = Buffer::kOutput;
  bool finish = false;
  std::int16_t rail = -1;
  std::uint16_t tag = 0;
  std::int32_t peer = -1;        // rank in the group
  std::uint32_t peer_index = 0;  // index into Program::peers
  std::uint32_t piece_begin = 0;
  std::uint32_t piece_end = 0;
  std::uint32_t task_begin = 0;  // task of its first piece
  std::uint32_t dependents_begin = 0;
  std::uint32_t dependents_end = 0;
  std::uint64_t staging = 0;  // receives: offset of the first piece in the operation's staging memory
};

struct ProgramPeer {
  std::int32_t rank = -1;         // in the group
  std::uint32_t send_tasks = 0;   // pieces sent to it
  std::uint32_t ready_begin = 0;  // its part of the executor's ready queues
  std::uint32_t receive_tasks = 0;
};

struct Program {
  Collective collective = Collective::kAllReduce;
  PlannerId planner = PlannerId::kRing;
  int rank = 0;
  int ranks = 1;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> counts;  // as PlanRequest::counts
  std::uint32_t element_bytes = 1;
  int root = 0;
  std::uint32_t piece_bytes = 0;

  std::vector<std::uint64_t> piece_offset;          // pieces + 1
  std::array<std::vector<std::uint64_t>, 3> place;  // [Buffer][piece]: bytes from the buffer's begin
  std::vector<ProgramStep> steps;
  std::vector<std::uint32_t> dependents;  // steps that wait for a step, concatenated
  std::vector<std::uint16_t> pending;     // per task: dependencies to wait for
  std::vector<std::uint32_t> step_of_task;
  std::vector<std::uint32_t> receives;  // receiving steps, sorted by (peer, tag)
  std::vector<ProgramPeer> peers;       // ranks exchanged with, ascending
  std::uint32_t tasks = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t scratch_bytes = 0;

  // With a codec, pieces travel encoded (collectives/piece_coder.h) and have other lengths on the wire.
  CodecSpec codec;
  std::uint32_t encoded_bytes_max = 0;
  std::vector<std::uint32_t> slot_of_task;  // the task whose slot has the bytes of this one
  bool coded() const { return codec.kind != CodecKind::kDense; }

  std::uint32_t bytes_of(std::uint32_t piece) const {
    return static_cast<std::uint32_t>(piece_offset[piece + 1] - piece_offset[piece]);
  }
  // Only the two ranks know what passes between them, so the operation is done only once each peer's arguments have
  // been compared with this rank's own.
  bool waits_for_signatures() const { return collective == Collective::kAllToAllV; }
  // The step that receives (source, tag); nullptr if the plan has none.
  const ProgramStep* receive_step(int source, std::uint16_t tag) const;
  // A rank's index in `peers`, or -1.
  int peer_index(int rank) const;
};

// `request` has passed the planner's check. A codec takes an all-reduce of f32 by a plan that completes every element
// on one rank (completes_once() in collectives/selector.h); in a group of one rank nothing travels, so nothing is
// coded.
Program compile(PlannerId id, const PlanRequest& request, int rank, std::uint32_t piece_bytes,
                const CodecSpec& codec = {});

}  // namespace canarynet
