#include "port/command_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "port/check_parts.h"
#include "port/policy_check.h"
#include "port/session_check.h"

namespace canarynet::port {
namespace {

// A command to run a collective, and what follows from it and its caller.
struct Call {
  const Command& command;
  MemberShape member;
  std::span<const std::uint64_t> counts;
  Collective collective = static_cast<Collective>(command.collective);
  std::size_t element = size_of(static_cast<DataType>(command.type));
  std::size_t size = static_cast<std::size_t>(member.size);
  std::size_t rank = static_cast<std::size_t>(member.rank);
  bool is_root = command.rank == member.rank;

  // Elements from the begin of a buffer to the end of the last block in it; without regard to the root.
  std::uint64_t extent(bool all_blocks, std::size_t list) const {
    if (collective == Collective::kBarrier) return 0;
    if (!has_counts(collective)) return all_blocks ? command.count * size : command.count;
    if (collective == Collective::kAllGatherV) return all_blocks ? command.count : counts[rank];
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint64_t count = counts[list * size + i];
      if (count != 0) end = std::max(end, counts[(list + 1) * size + i] + count);
    }
    return end;
  }
  std::uint64_t input_bytes() const {
    return reads_input(collective, is_root) ? extent(input_in_blocks(collective), 0) * element : 0;
  }
  std::uint64_t output_bytes() const {
    return writes_output(collective, is_root) ? extent(output_in_blocks(collective), 2) * element : 0;
  }
};

std::size_t lists_of(Collective c) { return c == Collective::kAllToAllV ? 4 : c == Collective::kAllGatherV ? 1 : 0; }

// --- counts ----------------------------------------------------------------------------------------------------------

// Whether the list has its length and lies where it can be read.
Status check_list(const Command& c, const MemberShape& member, const Regions& regions) {
  if (static_cast<Collective>(c.collective) == Collective::kAllReduce) return {};  // its rows are there
  const std::size_t numbers = lists_of(static_cast<Collective>(c.collective)) * static_cast<std::size_t>(member.size);
  const std::uint64_t bytes = numbers * sizeof(std::uint64_t);
  if (c.numbers.bytes != bytes) {
    return wrong("its list of counts has " + std::to_string(c.numbers.bytes) + " bytes: takes " +
                 std::to_string(bytes) + ", " + std::to_string(numbers) + " numbers in a group of " +
                 std::to_string(member.size));
  }
  if (bytes == 0) return {};
  if (c.numbers.nowhere()) return wrong("counts are NULL");
  if (!regions.has(c.numbers)) {
    return wrong("its list of counts lies outside of region " + std::to_string(c.numbers.region));
  }
  if (reinterpret_cast<std::uintptr_t>(regions.at(c.numbers)) % alignof(std::uint64_t) != 0)
    return wrong("its list of counts is not aligned to 8 bytes");
  return {};
}

Status check_counts(const Call& call) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < call.counts.size(); ++i) {
    const std::uint64_t most = kBytesMax / call.element;
    sum += std::min(call.counts[i], most + 1);  // displacements as well: no sum of them wraps
    if (call.counts[i] > most || (sum > most && call.collective == Collective::kAllGatherV)) {
      return wrong("count " + std::to_string(call.counts[i]) + " of rank " + std::to_string(i % call.size) +
                   " is too large");
    }
  }
  if (call.collective == Collective::kAllGatherV && sum != call.command.count) {
    return wrong("count " + std::to_string(call.command.count) + " is not the sum of the counts, " +
                 std::to_string(sum));
  }
  if (call.collective != Collective::kAllToAllV) return {};
  const std::uint64_t sends = call.counts[call.rank], receives = call.counts[2 * call.size + call.rank];
  if (sends == receives) return {};
  return wrong("rank " + std::to_string(call.rank) + " sends " + std::to_string(sends) +
               " elements to itself and receives " + std::to_string(receives));
}

// --- buffers ---------------------------------------------------------------------------------------------------------

// Bytes that a call reads or writes.
struct Range {
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;
  const char* what = "";
  bool written = false;
};

