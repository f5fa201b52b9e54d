#include "port/command.h"

#include <numeric>
#include <string_view>

#include "port/command_check.h"

namespace canarynet::port {

Command operation(MemberId member, const MemberShape& shape, const OpRequest& request, TicketId ticket) {
  Command c;
  c.kind = Command::Kind::kOperation;
  c.collective = static_cast<std::uint8_t>(request.collective);
  c.priority = static_cast<std::uint8_t>(request.priority);
  c.rank = request.root;
  c.type = static_cast<std::int32_t>(request.type);
  c.redop = static_cast<std::int32_t>(request.redop);
  c.member = member;
  c.ticket = ticket;
  c.count = request.collective == Collective::kAllGatherV
                ? std::accumulate(request.counts.begin(), request.counts.end(), std::uint64_t{0})
                : request.count;
  c.time_limit = request.time_limit.count;
  if (!request.counts.empty()) c.numbers = memory_at(request.counts.data(), request.counts.size_bytes());
  if (request.collective == Collective::kAllReduce) {
    c.numbers.region = request.codec;
    c.numbers.offset = request.tensor;
    c.numbers.reserved = std::bit_cast<std::uint32_t>(request.momentum);
    c.numbers.bytes = request.part_of != 0 ? request.part_of : request.rows;
  }
  if (request.part_of != 0) c.part = Command::kIsPart | request.part_begin;
  const Lengths lengths = lengths_of(c, shape, request.counts);
  c.input = memory_at(request.input, lengths.input);
  c.output = memory_at(request.output, lengths.output);
  return c;
}

Command all_reduce_of(const Command& partial, const Regions& regions) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(regions.at(partial.numbers));
  Command c = partial;
  c.kind = Command::Kind::kOperation;
  c.rank = -1;
  c.numbers = {};
  c.numbers.region = static_cast<std::uint32_t>(words[kPartialCodec]);
  c.numbers.offset = words[kPartialTensor];
  c.numbers.reserved = static_cast<std::uint32_t>(words[kPartialMomentum]);
  c.part = 0;
  return c;
}

OpRequest request_of(const Command& c, const Regions& regions) {
  if (c.kind == Command::Kind::kPartial) return request_of(all_reduce_of(c, regions), regions);
  OpRequest r;
  r.collective = static_cast<Collective>(c.collective);
  r.input = regions.at(c.input);
  r.output = regions.at(c.output);
  r.count = c.count;
  r.type = static_cast<DataType>(c.type);
  r.redop = static_cast<ReduceOp>(c.redop);
  r.root = c.rank;
  r.time_limit = Nanos{c.time_limit};
  r.priority = static_cast<canary_priority>(c.priority);
  r.counts = counts_of(c, regions);
  if (r.collective == Collective::kAllReduce) {
    r.codec = c.numbers.region;
    r.tensor = c.numbers.offset;
    r.momentum = momentum_of(c);
    r.rows = rows_of(c);
    r.part_of = part_of(c);
    r.part_begin = part_begin_of(c);
  }
  return r;
}

namespace {

Command of_member(Command::Kind kind, MemberId member, TicketId ticket) {
  Command c;
  c.kind = kind;
  c.member = member;
  c.ticket = ticket;
  return c;
}

}  // namespace

Command save_feedback(MemberId member, std::span<std::byte> to, std::uint64_t* size, TicketId ticket) {
  Command c = of_member(Command::Kind::kSaveFeedback, member, ticket);
  c.output = memory_at(to.data(), to.size());
  c.numbers = memory_at(size, sizeof *size);
  return c;
}

Command restore_feedback(MemberId member, std::span<const std::byte> from, TicketId ticket) {
  Command c = of_member(Command::Kind::kRestoreFeedback, member, ticket);
  c.input = memory_at(from.data(), from.size());
  return c;
}

Command feedback_gain(MemberId member, std::uint64_t tensor, FeedbackGain* to, TicketId ticket) {
  Command c = of_member(Command::Kind::kFeedbackGain, member, ticket);
  c.count = tensor;
  c.output = memory_at(to, sizeof *to);
  return c;
}

