#include "tools/sim/train/engines.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace canarynet::sim {

Engines::Engines(const ClusterOptions& options)
    : wiring_(options.wiring),
      ranks_per_host_(options.ranks_per_host),
      cluster_(options),
      memberships_(static_cast<std::size_t>(options.hosts * options.ranks_per_host)) {}

void Engines::limit_streams(int host, int nic, BytesPerSec rate) {
  NicOptions& options = cluster_.fabric().nic(host, nic);
  options.out.stream_rate = options.in.stream_rate = rate;
}

Status Engines::join() {
  if (cluster_.join()) return {};
  for (int h = 0; h < cluster_.hosts(); ++h) {
    const Status& why = cluster_.engine(h).join_status();
    if (!why.ok()) return why.wrap("engine " + std::to_string(h));
  }
  return Status(CANARY_JOIN, "the engines did not join");
}

void Engines::after(Nanos delay, Done what) { events_.push({now() + delay, order_++, std::move(what)}); }

bool Engines::step() {
  settle();
  if (!failure_.ok()) return false;
  const Nanos next = events_.empty() ? Nanos::max() : events_.top().at;
  if (next <= now()) {
    const Done what = events_.top().what;
    events_.pop();
    what();
    settle();
    return failure_.ok();
  }
  if (!cluster_.step(next)) {
    if (next == Nanos::max()) return false;
    cluster_.fabric().advance_to(next);  // no engine has anything to do until then
  }
  settle();
  return failure_.ok();
}

// Calls back for what has ended, in the order in which it was asked for. A callback may ask for more.
void Engines::settle() {
  while (news_.exchange(false, std::memory_order_relaxed) && failure_.ok()) {
    std::vector<std::unique_ptr<Pending>> ended;
    for (auto& pending : pending_) {
      if (pending->ticket.done()) ended.push_back(std::move(pending));
    }
    std::erase(pending_, nullptr);
    for (auto& pending : ended) {
      if (pending->ticket.code != CANARY_OK) {
        failure_ = pending->ticket.status;
        return;
      }
    }
    for (auto& pending : ended) {
      if (pending->done) pending->done();
    }
  }
}

Engines::Pending& Engines::add(Done done) {
  pending_.push_back(std::make_unique<Pending>());
  Pending& pending = *pending_.back();
  pending.ticket.news = &news_;
  pending.done = std::move(done);
  return pending;
}

void Engines::reduce(int worker, const Members& members, int channel, std::span<float> values, ReduceOp op, Done done) {
  const bool all = members.empty() || static_cast<int>(members.size()) == cluster_.ranks();
  if (all && channel == 0) return reduce_in(cluster_.world(worker), values, op, std::move(done));
  Members list = members;
  if (all) {
    for (list.clear(); static_cast<int>(list.size()) < cluster_.ranks();) list.push_back(static_cast<int>(list.size()));
  }
  auto& mine = memberships_[static_cast<std::size_t>(worker)];
  const auto [place, first] = mine.try_emplace({channel, list});
  Membership& membership = place->second;
  if (membership.member != nullptr) return reduce_in(membership.member, values, op, std::move(done));
  membership.waiting.push_back(
      [this, &membership, values, op, done = std::move(done)] { reduce_in(membership.member, values, op, done); });
  if (!first) return;
  Pending& pending = add({});
  pending.list = std::move(list);
  OpTicket* const ticket = &pending.ticket;
  pending.done = [this, worker, &membership, ticket] {
    membership.member = cluster_.engine(cluster_.host_of(worker)).member(ticket->member);
    CANARY_CHECK(membership.member != nullptr, "a group of the simulated training is gone");
    for (const Done& call : std::exchange(membership.waiting, {})) call();
  };
  cluster_.submit(worker,
                  port::group(worker, pending.list, cluster_.engine(cluster_.host_of(worker)).ticket_id(*ticket)));
}

void Engines::reduce_in(GroupMember* member, std::span<float> values, ReduceOp op, Done done) {
  Pending& pending = add(std::move(done));
  cluster_.submit(member,
                  {.collective = Collective::kAllReduce,
                   .input = values.data(),
                   .output = values.data(),
                   .count = values.size(),
                   .type = CANARY_F32,
                   .redop = op},
                  &pending.ticket);
}

bool Engines::meet(int a, int b) const {
  const int host_a = a / ranks_per_host_, host_b = b / ranks_per_host_;
  if (host_a == host_b) return true;
  const auto& mine = wiring_.networks[static_cast<std::size_t>(host_a)];
  return std::any_of(mine.begin(), mine.end(), [&](std::uint32_t network) {
    const auto& theirs = wiring_.networks[static_cast<std::size_t>(host_b)];
    return std::find(theirs.begin(), theirs.end(), network) != theirs.end();
  });
}

// The shortest way, by the lowest workers.
std::vector<int> Engines::path_between(int from, int to) const {
  std::vector<int> before(memberships_.size(), -1);
  std::deque<int> reached = {from};
  before[static_cast<std::size_t>(from)] = from;
  while (before[static_cast<std::size_t>(to)] < 0) {
    CANARY_CHECK(!reached.empty(), "no way leads from one worker to another");
    const int at = reached.front();
    reached.pop_front();
    for (int w = 0; w < cluster_.ranks(); ++w) {
      if (before[static_cast<std::size_t>(w)] >= 0 || !meet(at, w)) continue;
      before[static_cast<std::size_t>(w)] = at;
      reached.push_back(w);
    }
  }
  std::vector<int> path = {to};
  while (path.back() != from) path.push_back(before[static_cast<std::size_t>(path.back())]);
  std::reverse(path.begin(), path.end());
  return path;
}

void Engines::transfer(int from, int to, std::vector<float> values,
                       std::function<void(std::span<const float>)> arrived) {
  if (from == to) {
    return after({}, [values = std::move(values), arrived = std::move(arrived)] { arrived(values); });
  }
  hop(path_between(from, to), 0, std::move(values), std::move(arrived));
}

// Receiver and sender are told at once, so that messages between two workers pair in order.
void Engines::hop(std::vector<int> path, std::size_t at, std::vector<float> values,
                  std::function<void(std::span<const float>)> arrived) {
  const int from = path[at], to = path[at + 1];
  Pending& incoming = add({});
  Pending& outgoing = add({});
  incoming.values.resize(values.size());
  outgoing.values = std::move(values);
  Pending* const here = &incoming;
  incoming.done = [this, here, path = std::move(path), at, arrived = std::move(arrived)] {
    if (at + 2 == path.size()) return arrived(here->values);
    hop(path, at + 1, std::move(here->values), arrived);
  };
  cluster_.receive(cluster_.world(to), from, incoming.values.data(), incoming.values.size(), &incoming.ticket,
                   CANARY_F32);
  cluster_.send(cluster_.world(from), to, outgoing.values.data(), outgoing.values.size(), &outgoing.ticket, CANARY_F32);
}

std::uint64_t Engines::sent_bytes() {
  std::uint64_t sum = 0;
  for (std::size_t h = 0; h < wiring_.networks.size(); ++h) {
    for (std::size_t r = 0; r < wiring_.networks[h].size(); ++r)
      sum += cluster_.fabric().nic_counters(static_cast<int>(h), static_cast<int>(r)).tx_bytes;
  }
  return sum;
}

}  // namespace canarynet::sim
