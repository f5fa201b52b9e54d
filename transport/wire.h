// transport/wire.h -- every byte Canary puts on a lane. Little-endian; one 48-byte header before each payload.
//
//   0        2     3     4              8              12             16
//   | magic  | ver | kind| payload      | flow         | epoch        |
//   16             20             24      26      28             32
//   | op           | signature    | step  | source| piece        |
//   32      34    35    36             40             44             48
//   | dest  |codec|flags| lane_sequence| payload_crc32| header_crc32 |
//
// Identity of a piece: {flow, epoch, op, step, source, destination, piece}. source and destination are ranks within the
// flow's group (k local ranks: two ranks of one engine may get the same piece).
// header_crc32: CRC32C of the first 44 bytes, checked before anything else is believed. payload_crc32: CRC32C of the
// plaintext.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace canarynet::wire {

inline constexpr std::uint16_t kMagic = 0xCA9A;
// The version of all frames but greetings. 2: a piece may have its signature behind it (kSigned), engines say that they
// leave, and ask to be dialled. 3: a signature says by which measured table its planner was chosen, and groups agree on
// such tables (decision_wire.h). 4: such tables choose codecs, too. 5: their rows say why they are what they are.
// 6: null pieces. 7: tables have an order of ranks. 8: acks tell when their last frame arrived, and what
// the NIC that got it had received by then. 9: another engine may come to coordinate (control/messages.h). 10: partial
// all-reduces have codecs, and policies say who is behind. 11: rounds of sessions carry how late gradients were.
inline constexpr std::uint8_t kVersion = 11;
// The version of greetings: a hello, and the refusal (kAbort) that may answer it, are the same in every version, so
// that two versions can tell each other apart by name. A hello says in its payload which versions its sender speaks.
inline constexpr std::uint8_t kGreetingVersion = 1;
inline constexpr std::uint32_t kPayloadMax = 1u << 20;  // largest payload of any frame; equals the largest piece
inline constexpr std::uint32_t kRanksMax = 65535;       // of a job: a header has 16 bits for one

enum class Kind : std::uint8_t {
  kHello = 1,      // first frame in each direction of a lane: who is there (HelloPayload)
  kPiece = 2,      // payload: elements of one piece, none if all their bytes are zero (null piece); with kSigned, a
                   // SignaturePayload behind them
  kSignature = 3,  // a rank entered an operation: its full arguments; also "READY": all its pieces have a place now.
                   // By itself where the rank's first piece for the receiver is large, or not ready yet
  kAck = 4,        // arrived whole and valid: cumulative sequence + bitmap, when, and what came by the
                   // NIC until then (AckPayload)
  kHeartbeat = 5,  // alive; carries the last operation entered and an RTT echo (HeartbeatPayload)
  kAbort = 6,      // a group's epoch is dead: the verdict (AbortPayload, text behind it)
  kGoodbye = 7,    // the peer closes on purpose: what follows is not a death
  kControl = 8,    // membership messages (control/messages.h), on control lanes only
  kVoid = 9,       // the frame with this lane_sequence was taken back before it left; the sequence counts
  kProbe = 10,     // the payload says nothing: the lane is to show what it carries; the sequence counts
};

// flags
inline constexpr std::uint8_t kSequenced = 1;  // lane_sequence counts; acked and resent (pieces, signatures)
inline constexpr std::uint8_t kAckNow = 2;     // the sender waits for the ack (heartbeat: for its echo)
inline constexpr std::uint8_t kUnchecked = 4;  // payload_crc32 says nothing; in shared memory only (CANARY_SHM_CRC)
inline constexpr std::uint8_t kSigned = 8;  // of an operation's piece: the sender's signature lies behind its elements

// Frames that speak about a lane rather than travel on it overtake the queued ones: an acknowledgement that waits
// behind our own data doubles the peer's round trip. Sequenced frames keep their order, or the receiver would see
// holes.
constexpr bool overtakes(Kind kind) {
  return kind == Kind::kHello || kind == Kind::kAck || kind == Kind::kHeartbeat || kind == Kind::kAbort;
}

