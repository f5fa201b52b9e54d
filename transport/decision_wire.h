// transport/decision_wire.h -- how a group agrees on its measured table, in frames of wire.h. Little-endian.
//
// The flow of a group's decisions has bit 30 set. Its frames are of kind kSignature, acknowledged and sent again like
// any; of their headers count:
//   step: DecisionFrame; epoch: the group's; signature: the table's version; op: see DecisionFrame.
// Engines are named by their place among the group's, in the order of their first ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/wire.h"

namespace canarynet::wire {

inline constexpr std::uint32_t kDecisionFlow = 0x40000000;  // of a group: or'ed with the group's own flow

enum class DecisionFrame : std::uint16_t {
  kReport = 1,    // to the parent: levels that changed (LinkLevel, one or more)
  kTable = 2,     // to a child: a table is proposed (`op` ranks in the order of its rings, none or all of the group's,
                  // two bytes each; then DecisionRow, none or more)
  kLimit = 3,     // to the parent: behind operation `op` nobody in this part of the tree enters one before the outcome
  kCommit = 4,    // to a child: the table decides from operation `op` on
  kWithdraw = 5,  // to a child: the proposal is over, and everything stays as it was
  kTimes = 6,     // to the parent: what operations took in this part of the tree (OperationTime, one or more)
};

// What an engine has announced of one of its links.
struct LinkLevel {
  std::uint16_t from = 0;       // engine that measured it
  std::uint16_t to = 0;         // engine to which the link leads
  std::uint16_t rail = 0;       // number of the sender's rail
  std::uint16_t serial = 0;     // counts the changes, as the later of two is the one that holds
  std::uint32_t alpha_us = 0;   // 0: not known
  std::uint32_t beta_kbps = 0;  // kilobytes a second; 0: not known
};
static_assert(sizeof(LinkLevel) == 16 && std::has_unique_object_representations_v<LinkLevel>);

// Of a choice among planners, or among codecs (`asked` asks for one): then `planner` and `runner_up` are places among
// the candidates of what was asked for, and the fields from keeps_static to piece_bytes stay 0.
struct DecisionRow {
  std::uint8_t collective = 0;
  std::uint8_t size_class = 0;
  std::uint8_t planner = 0;
  std::uint8_t runner_up = 0;
  std::uint32_t asked = 0;        // the number that operations ask with (compress/codec_ask.h), or of their codec
  std::uint8_t keeps_static = 0;  // 1: the static choice stays; `planner` is what it was
  std::uint8_t reason = 0;        // RowReason of collectives/measured_table.h
  std::uint16_t to_follow = 0;    // on trial: the planners that are tried after this one, as bits
  std::uint32_t piece_bytes = 0;  // 0: the job's
  std::uint32_t predicted_us = 0;
  std::uint32_t runner_up_us = 0;
  std::uint32_t in_order = 0;  // 1: a ring whose ranks stand in the table's order
};
static_assert(sizeof(DecisionRow) == 28 && std::has_unique_object_representations_v<DecisionRow>);

// How long an operation took at the slowest rank of a part of the tree.
struct OperationTime {
  std::uint32_t op = 0;
  std::uint32_t us = 0;
};
static_assert(sizeof(OperationTime) == 8 && std::has_unique_object_representations_v<OperationTime>);

inline constexpr std::size_t kTimesPerReport = 32;
inline constexpr std::size_t kLevelsPerReport = 256;
inline constexpr std::size_t kDecisionRowsMax = 256;
inline constexpr std::size_t kOrderedRanksMax = 64;

}  // namespace canarynet::wire
