// port/command.h -- what a caller asks of an engine, as plain bytes: numbers instead of pointers, so that it may
// as well come from another process.
//
// A command has a fixed size, owns nothing, and means the same wherever it is read. Two cache lines: two buffers and a
// list of numbers, each with its region, are 72 bytes, and one line has 64. What it names (buffers, lists, texts) is
// borrowed until its ticket is done; of one without a ticket as its kind says.
// An engine takes some kinds and an endpoint the others. Receives of a connection may be a unit: they are taken
// together, or none of them.
// Commands are checked before they are taken (port/command_check.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/types.h"
#include "base/units.h"
#include "port/memory_ref.h"
#include "port/policy.h"
#include "port/session.h"

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
// Likewise, of an endpoint.
struct ConnectionId {
  std::uint32_t place = 0xffffffff;
  std::uint32_t use = 0;
  bool operator==(const ConnectionId&) const = default;
};
struct ListenerId {
  std::uint32_t place = 0xffffffff;
  std::uint32_t use = 0;
  bool operator==(const ListenerId&) const = default;
};

struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    // An engine's.
    kOperation,  // of a member: collective, type, redop, count, root, buffers; numbers: its counts, if it has any;
                 // an all-reduce, which has none, has its codec's number in numbers.region, its tensor in .offset,
                 // the bits of its momentum (a float) in .reserved, and the rows of its matrix in .bytes; of a part of
                 // a tensor, the elements of the whole one there, and in `part` kIsPart + the first element of the part
    kGroup,      // the world rank `rank` asks for a group of the world ranks in `numbers` (32 bits each)
    kAbort,      // of the member's group, with the reason in `numbers` (characters); a ticket is optional
    kDeadline,   // of the operation or message whose ticket this is: `time_limit` from now on
    kSend,       // of a member to the rank `rank` of its group: `count` elements of `type` from `input`
    kReceive,    // from there, into `output`
    // An endpoint's. The first five have no ticket.
    kListen,           // from now on, by the listener
    kCloseListener,    // with what nobody has accepted; no other command names it afterwards
    kConnect,          // by the handle in `numbers`, which stays until the connection is made or has failed
    kAbortConnection,  // with the reason in `numbers` (characters), which stays until the connection is closed
    kCloseConnection,  // and what it has under way; no other command names it afterwards
    kSendOn,           // a connection: `input`, all of it, under `tag`
    kReceiveOn,        // a connection: what comes under `tag`, into `output`
    kStats,            // the counters of its rails, into `output`
    // Again an engine's: a member's error feedback, while no operation of its is pending.
    kSaveFeedback,     // into `output`, if that has room; its size, 8 bytes, into `numbers` in any case
    kRestoreFeedback,  // from `input`
    kFeedbackGain,     // of tensor `count` (0: all): gain and norm of the residual, two 8-byte floats, into `output`
    kTopKRoots,        // how often each rank was the root of its artopk: `count` numbers (8 bytes each) into `output`
    kPartial,          // an all-reduce among some ranks of a member's group, this one among them: type, redop, count,
                       // buffers as kOperation has them; numbers (8 bytes each): kPartialHead words, and the ranks;
                       // `rank`: 1 if weights count, else 0
    // A session of a member (port/session.h), which has the caller's number `count`.
    kOpenSession,   // numbers: kSessionHead words, then kSessionColayer for each colayer
    kPush,          // the gradient of colayer `rank` from `input`
    kStep,          // `rank`: a SessionStep; sums of all colayers, one behind the other, into `output`, and a
                    // SessionResult into `numbers`
    kThresholds,    // from now on; numbers: kSessionHead words
    kCloseSession,  // no other command names it afterwards
    kPolicy,        // of a member's policy that asks (port/policy.h), which has the caller's number `count`; `rank`: a
                    // PolicyStep. kOpen: its name in `input` (characters), the host of each rank in `numbers` (8 bytes
                    // each); kAsk: kQuestionWords in `numbers`; kNext: a PolicyAnswer with room for all members into
                    // `output`, `type`: 1 waits for one
  } kind = Kind::kNone;
  std::uint8_t collective = 0;
  std::uint8_t priority = 0;      // operations and messages: a canary_priority
  std::uint8_t more_follows = 0;  // kReceiveOn: 1: the next command is of the same unit
  std::int32_t rank = -1;         // kOperation: the root
  std::int32_t type = 0;
  union {
    std::int32_t redop = 0;
    std::uint32_t tag;  // kSendOn, kReceiveOn
  };
  MemberId member;
  TicketId ticket;
  std::uint64_t count = 0;
  std::int64_t time_limit = 0;  // nanoseconds; operations and messages: 0 is none
  MemoryRef input;
  MemoryRef output;
  MemoryRef numbers;
  union {
    ConnectionId connection{};  // kListen, kCloseListener: the listener
    std::uint64_t part;         // kOperation; without kIsPart: it is none
  };

  static constexpr std::uint64_t kIsPart = std::uint64_t{1} << 63;
  bool is_part() const { return (part & kIsPart) != 0; }
  ListenerId listener() const { return {connection.place, connection.use}; }
};
static_assert(sizeof(Command) == 128 && std::is_trivially_copyable_v<Command>);

// What stands before the ranks of a kPartial.
enum PartialWord : std::size_t {
  kPartialNumber,
  kPartialWeight,  // the bits of a double
  kPartialCodec,
  kPartialTensor,
  kPartialMomentum,  // the bits of a float
  kPartialHead
};