struct Header {
  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  Kind kind = Kind::kPiece;
  std::uint32_t payload_bytes = 0;  // excludes this header; at most kPayloadMax
  std::uint32_t flow = 0;         // numbered sequence between engines: a group's collectives; messages: message_wire.h
  std::uint32_t epoch = 0;        // generation of the group's membership
  std::uint32_t op = 0;           // number of the operation in its flow, from 1
  std::uint32_t signature = 0;    // hash of the operation's arguments
  std::uint16_t step = 0;         // tag of the send step in the sender's plan
  std::uint16_t source = 0;       // rank in the group
  std::uint32_t piece = 0;        // number within the step, from 0
  std::uint16_t destination = 0;  // rank in the group
  std::uint8_t codec = 0;         // 0: plain elements
  std::uint8_t flags = 0;
  std::uint32_t lane_sequence = 0;  // per lane and direction, from 1; 0 on frames that are not sequenced
  std::uint32_t payload_crc32 = 0;  // CRC32C of the payload; 0 for an empty one, and with kUnchecked
  std::uint32_t header_crc32 = 0;   // CRC32C of the 44 bytes before
};
static_assert(sizeof(Header) == 48);
static_assert(offsetof(Header, payload_bytes) == 4 && offsetof(Header, flow) == 8 && offsetof(Header, epoch) == 12);
static_assert(offsetof(Header, op) == 16 && offsetof(Header, signature) == 20 && offsetof(Header, step) == 24);
static_assert(offsetof(Header, source) == 26 && offsetof(Header, piece) == 28 && offsetof(Header, destination) == 32);
static_assert(offsetof(Header, codec) == 34 && offsetof(Header, flags) == 35 && offsetof(Header, lane_sequence) == 36);
static_assert(offsetof(Header, payload_crc32) == 40 && offsetof(Header, header_crc32) == 44);
static_assert(std::has_unique_object_representations_v<Header>);
static_assert(std::is_trivially_copyable_v<Header>);

// Sets header_crc32. Call last, after every other field (lane_sequence included) is set.
void seal(Header& header);

// nullptr when the header can be believed, else the reason it can't ("magic", "version", "header crc", "kind", "payload
// too large").
// Checks what is the same for all kinds; what a kind may say is looked at in frames.h, and whether flow, op or ranks
// exist is the receiver's to know.
const char* validate(const Header& header);
// The reason that validate() gave, for a message to users: of another version both are named.
std::string explain(const char* reason, const Header& header);

// CRC32C over a payload as it goes into payload_crc32 (0 for an empty one).
std::uint32_t payload_crc(const void* data, std::size_t bytes);

// --- payloads --------------------------------------------------------------------------------------------------------

// Hello: the dialling side sends it first; the accepting side answers with its own before anything else.
struct HelloPayload {
  std::uint64_t job =
      0;  // token made by the coordinator at join: strangers and old runs are turned away; 0 on control lanes
  std::uint32_t engine = 0;     // the sender's engine number; 0xffffffff: not known yet (control lanes before the join)
  std::uint32_t target = 0;     // the engine the sender believes to reach
  std::uint16_t rail = 0;       // the sender's rail number; 0xffff on a control lane
  std::uint16_t peer_rail = 0;  // the receiver's rail number as the sender sees it
  std::uint16_t lane = 0;       // index among the lanes of this rail pair
  std::uint16_t version_min = kVersion;
  std::uint16_t version_max = kVersion;
  std::uint16_t purpose = 0;  // HelloPurpose
  std::uint32_t paths = 0;    // kHelloEndpoint: how many paths the dialling side opens in all; else 0
};
static_assert(sizeof(HelloPayload) == 32 && std::has_unique_object_representations_v<HelloPayload>);
// kHelloEndpoint: no job; `job` is the token of the endpoint that is dialled (from its handle), engine and target are
// the low and the high half of a random name of the dialling side's channel.
enum HelloPurpose : std::uint16_t { kHelloChannel = 1, kHelloControl = 2, kHelloEndpoint = 3 };
inline std::uint64_t channel_name(const HelloPayload& hello) {
  return std::uint64_t{hello.target} << 32 | hello.engine;
}
// The header of a greeting with that payload, sealed.
Header greeting(Kind kind, const void* payload, std::size_t bytes);