bool meet(const Range& a, const Range& b) {
  if (a.bytes == 0 || b.bytes == 0) return false;
  return a.begin <= b.begin ? b.begin - a.begin < a.bytes : a.begin - b.begin < b.bytes;
}

std::string text_of(const Range& r) {
  char text[64];
  std::snprintf(text, sizeof text, " [0x%llx, 0x%llx)", static_cast<unsigned long long>(r.begin),
                static_cast<unsigned long long>(r.begin + r.bytes));
  return r.what + std::string(text);
}

// Where, in elements, one of both begins in the other when the operation is done in place, and how callers write that;
// -1: never in place.
struct InPlace {
  std::int64_t input_at = -1;   // in the output
  std::int64_t output_at = -1;  // in the input
  const char* written = "";
};
InPlace in_place(const Call& call) {
  const auto own_block = static_cast<std::int64_t>(call.rank * call.command.count);
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      return {0, 0, "output == input"};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {-1, own_block, "output == input + rank * count"};
    case Collective::kAllGather:
    case Collective::kGather:
      return {own_block, -1, "input == output + rank * count"};
    case Collective::kAllGatherV: {
      std::uint64_t before = 0;
      for (std::size_t i = 0; i < call.rank; ++i) before += call.counts[i];
      return {static_cast<std::int64_t>(before), -1, "input == output + the counts of the ranks before"};
    }
    default:
      return {};
  }
}

// The first two of them that meet, of which one is written.
Status check_apart(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& r) { return r.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* read = nullptr;  // that reaches farthest, of those before
  const Range* wrote = nullptr;
  for (const Range& r : ranges) {
    const Range* other = wrote != nullptr && meet(*wrote, r)              ? wrote
                         : r.written && read != nullptr && meet(*read, r) ? read
                                                                          : nullptr;
    if (other != nullptr) return wrong(text_of(*other) + " and " + text_of(r) + " overlap");
    const Range*& farthest = r.written ? wrote : read;
    if (farthest == nullptr || r.begin + r.bytes > farthest->begin + farthest->bytes) farthest = &r;
  }
  return {};
}

// Each block that all_to_all_v receives has a place of its own.
Status check_blocks(const Call& call, std::uintptr_t input, std::uintptr_t output) {
  std::vector<Range> blocks;
  blocks.reserve(2 * call.size);
  for (std::size_t list : {std::size_t{0}, std::size_t{2}}) {
    for (std::size_t i = 0; i < call.size; ++i) {
      blocks.push_back({(list == 0 ? input : output) + call.counts[(list + 1) * call.size + i] * call.element,
                        call.counts[list * call.size + i] * call.element,
                        list == 0 ? "a block of the input" : "a block of the output", list == 2});
    }
  }
  return check_apart(std::move(blocks));
}

// Whether the blocks of one list lie one behind the other, as they nearly always do.
bool ascending(const Call& call, std::size_t list) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < call.size; ++i) {
    const std::uint64_t count = call.counts[list * call.size + i], at = call.counts[(list + 1) * call.size + i];
    if (count == 0) continue;
    if (at < end) return false;
    end = at + count;
  }
  return true;
}

Status check_overlap(const Call& call, std::uint64_t in, std::uint64_t out, const Regions& regions) {
  const Range input{reinterpret_cast<std::uintptr_t>(regions.at(call.command.input)), in, "input", false};
  const Range output{reinterpret_cast<std::uintptr_t>(regions.at(call.command.output)), out, "output", true};
  if (call.collective == Collective::kAllToAllV) {
    const bool plain = !meet(input, output) && ascending(call, 2);
    return plain ? Status() : check_blocks(call, input.begin, output.begin);
  }
  if (!meet(input, output)) return {};
  const InPlace allowed = in_place(call);
  const auto is_at = [&](const Range& inner, const Range& outer, std::int64_t at) {
    return at >= 0 && inner.begin == outer.begin + static_cast<std::uint64_t>(at) * call.element;
  };
  if (is_at(input, output, allowed.input_at) || is_at(output, input, allowed.output_at)) return {};
  const std::string both = text_of(input) + " and " + text_of(output) + " overlap";
  if (*allowed.written == '\0') return wrong(both);
  return wrong(both + ": in place is " + allowed.written);
}