// Receives in one unit.
inline constexpr std::size_t kUnitMax = 8;
// A message has less than 1 TiB.
inline constexpr std::uint64_t kMessageBytesMax = (std::uint64_t{1} << 40) - 1;
// The length of the handle by which a listener is reached.
inline constexpr std::size_t kHandleBytes = 128;

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
  std::uint32_t codec = 0;                            // all_reduce: the number of a codec (compress/spec.h); 0: none
  std::uint64_t tensor = 0;  // with a codec: whose error feedback takes what is left out; 0: nobody's
  float momentum = 0;        // with a tensor and a sparsifier: of this rank's gradients (compress/error_feedback.h)
  std::uint64_t rows = 0;    // with a codec of matrices: so many, each count / rows numbers; 0: it is none
  // With a tensor and without rows: the values are elements part_begin, ... of a tensor of part_of; 0: all of it.
  std::uint64_t part_of = 0, part_begin = 0;
  std::uint32_t carries = 0;  // of a phase of a chain: the number of the codec whose values it all-reduces; 0: none
};

}  // namespace canarynet

namespace canarynet::port {

// The command that asks for `request`, whose memory is this process's. It need not make sense: nothing of it is looked
// at but the counts, which are as long as they say.
Command operation(MemberId member, const MemberShape& shape, const OpRequest& request, TicketId ticket);
// The way back, of a command that was checked.
OpRequest request_of(const Command& command, const Regions& regions);

// The all-reduce that a kPartial is, with its codec where a kOperation has it. Its words were checked.
Command all_reduce_of(const Command& partial, const Regions& regions);

// The tensor of an all-reduce with a codec; 0: none.
inline std::uint64_t tensor_of(const Command& c) {
  const bool all_reduce = c.collective == static_cast<std::uint8_t>(Collective::kAllReduce);
  return c.kind == Command::Kind::kOperation && all_reduce ? c.numbers.offset : 0;
}

// Of an all-reduce.
inline std::uint64_t rows_of(const Command& c) { return c.is_part() ? 0 : c.numbers.bytes; }
inline std::uint64_t part_of(const Command& c) { return c.is_part() ? c.numbers.bytes : 0; }
inline std::uint64_t part_begin_of(const Command& c) { return c.is_part() ? c.part & ~Command::kIsPart : 0; }
inline float momentum_of(const Command& c) { return std::bit_cast<float>(c.numbers.reserved); }

Command save_feedback(MemberId member, std::span<std::byte> to, std::uint64_t* size, TicketId ticket);
Command restore_feedback(MemberId member, std::span<const std::byte> from, TicketId ticket);
struct FeedbackGain {
  double gain = 1;
  double residual_norm = 0;
};
Command feedback_gain(MemberId member, std::uint64_t tensor, FeedbackGain* to, TicketId ticket);
Command top_k_roots(MemberId member, std::span<std::uint64_t> to, TicketId ticket);

// `numbers` as kPartial has them: what `request` says of a codec does not count.
Command partial(MemberId member, const OpRequest& request, std::span<const std::uint64_t> numbers, bool weighted,
                TicketId ticket);

// `numbers` as kOpenSession has them.
Command open_session(MemberId member, std::uint64_t session, std::span<const std::uint64_t> numbers, TicketId ticket);
Command push(MemberId member, std::uint64_t session, int colayer, std::span<const float> gradient, TicketId ticket);
Command step(MemberId member, std::uint64_t session, SessionStep what, std::span<float> sums, SessionResult* result,
             TicketId ticket);
Command thresholds(MemberId member, std::uint64_t session, std::span<const std::uint64_t> numbers, TicketId ticket);
Command close_session(MemberId member, std::uint64_t session, TicketId ticket);

Command open_policy(MemberId member, std::uint64_t policy, std::string_view name, std::span<const std::uint64_t> hosts,
                    TicketId ticket);
Command ask_policy(MemberId member, std::uint64_t policy, std::span<const std::uint64_t> question, TicketId ticket);
Command next_answer(MemberId member, std::uint64_t policy, std::span<std::byte> to, bool waits, TicketId ticket);
Command leave_policy(MemberId member, std::uint64_t policy, TicketId ticket);
Command close_policy(MemberId member, std::uint64_t policy, TicketId ticket);

Command group(int world_rank, std::span<const std::int32_t> ranks, TicketId ticket);
Command abort(MemberId member, std::string_view reason, TicketId ticket = kNoTicket);
Command deadline(MemberId member, TicketId ticket, Nanos from_now);

// Further terms that a caller may set for a message.
struct Terms {
  canary_priority priority = CANARY_PRIORITY_NORMAL;
  Nanos time_limit{};  // 0: none; else from submission
};
Command send(MemberId member, int to, const void* data, std::uint64_t count, DataType type, TicketId ticket,
             const Terms& terms = {});
Command receive(MemberId member, int from, void* data, std::uint64_t count, DataType type, TicketId ticket,
                const Terms& terms = {});

Command listen(ListenerId listener);
Command close(ListenerId listener);
Command connect(ConnectionId connection, std::span<const std::byte> handle);
Command abort_connection(ConnectionId connection, std::string_view reason);
Command close(ConnectionId connection);
Command send(ConnectionId connection, const void* data, std::uint64_t bytes, std::uint32_t tag, TicketId ticket,
             const Terms& terms = {});
Command receive(ConnectionId connection, void* data, std::uint64_t bytes, std::uint32_t tag, TicketId ticket,
                const Terms& terms = {});
Command stats(void* rails, std::uint64_t bytes, TicketId ticket);

}  // namespace canarynet::port
