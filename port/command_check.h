// port/command_check.h -- the one place that says whether a command makes sense, before an engine takes it.
//
// Everything in it counts as wrong until it was looked at: kinds, enumerations, numbers, lengths against what the
// operation or message reads and writes, regions, and buffers that overlap where they must not. Looks at no other
// rank's arguments and at no buffer's content but the list of counts. No state; allocates nothing where the command is
// good and its blocks ascend; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "port/command.h"

namespace canarynet::port {

// Things known where the command arrives.
struct Surroundings {
  const Regions& regions;
  int world_size = 1;
  std::optional<MemberShape> member;  // the one that the command names; none: there is none
  bool ticket = false;                // the one that it names waits for a result
  bool connection = false;            // the one that it names is there,
  bool connected = false;             // and made
  bool listener = false;              // the one that it names is there
  std::size_t stats_bytes = 0;        // that an endpoint's counters take
  bool endpoint = false;              // it arrives at one; else at an engine
};

// OK, or CANARY_INVALID_ARGUMENT with what is wrong and where ("reduce: root 4 is outside of a group of 4").
Status check_command(const Command& command, const Surroundings& here);

// Whether commands that were checked one by one are a unit: one alone, or receives of one connection, of which each but
// the last says that more follows.
Status check_unit(std::span<const Command> unit, const Regions& regions);

// Bytes of a member's message; of one that makes no sense: any number.
std::uint64_t message_bytes(const Command& message);

// Bytes that an operation reads from its input and writes to its output; any number if it makes no sense.
struct Lengths {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};
Lengths lengths_of(const Command& operation, const MemberShape& member, std::span<const std::uint64_t> counts);

// Its list of counts, one per rank, list behind list (PlanRequest::counts has which); empty where it has none.
std::span<const std::uint64_t> counts_of(const Command& operation, const Regions& regions);

}  // namespace canarynet::port