// --- kinds -----------------------------------------------------------------------------------------------------------

Status check_type(const Command& c) {
  if (c.type >= 0 && c.type < kDataTypeCount) return {};
  return wrong("type " + std::to_string(c.type) + " is not a canary_type");
}

Status check_terms(const Command& c) {
  if (c.priority > CANARY_PRIORITY_URGENT)
    return wrong("priority " + std::to_string(c.priority) + " is not a canary_priority");
  if (c.time_limit >= 0 && c.time_limit <= kTimeLimitMax) return {};
  return wrong("a time limit of " + std::to_string(c.time_limit) + " ns");
}

Status check_part(const Command& c) {
  if (!c.is_part()) return {};
  if (c.numbers.offset == 0) return wrong("a part without a tensor");
  const std::uint64_t all = part_of(c), begin = part_begin_of(c);
  if (all <= kBytesMax && c.count != 0 && begin <= all && c.count <= all - begin) return {};
  return wrong("elements " + std::to_string(begin) + " and the " + std::to_string(c.count) +
               " from there on are no part of a tensor of " + std::to_string(all));
}

// Whether its number names a codec is the engine's to know.
Status check_coding(const Command& c) {
  if (c.collective != static_cast<std::uint8_t>(Collective::kAllReduce)) return {};
  const std::uint32_t codec = c.numbers.region;
  const float momentum = momentum_of(c);
  if (!(momentum >= 0 && momentum < 1)) {
    return wrong("a momentum of " + std::to_string(momentum) + ", from 0 to below 1 is possible");
  }
  if (momentum != 0 && c.numbers.offset == 0) return wrong("momentum without a tensor");
  const std::uint64_t rows = rows_of(c);
  if (Status part = check_part(c); !part.ok()) return part;
  if (codec == 0 && rows != 0) return wrong(std::to_string(rows) + " rows without a codec");
  if (codec == 0) return c.numbers.offset == 0 ? Status() : wrong("a tensor without a codec");
  if (rows != 0 && c.count % rows != 0) {
    return wrong(std::to_string(c.count) + " elements are no matrix of " + std::to_string(rows) + " rows");
  }
  if (c.type != CANARY_F32)
    return wrong("a codec takes f32, not " + std::string(name_of(static_cast<DataType>(c.type))));
  if (c.redop == CANARY_SUM || c.redop == CANARY_AVG) return {};
  return wrong("a codec takes sum and avg, not " + std::string(name_of(static_cast<ReduceOp>(c.redop))));
}

Status check_arguments(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  if (Status type = check_type(c); !type.ok()) return type;
  if (c.redop < 0 || c.redop >= kReduceOpCount)
    return wrong("redop " + std::to_string(c.redop) + " is not a canary_redop");
  if (Status terms = check_terms(c); !terms.ok()) return terms;
  if (Status coding = check_coding(c); !coding.ok()) return coding;
  if (Status list = check_list(c, *here.member, here.regions); !list.ok()) return list;
  const Call call{c, *here.member, counts_of(c, here.regions)};
  if (Status counts = check_counts(call); !counts.ok()) return counts;
  std::uint64_t total = 0;
  const bool too_large =
      __builtin_mul_overflow(c.count, std::uint64_t{call.element * call.size}, &total) || total > kBytesMax;
  if (!has_counts(call.collective) && too_large) return wrong("count " + std::to_string(c.count) + " is too large");
  if (has_root(call.collective) && (c.rank < 0 || c.rank >= here.member->size))
    return wrong("root " + std::to_string(c.rank) + " is outside of a group of " + std::to_string(here.member->size));
  const std::uint64_t in = call.input_bytes(), out = call.output_bytes();
  if (Status s = check_buffer(c.input, in, "input", here.regions); !s.ok()) return s;
  if (Status s = check_buffer(c.output, out, "output", here.regions); !s.ok()) return s;
  return check_overlap(call, in, out, here.regions);
}

Status check_operation(const Command& c, const Surroundings& here) {
  if (c.collective >= kCollectiveCount) return wrong("collective " + std::to_string(c.collective) + " does not exist");
  Status s = check_arguments(c, here);
  return s.ok() ? s : s.wrap(std::string(name_of(static_cast<Collective>(c.collective))));
}

