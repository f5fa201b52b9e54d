// port/command.h -- what a caller asks of an engine, as plain bytes: numbers instead of pointers, so that it may
// as well come from another process.
//
// A command has a fixed size, owns nothing, and means the same wherever it is read. Two cache lines: two buffers and a
// list of numbers, each with its region, are 72 bytes, and one line has 64. What it names (buffers, lists, texts) is
// borrowed until its ticket is done.
// Whoever takes commands has them checked first (port/command_check.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/types.h"
#include "base/units.h"
#include "port/memory_ref.h"

namespace canarynet::port {

// A place in a table (port/id_table.h), and which use of it.
struct MemberId {
  std::uint32_t place = 0xffffffff;
  std::uint32_t use = 0;
  bool operator==(const MemberId&) const = default;
};
struct TicketId {
  std::uint32_t place = 0xffffffff;
  std::uint32_t use = 0;
  bool operator==(const TicketId&) const = default;
};
inline constexpr TicketId kNoTicket;

struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kOperation,  // of a member: collective, type, redop, count, root, buffers; numbers: its counts, if it has any
    kGroup,      // the world rank `rank` asks for a group of the world ranks in `numbers` (32 bits each)
    kAbort,      // of the member's group, with the reason in `numbers` (characters); a ticket is optional
    kDeadline,   // of the operation or message whose ticket this is: `time_limit` from now on
  } kind = Kind::kNone;
  std::uint8_t collective = 0;
  std::uint8_t priority = 0;  // kOperation: a canary_priority
  std::uint8_t reserved = 0;
  std::int32_t rank = -1;  // kOperation: the root
  std::int32_t type = 0;
  std::int32_t redop = 0;
  MemberId member;
  TicketId ticket;
  std::uint64_t count = 0;
  std::int64_t time_limit = 0;  // nanoseconds; operations: 0 is none
  MemoryRef input;
  MemoryRef output;
  MemoryRef numbers;
  std::uint64_t reserved_too = 0;
};
static_assert(sizeof(Command) == 128 && std::is_trivially_copyable_v<Command>);

// A member of a group, as far as arguments are concerned.
struct MemberShape {
  int rank = 0;
  int size = 1;
};

}  // namespace canarynet::port

namespace canarynet {

// A collective, with its memory where this process sees it.
struct OpRequest {
  Collective collective = Collective::kBarrier;
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;  // all_gather_v: follows from its counts
  DataType type = CANARY_U8;
  ReduceOp redop = CANARY_SUM;
  int root = -1;
  Nanos time_limit{};                                 // 0: none; else from submission
  canary_priority priority = CANARY_PRIORITY_NORMAL;  // this rank's own: others may have given another one
  std::span<const std::uint64_t> counts = {};         // as PlanRequest::counts; borrowed like the buffers
};

}  // namespace canarynet

namespace canarynet::port {

// The command that asks for `request`, whose memory is this process's. It need not make sense: nothing of it is looked
// at but the counts, which are as long as they say.
Command operation(MemberId member, const MemberShape& shape, const OpRequest& request, TicketId ticket);
// The way back, of a command that was checked.
OpRequest request_of(const Command& command, const Regions& regions);

Command group(int world_rank, std::span<const std::int32_t> ranks, TicketId ticket);
Command abort(MemberId member, std::string_view reason, TicketId ticket = kNoTicket);
Command deadline(MemberId member, TicketId ticket, Nanos from_now);

}  // namespace canarynet::port