// Ack: `cumulative` = highest sequence such that it and all before it arrived; word i, bit b of the bitmap = sequence
// cumulative + 1 + 64 i + b arrived. Only as many words as needed follow (payload_bytes = kAckFixedBytes + 8 * words).
inline constexpr int kAckWordsMax = 16;  // 1024 sequences
inline constexpr std::uint32_t kAckFixedBytes = 24;
struct AckPayload {
  std::uint32_t cumulative = 0;
  std::uint32_t words = 0;
  std::uint64_t arrived_ns = 0;    // when the last of them did, by the clock of this frame's sender
  std::uint64_t nic_received = 0;  // bytes of all channels that had come by the sender's NIC by then
  std::uint64_t bitmap[kAckWordsMax] = {};
};
static_assert(sizeof(AckPayload) == kAckFixedBytes + 8 * kAckWordsMax &&
              std::has_unique_object_representations_v<AckPayload>);

// Bits of a group's number that say that no coordinator handed it out: of a partial all-reduce, it follows from the
// arguments of the call (engine/partial.h). The bits above say what kind of flow it is.
inline constexpr std::uint32_t kPartialFlow = 0x20000000;
constexpr bool is_partial(std::uint32_t flow) { return flow >> 29 == 1; }

// Signature: the full arguments of one rank's call, compared field by field on every neighbour. Lists of counts are as
// long as the group, so they travel as sums that tell where two lists differ in one place, a checksum, and their first
// entries.
inline constexpr std::size_t kSignatureCounts = 8;
struct SignaturePayload {
  std::uint64_t count = 0;          // elements, as the caller counts them; all-gather-v: of all blocks
  std::uint32_t collective = 0;     // Collective
  std::uint32_t type = 0;           // DataType
  std::uint32_t redop = 0;          // ReduceOp; 0 where there is none
  std::int32_t root = -1;           // rank in the group; -1 where there is none
  std::uint32_t planner = 0;        // PlannerId of the chosen schedule
  std::uint32_t piece_bytes = 0;    // grid
  std::uint32_t members = 0;        // ranks in the group
  std::uint32_t world_rank = 0;     // of the caller, for the message
  std::uint32_t counts_crc = 0;     // all-gather-v: CRC32C of the counts
  std::uint32_t table = 0;          // identity of the measured table that was in force; 0: none was
  std::uint64_t counts_moment = 0;  // all-gather-v: sum of (i + 1) * count i, modulo 2^64
  std::uint64_t counts[kSignatureCounts] =
      {};  // all-gather-v: the first ones; all-to-all-v: elements to the receiver of this
           // signature, elements from it; all-reduce: number of its codec, tensor,
           // phase and root of its chain (engine/operation_chain.h), rows of its matrix; if it is
           // partial, which an odd counts_crc says (its list of ranks; its number is in
           // counts_moment): [2] to [6] the first ranks, [7] its part
};
static_assert(sizeof(SignaturePayload) == 120 && std::has_unique_object_representations_v<SignaturePayload>);

// A signature is a kSignature frame's payload, or lies behind the elements of a piece with kSigned.
inline bool has_signature(const Header& h) {
  return h.kind == Kind::kSignature || (h.kind == Kind::kPiece && (h.flags & kSigned) != 0);
}
constexpr std::uint32_t signed_bytes(std::uint32_t elements_bytes) {
  return elements_bytes + static_cast<std::uint32_t>(sizeof(SignaturePayload));
}
// Heartbeat: one frame per lane and interval. header.flow/epoch/op/source = a group (they take turns), the last
// operation that rank entered in it. Times are the sender's own clock, echoed back unread.
struct HeartbeatPayload {
  std::uint64_t sent_ns = 0;
  std::uint64_t echo_ns = 0;       // sent_ns of the last heartbeat heard; 0 = none
  std::uint64_t echo_held_ns = 0;  // how long it was held here
};
static_assert(sizeof(HeartbeatPayload) == 24 && std::has_unique_object_representations_v<HeartbeatPayload>);

// Abort: header.flow/epoch name the group (flow 0: every group with that rank in it); text_bytes of UTF-8 follow.
inline constexpr std::uint32_t kAbortTextMax = 960;
struct AbortPayload {
  std::uint32_t code = 0;  // canary_status
  std::int32_t rank = -1;  // culprit, world rank
  std::int64_t op = -1;
  std::uint64_t elapsed_ns = 0;
  std::uint32_t reporter = 0;  // engine that saw it first
  std::uint32_t text_bytes = 0;
};
static_assert(sizeof(AbortPayload) == 32 && std::has_unique_object_representations_v<AbortPayload>);

}  // namespace canarynet::wire