// The list of a partial all-reduce: its number, this rank's weight, its codec, the ranks.
Status check_among(const Command& c, const Surroundings& here) {
  constexpr std::uint64_t kHead = kPartialHead;
  const std::uint64_t words = c.numbers.bytes / sizeof(std::uint64_t);
  const auto size = static_cast<std::uint64_t>(here.member->size);
  if (words <= kHead || words - kHead > size || c.numbers.bytes % sizeof(std::uint64_t) != 0) {
    return wrong(std::to_string(words > kHead ? words - kHead : 0) + " ranks of a group of " + std::to_string(size));
  }
  if (c.numbers.nowhere()) return wrong("ranks are NULL");
  if (!here.regions.has(c.numbers))
    return wrong("its list of ranks lies outside of region " + std::to_string(c.numbers.region));
  const auto* numbers = reinterpret_cast<const std::uint64_t*>(here.regions.at(c.numbers));
  if (reinterpret_cast<std::uintptr_t>(numbers) % alignof(std::uint64_t) != 0)
    return wrong("its list of ranks is not aligned to 8 bytes");
  bool listed = false, ascending = true;
  for (std::uint64_t i = kHead; i < words; ++i) {
    if (numbers[i] >= size)
      return wrong("rank " + std::to_string(static_cast<std::int64_t>(numbers[i])) + " is outside of a group of " +
                   std::to_string(size));
    ascending = ascending && (i == kHead || numbers[i - 1] < numbers[i]);
    if (!ascending && std::find(numbers + kHead, numbers + i, numbers[i]) != numbers + i)
      return wrong("rank " + std::to_string(numbers[i]) + " is listed twice");
    listed |= numbers[i] == static_cast<std::uint64_t>(here.member->rank);
  }
  if (!listed)
    return wrong("only ranks of the list call it, and rank " + std::to_string(here.member->rank) + " is not");
  if (numbers[kPartialCodec] > UINT32_MAX || numbers[kPartialMomentum] > UINT32_MAX)
    return wrong("a codec that does not exist");
  if (Status coding = check_coding(all_reduce_of(c, here.regions)); !coding.ok()) return coding;
  if (c.rank != 0 && c.rank != 1) return wrong("weights neither count nor do not");
  if (c.rank == 0) return {};
  const auto weight = std::bit_cast<double>(numbers[kPartialWeight]);
  if (!(weight >= 0) || std::isinf(weight)) return wrong("a weight of " + std::to_string(weight));
  if (c.redop != CANARY_SUM && c.redop != CANARY_AVG)
    return wrong("weights count in sum and avg, not in " + std::string(name_of(static_cast<ReduceOp>(c.redop))));
  const bool floats = c.type == CANARY_F32 || c.type == CANARY_F64 || c.type == CANARY_F16 || c.type == CANARY_BF16;
  return floats ? Status() : wrong("weights take floats, not " + std::string(name_of(static_cast<DataType>(c.type))));
}

Status check_partial(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  if (c.collective != static_cast<std::uint8_t>(Collective::kAllReduce)) return wrong("it is no all_reduce");
  if (Status type = check_type(c); !type.ok()) return type;
  if (c.redop < 0 || c.redop >= kReduceOpCount)
    return wrong("redop " + std::to_string(c.redop) + " is not a canary_redop");
  if (Status terms = check_terms(c); !terms.ok()) return terms;
  if (Status list = check_among(c, here); !list.ok()) return list;
  const Call call{c, *here.member, {}};
  if (c.count > kBytesMax / call.element / call.size)
    return wrong("count " + std::to_string(c.count) + " is too large");
  const std::uint64_t bytes = c.count * call.element;
  if (Status s = check_buffer(c.input, bytes, "input", here.regions); !s.ok()) return s;
  if (Status s = check_buffer(c.output, bytes, "output", here.regions); !s.ok()) return s;
  return check_overlap(call, bytes, bytes, here.regions);
}

