// control/messages.h -- what engines say to the coordinator and back: the payloads of kControl frames.
//
// What: one struct per message, encode() to bytes and a decoder that believes nothing. First byte: kind; second:
// format; then the fields, little-endian, strings and lists with their lengths in front.
// Memory: values; decoding allocates no more than about the message's own size. Any thread.
// Failures: decode() gives CANARY_SYSTEM with the field that is wrong. Bytes left over are an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "control/membership.h"

namespace canarynet::control {

inline constexpr std::uint8_t kFormat = 3;
inline constexpr std::size_t kNameMax = 255;      // host names, host ids, devices: longer ones are cut
inline constexpr std::size_t kTextMax = 4096;     // reasons: longer ones are cut
inline constexpr std::size_t kSettingMax = 1024;  // "name=value"
inline constexpr std::uint32_t kWorldMax = wire::kRanksMax;
// Of groups: the bits above say what kind of flow it is, and the highest below them that nobody handed it out.
inline constexpr std::uint32_t kFlowsMax = (1u << 29) - 2;
inline constexpr std::uint32_t kEnginesMax = 65535;
inline constexpr std::size_t kObstacleTextMax = 256;       // likewise, in a report of missed engines
inline constexpr std::uint32_t kWaitingGroupsMax = 65535;  // in a report of missed engines, per engine
inline constexpr std::uint32_t kLastWordsMax = 32768;      // 16 bytes each: they fit one frame; more are not said
inline constexpr std::size_t kPolicyNameMax = 255;
inline constexpr std::size_t kWelcomeBytes = 256 * 1024;  // a roster travels in parts of about this size

// To the coordinator, once: who is there.
struct Join {
  EngineInfo engine;  // its number is not known yet
  std::uint32_t world_size = 0;
  std::vector<std::string> must_agree;
};
// To every engine when all are there: part of the roster, in order. The same bytes for all: each finds itself by its
// ranks.
struct Welcome {
  std::uint64_t job = 0;
  std::uint32_t world_size = 0;
  std::uint32_t engines = 0;  // in all
  std::uint32_t first = 0;    // number of the first one in this part
  std::int64_t piece_bytes = 0;
  std::uint64_t epoch_seed = 0;
  std::vector<EngineInfo> part;
};
// The join failed, or this engine is not wanted any more.
struct Refuse {
  canary_status code = CANARY_JOIN;
  std::int32_t rank = -1;  // culprit
  std::string host;
  std::string text;
};
struct GroupRequest {
  std::uint32_t request = 0;  // numbered per engine, from 1
  std::uint32_t settled = 0;  // the answers of all before this number have come
  std::uint32_t rank = 0;     // who asks
  std::vector<int> members;   // world ranks
};
struct GroupCreated {
  std::uint32_t request = 0;
  std::uint32_t flow = 0;
};
struct GroupFailed {
  std::uint32_t request = 0;
  canary_status code = CANARY_ENTRY_TIMEOUT;
  std::int32_t rank = -1;
  std::string host;
  std::string text;
};
struct VerdictNote {
  Verdict verdict;
};
// The coordinator says that this engine's process ended. To a successor: its predecessor said so.
struct Death {
  std::uint32_t engine = 0;
  std::string why;
  bool sure = true;  // else it may have left, with nobody there to hear it
};
// To the coordinator: what follows is no death.
struct Leave {
  std::vector<LastWord> words;
};
// From the coordinator: that engine left, perhaps the coordinator itself. To a successor: its predecessor said so.
struct Left {
  std::uint32_t engine = 0;
  std::vector<LastWord> words;
};
// Both ways. From the coordinator: one bit per engine that it heard since the last one.
struct Heartbeat {
  std::vector<std::uint64_t> heard;
};
// To the coordinator, on a new connection that takes the place of a silent one, or to one that succeeds another.
struct Rejoin {
  std::uint64_t job = 0;
  std::uint32_t engine = 0;
  std::uint32_t attempt = 0;      // counts up: an older one that comes late is ignored
  std::uint32_t coordinator = 0;  // the engine that is meant
  std::uint32_t forgotten = 0;    // the sender can't tell any more which groups it had up to this flow
};
struct Rejoined {
  std::uint32_t attempt = 0;
};
// Both ways: the sender gives this connection up, which was never answered, or which it can't read any more. To the
// coordinator: its end is no death. From it: dial again.
struct Retract {};
// To the coordinator: all that the sender misses, as far as it fits; takes the place of its report before.
struct MissReport {
  std::vector<Missed> missed;
};
// To the coordinator, and from it to everybody: who has entered what in the group?
struct EntryQuestion {
  GroupEpoch group;
};
// To the coordinator: what the sender knows. From it: what everybody knows.
struct EntryState {
  Entered entered;
};

// To the coordinator: let that engine, whose part it is to dial, connect to the sender. From it: that engine asks to be
// connected to.
struct ConnectRequest {
  std::uint32_t engine = 0;
};

// To a successor: a group that its predecessor formed, as that one told the sender's rank.
struct GroupKnown {
  std::vector<int> ranks;  // those of the sender's that were told
  std::uint32_t flow = 0;
  std::vector<int> members;  // world ranks
};
// To the coordinator: all that the sender had to say on this connection at first has been said.
struct Testified {};

// Between them: PolicyWord to the coordinator, PolicyReply from it (control/policy_word.h).
using Message = std::variant<Join, Welcome, Refuse, GroupRequest, GroupCreated, GroupFailed, VerdictNote, Death, Leave,
                             Left, Heartbeat, Rejoin, Rejoined, Retract, MissReport, EntryQuestion, EntryState,
                             ConnectRequest, PolicyWord, PolicyReply, GroupKnown, Testified>;

std::vector<std::byte> encode(const Message& message);
Result<Message> decode(std::span<const std::byte> bytes);

// Bytes that one engine takes in a Welcome.
std::size_t welcome_bytes(const EngineInfo& engine);

}  // namespace canarynet::control