Command top_k_roots(MemberId member, std::span<std::uint64_t> to, TicketId ticket) {
  Command c = of_member(Command::Kind::kTopKRoots, member, ticket);
  c.count = to.size();
  c.output = memory_at(to.data(), to.size_bytes());
  return c;
}

Command partial(MemberId member, const OpRequest& request, std::span<const std::uint64_t> numbers, bool weighted,
                TicketId ticket) {
  OpRequest plain = request;
  plain.collective = Collective::kAllReduce;
  plain.counts = {};
  plain.codec = 0;
  plain.tensor = 0;
  plain.momentum = 0;
  plain.rows = 0;
  plain.part_of = plain.part_begin = 0;
  Command c = operation(member, {}, plain, ticket);
  c.kind = Command::Kind::kPartial;
  c.rank = weighted ? 1 : 0;
  c.numbers = memory_at(numbers.data(), numbers.size_bytes());
  return c;
}

namespace {

Command of_session(Command::Kind kind, MemberId member, std::uint64_t session, TicketId ticket) {
  Command c = of_member(kind, member, ticket);
  c.count = session;
  return c;
}

}  // namespace

Command open_session(MemberId member, std::uint64_t session, std::span<const std::uint64_t> numbers, TicketId ticket) {
  Command c = of_session(Command::Kind::kOpenSession, member, session, ticket);
  c.numbers = memory_at(numbers.data(), numbers.size_bytes());
  return c;
}

Command push(MemberId member, std::uint64_t session, int colayer, std::span<const float> gradient, TicketId ticket) {
  Command c = of_session(Command::Kind::kPush, member, session, ticket);
  c.rank = colayer;
  c.input = memory_at(gradient.data(), gradient.size_bytes());
  return c;
}

Command step(MemberId member, std::uint64_t session, SessionStep what, std::span<float> sums, SessionResult* result,
             TicketId ticket) {
  Command c = of_session(Command::Kind::kStep, member, session, ticket);
  c.rank = static_cast<std::int32_t>(what);
  c.output = memory_at(sums.data(), sums.size_bytes());
  c.numbers = memory_at(result, sizeof *result);
  return c;
}

Command thresholds(MemberId member, std::uint64_t session, std::span<const std::uint64_t> numbers, TicketId ticket) {
  Command c = of_session(Command::Kind::kThresholds, member, session, ticket);
  c.numbers = memory_at(numbers.data(), numbers.size_bytes());
  return c;
}

Command close_session(MemberId member, std::uint64_t session, TicketId ticket) {
  return of_session(Command::Kind::kCloseSession, member, session, ticket);
}

namespace {

Command of_policy(PolicyStep step, MemberId member, std::uint64_t policy, TicketId ticket) {
  Command c = of_member(Command::Kind::kPolicy, member, ticket);
  c.count = policy;
  c.rank = static_cast<std::int32_t>(step);
  return c;
}

}  // namespace

Command open_policy(MemberId member, std::uint64_t policy, std::string_view name, std::span<const std::uint64_t> hosts,
                    TicketId ticket) {
  Command c = of_policy(PolicyStep::kOpen, member, policy, ticket);
  c.input = memory_at(name.data(), name.size());
  c.numbers = memory_at(hosts.data(), hosts.size_bytes());
  return c;
}

Command ask_policy(MemberId member, std::uint64_t policy, std::span<const std::uint64_t> question, TicketId ticket) {
  Command c = of_policy(PolicyStep::kAsk, member, policy, ticket);
  c.numbers = memory_at(question.data(), question.size_bytes());
  return c;
}

Command next_answer(MemberId member, std::uint64_t policy, std::span<std::byte> to, bool waits, TicketId ticket) {
  Command c = of_policy(PolicyStep::kNext, member, policy, ticket);
  c.type = waits ? 1 : 0;
  c.output = memory_at(to.data(), to.size());
  return c;
}

Command leave_policy(MemberId member, std::uint64_t policy, TicketId ticket) {
  return of_policy(PolicyStep::kLeave, member, policy, ticket);
}