Status check_group(const Command& c, const Surroundings& here) {
  if (!here.ticket) return no_such_ticket(c);
  const std::uint64_t count = c.numbers.bytes / sizeof(std::int32_t);
  if (count < 1 || count > static_cast<std::uint64_t>(here.world_size) || c.numbers.bytes % sizeof(std::int32_t) != 0) {
    return wrong("count " + std::to_string(count) + " in a world of " + std::to_string(here.world_size));
  }
  if (c.numbers.nowhere()) return wrong("ranks are NULL");
  if (!here.regions.has(c.numbers))
    return wrong("its list of ranks lies outside of region " + std::to_string(c.numbers.region));
  const auto* ranks = reinterpret_cast<const std::int32_t*>(here.regions.at(c.numbers));
  if (reinterpret_cast<std::uintptr_t>(ranks) % alignof(std::int32_t) != 0)
    return wrong("its list of ranks is not aligned to 4 bytes");
  std::vector<bool> seen(static_cast<std::size_t>(here.world_size));
  for (std::uint64_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= here.world_size)
      return wrong("rank " + std::to_string(ranks[i]) + " does not exist");
    if (seen[static_cast<std::size_t>(ranks[i])]) return wrong("rank " + std::to_string(ranks[i]) + " is listed twice");
    seen[static_cast<std::size_t>(ranks[i])] = true;
  }
  if (c.rank >= 0 && c.rank < here.world_size && seen[static_cast<std::size_t>(c.rank)]) return {};
  return wrong("only members call it, and rank " + std::to_string(c.rank) + " is not listed");
}

Status check_reason(const Command& c, const Surroundings& here) {
  if (c.numbers.bytes == 0 || (!c.numbers.nowhere() && here.regions.has(c.numbers))) return {};
  return wrong("abort: its reason lies outside of region " + std::to_string(c.numbers.region));
}

Status check_abort(const Command& c, const Surroundings& here) {
  if (!here.member) return wrong("abort: its group has been destroyed");
  if (c.ticket != kNoTicket && !here.ticket)
    return wrong("abort: nobody waits for ticket " + std::to_string(c.ticket.place));
  return check_reason(c, here);
}

// An operation that has ended by now needs no deadline: neither the member nor the ticket need be there.
Status check_deadline(const Command& c) {
  if (c.time_limit >= 0 && c.time_limit <= kTimeLimitMax) return {};
  return wrong("deadline: " + std::to_string(c.time_limit) + " ns from now: takes 0 to " +
               std::to_string(kTimeLimitMax));
}

// --- messages --------------------------------------------------------------------------------------------------------

bool sends(const Command& c) { return c.kind == Command::Kind::kSend || c.kind == Command::Kind::kSendOn; }
const MemoryRef& buffer_of(const Command& c) { return sends(c) ? c.input : c.output; }

Status check_message(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  if (Status type = check_type(c); !type.ok()) return type;
  if (c.rank < 0 || c.rank >= here.member->size)
    return wrong("peer " + std::to_string(c.rank) + " is outside of a group of " + std::to_string(here.member->size));
  if (Status terms = check_terms(c); !terms.ok()) return terms;
  if (c.count > kMessageBytesMax / size_of(static_cast<DataType>(c.type)))
    return wrong("count " + std::to_string(c.count) + " is too large");
  const std::uint64_t bytes = message_bytes(c);
  if (Status s = check_buffer(buffer_of(c), bytes, "buffer", here.regions); !s.ok()) return s;
  if (buffer_of(c).bytes == bytes) return {};
  return wrong("buffer has " + std::to_string(buffer_of(c).bytes) + " bytes: the message has " + std::to_string(bytes));
}

Status check_connection_message(const Command& c, const Surroundings& here) {
  if (!here.connection) return wrong("its connection has been closed");
  if (!here.connected) return wrong("the connection is not made yet");
  if (!here.ticket) return no_such_ticket(c);
  if (Status terms = check_terms(c); !terms.ok()) return terms;
  const MemoryRef& m = buffer_of(c);
  if (m.bytes > kMessageBytesMax) return wrong(std::to_string(m.bytes) + " bytes: a message has less than 1 TiB");
  return check_buffer(m, m.bytes, "data", here.regions);
}

// --- error feedback --------------------------------------------------------------------------------------------------

