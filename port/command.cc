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
  const Lengths lengths = lengths_of(c, shape, request.counts);
  c.input = memory_at(request.input, lengths.input);
  c.output = memory_at(request.output, lengths.output);
  return c;
}

OpRequest request_of(const Command& c, const Regions& regions) {
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
  return r;
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
  Command c;
  c.kind = Command::Kind::kAbort;
  c.member = member;
  c.ticket = ticket;
  c.numbers = memory_at(reason.data(), reason.size());
  return c;
}

Command deadline(MemberId member, TicketId ticket, Nanos from_now) {
  Command c;
  c.kind = Command::Kind::kDeadline;
  c.member = member;
  c.ticket = ticket;
  c.time_limit = from_now.count;
  return c;
}

}  // namespace canarynet::port