Command close_policy(MemberId member, std::uint64_t policy, TicketId ticket) {
  return of_policy(PolicyStep::kClose, member, policy, ticket);
}

Command group(int world_rank, std::span<const std::int32_t> ranks, TicketId ticket) {
  Command c;
  c.kind = Command::Kind::kGroup;
  c.rank = world_rank;
  c.ticket = ticket;
  c.numbers = memory_at(ranks.data(), ranks.size_bytes());
  return c;
}

Command abort(MemberId member, std::string_view reason, TicketId ticket) {
  Command c = of_member(Command::Kind::kAbort, member, ticket);
  c.numbers = memory_at(reason.data(), reason.size());
  return c;
}

Command deadline(MemberId member, TicketId ticket, Nanos from_now) {
  Command c = of_member(Command::Kind::kDeadline, member, ticket);
  c.time_limit = from_now.count;
  return c;
}

namespace {

Command message(Command::Kind kind, TicketId ticket, const Terms& terms) {
  Command c;
  c.kind = kind;
  c.priority = static_cast<std::uint8_t>(terms.priority);
  c.ticket = ticket;
  c.time_limit = terms.time_limit.count;
  return c;
}

// A message with a partner in its group.
Command message(Command::Kind kind, MemberId member, int partner, std::uint64_t count, DataType type, TicketId ticket,
                const Terms& terms) {
  Command c = message(kind, ticket, terms);
  c.rank = partner;
  c.type = static_cast<std::int32_t>(type);
  c.member = member;
  c.count = count;
  return c;
}

Command about(Command::Kind kind, ConnectionId connection) {
  Command c;
  c.kind = kind;
  c.connection = connection;
  return c;
}

Command about(Command::Kind kind, ListenerId listener) {
  return about(kind, ConnectionId{listener.place, listener.use});
}

}  // namespace

Command send(MemberId member, int to, const void* data, std::uint64_t count, DataType type, TicketId ticket,
             const Terms& terms) {
  Command c = message(Command::Kind::kSend, member, to, count, type, ticket, terms);
  c.input = memory_at(data, message_bytes(c));
  return c;
}

Command receive(MemberId member, int from, void* data, std::uint64_t count, DataType type, TicketId ticket,
                const Terms& terms) {
  Command c = message(Command::Kind::kReceive, member, from, count, type, ticket, terms);
  c.output = memory_at(data, message_bytes(c));
  return c;
}

Command listen(ListenerId listener) { return about(Command::Kind::kListen, listener); }
Command close(ListenerId listener) { return about(Command::Kind::kCloseListener, listener); }
Command close(ConnectionId connection) { return about(Command::Kind::kCloseConnection, connection); }

Command connect(ConnectionId connection, std::span<const std::byte> handle) {
  Command c = about(Command::Kind::kConnect, connection);
  c.numbers = memory_at(handle.data(), handle.size());
  return c;
}

Command abort_connection(ConnectionId connection, std::string_view reason) {
  Command c = about(Command::Kind::kAbortConnection, connection);
  c.numbers = memory_at(reason.data(), reason.size());
  return c;
}

Command send(ConnectionId connection, const void* data, std::uint64_t bytes, std::uint32_t tag, TicketId ticket,
             const Terms& terms) {
  Command c = message(Command::Kind::kSendOn, ticket, terms);
  c.connection = connection;
  c.tag = tag;
  c.input = memory_at(data, bytes);
  return c;
}

Command receive(ConnectionId connection, void* data, std::uint64_t bytes, std::uint32_t tag, TicketId ticket,
                const Terms& terms) {
  Command c = message(Command::Kind::kReceiveOn, ticket, terms);
  c.connection = connection;
  c.tag = tag;
  c.output = memory_at(data, bytes);
  return c;
}

Command stats(void* rails, std::uint64_t bytes, TicketId ticket) {
  Command c;
  c.kind = Command::Kind::kStats;
  c.ticket = ticket;
  c.output = memory_at(rails, bytes);
  return c;
}

}  // namespace canarynet::port