Status check_feedback(const Command& c, const Surroundings& here) {
  if (!here.member) return no_such_group();
  if (!here.ticket) return no_such_ticket(c);
  switch (c.kind) {
    case Command::Kind::kSaveFeedback:
      if (c.numbers.bytes != sizeof(std::uint64_t))
        return wrong("its size takes 8 bytes, not " + std::to_string(c.numbers.bytes));
      if (Status s = check_buffer(c.numbers, sizeof(std::uint64_t), "size", here.regions); !s.ok()) return s;
      return check_buffer(c.output, c.output.bytes, "bytes", here.regions);
    case Command::Kind::kRestoreFeedback:
      return check_buffer(c.input, c.input.bytes, "bytes", here.regions);
    case Command::Kind::kTopKRoots: {
      const auto ranks = static_cast<std::uint64_t>(here.member->size);
      if (c.count != ranks)
        return wrong(std::to_string(c.count) + " counts for a group of " + std::to_string(ranks) + " ranks");
      return check_buffer(c.output, ranks * sizeof(std::uint64_t), "counts", here.regions);
    }
    default:
      return check_buffer(c.output, sizeof(FeedbackGain), "output", here.regions);
  }
}

// --- connections -----------------------------------------------------------------------------------------------------

Status check_connect(const Command& c, const Surroundings& here) {
  if (!here.connection) return wrong("its connection has been closed");
  if (c.numbers.nowhere()) return wrong("handle is NULL");
  if (c.numbers.bytes != kHandleBytes)
    return wrong("a handle of " + std::to_string(c.numbers.bytes) + " bytes: it has " + std::to_string(kHandleBytes));
  if (!here.regions.has(c.numbers))
    return wrong("its handle lies outside of region " + std::to_string(c.numbers.region));
  return {};
}

Status check_stats(const Command& c, const Surroundings& here) {
  if (!here.ticket) return no_such_ticket(c);
  return check_buffer(c.output, here.stats_bytes, "stats: output", here.regions);
}

// Checks the commands that an endpoint takes.
Status check_of_endpoint(const Command& c, const Surroundings& here) {
  switch (c.kind) {
    case Command::Kind::kSendOn:
    case Command::Kind::kReceiveOn:
      return check_connection_message(c, here);
    case Command::Kind::kConnect:
      return check_connect(c, here);
    case Command::Kind::kAbortConnection:
      return here.connection ? check_reason(c, here) : wrong("abort: its connection has been closed");
    case Command::Kind::kCloseConnection:
      return here.connection ? Status() : wrong("close: the connection has been closed");
    case Command::Kind::kListen:
    case Command::Kind::kCloseListener:
      return here.listener ? Status() : wrong("the listener has been closed");
    case Command::Kind::kStats:
      return check_stats(c, here);
    default:
      return wrong("command " + std::to_string(static_cast<int>(c.kind)) + " is none of an endpoint's");
  }
}

// Checks the commands that an engine takes.
Status check_of_engine(const Command& c, const Surroundings& here) {
  switch (c.kind) {
    case Command::Kind::kOperation:
      return check_operation(c, here);
    case Command::Kind::kPartial: {
      Status s = check_partial(c, here);
      return s.ok() ? s : s.wrap("partial_all_reduce");
    }
    case Command::Kind::kSend:
    case Command::Kind::kReceive: {
      Status s = check_message(c, here);
      return s.ok() ? s : s.wrap(sends(c) ? "send" : "recv");
    }
    case Command::Kind::kGroup:
      return check_group(c, here);
    case Command::Kind::kAbort:
      return check_abort(c, here);
    case Command::Kind::kSaveFeedback:
    case Command::Kind::kRestoreFeedback:
    case Command::Kind::kFeedbackGain:
    case Command::Kind::kTopKRoots: {
      Status s = check_feedback(c, here);
      return s.ok() ? s : s.wrap("error feedback");
    }
    case Command::Kind::kDeadline:
      return check_deadline(c);
    case Command::Kind::kOpenSession:
    case Command::Kind::kPush:
    case Command::Kind::kStep:
    case Command::Kind::kThresholds:
    case Command::Kind::kCloseSession: {
      Status s = check_session(c, here);
      return s.ok() ? s : s.wrap(name_of_session_call(c));
    }
    case Command::Kind::kPolicy: {
      Status s = check_policy(c, here);
      return s.ok() ? s : s.wrap("policy");
    }
    default:
      return wrong("command " + std::to_string(static_cast<int>(c.kind)) + " is none of an engine's");
  }
}

bool has_priority(Command::Kind kind) {
  using K = Command::Kind;
  return kind == K::kOperation || kind == K::kPartial || kind == K::kSend || kind == K::kReceive ||
         kind == K::kSendOn || kind == K::kReceiveOn;
}

bool is_all_reduce(const Command& c) {
  return c.kind == Command::Kind::kOperation && c.collective == static_cast<std::uint8_t>(Collective::kAllReduce);
}

}  // namespace

Status check_command(const Command& c, const Surroundings& here) {
  const bool is_part = is_all_reduce(c) && c.is_part();
  const bool names_connection = !here.endpoint && c.connection != ConnectionId{} && !is_part;
  const bool has_momentum = c.numbers.reserved != 0 && !is_all_reduce(c);
  if (c.input.reserved != 0 || c.output.reserved != 0 || has_momentum || names_connection)
    return wrong("a command with bits of another version");
  if (c.more_follows > (c.kind == Command::Kind::kReceiveOn ? 1 : 0))
    return wrong("only receives of connections are followed by more");
  if (!has_priority(c.kind) && c.priority != 0) return wrong("only operations and messages have a priority");
  if (c.kind == Command::Kind::kNone || c.kind > Command::Kind::kPolicy)
    return wrong("command " + std::to_string(static_cast<int>(c.kind)) + " does not exist");
  return here.endpoint ? check_of_endpoint(c, here) : check_of_engine(c, here);
}

Status check_unit(std::span<const Command> unit, const Regions& regions) {
  if (unit.empty() || unit.size() > kUnitMax)
    return wrong("count " + std::to_string(unit.size()) + ": takes 1 to " + std::to_string(kUnitMax));
  for (std::size_t i = 0; i < unit.size(); ++i) {
    const Command& c = unit[i];
    if (c.more_follows != (i + 1 < unit.size() ? 1 : 0)) {
      return wrong("entry " + std::to_string(i) + " of " + std::to_string(unit.size()) + " says that " +
                   (c.more_follows != 0 ? "more follows" : "it is the last"));
    }
    if (c.kind != unit[0].kind) return wrong("a unit of commands of different kinds");
    if (c.connection != unit[0].connection || c.priority != unit[0].priority || c.time_limit != unit[0].time_limit)
      return wrong("entries 0 and " + std::to_string(i) + " differ in their connection, priority or time limit");
    const auto range = [&](const Command& of) {
      return Range{reinterpret_cast<std::uintptr_t>(regions.at(of.output)), of.output.bytes, "", true};
    };
    for (std::size_t j = 0; j < i; ++j) {
      const char* const what = unit[j].ticket == c.ticket       ? " have the same ticket"
                               : meet(range(unit[j]), range(c)) ? " overlap"
                                                                : nullptr;
      if (what != nullptr) return wrong("entries " + std::to_string(j) + " and " + std::to_string(i) + what);
    }
  }
  return {};
}

std::uint64_t message_bytes(const Command& c) {
  return c.type >= 0 && c.type < kDataTypeCount ? c.count * size_of(static_cast<DataType>(c.type)) : 0;
}

Lengths lengths_of(const Command& c, const MemberShape& member, std::span<const std::uint64_t> counts) {
  const auto collective = static_cast<Collective>(c.collective);
  if (counts.size() != lists_of(collective) * static_cast<std::size_t>(member.size)) return {};
  if (c.type < 0 || c.type >= kDataTypeCount) return {};
  const Call call{c, member, counts};
  return {call.input_bytes(), call.output_bytes()};
}

std::span<const std::uint64_t> counts_of(const Command& c, const Regions& regions) {
  if (!has_counts(static_cast<Collective>(c.collective))) return {};
  return {reinterpret_cast<const std::uint64_t*>(regions.at(c.numbers)), c.numbers.bytes / sizeof(std::uint64_t)};
}

}  // namespace canarynet::port
