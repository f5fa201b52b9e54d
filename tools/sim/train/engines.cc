#include "tools/sim/train/engines.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace canarynet::sim {

Engines::Engines(const ClusterOptions& options)
    : wiring_(options.wiring), ranks_per_host_(options.ranks_per_host), cluster_(options) {}

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

void Engines::all_reduce(int worker, std::span<float> values, std::uint32_t codec, std::uint64_t tensor, Done done) {
  Pending& pending = add(std::move(done));
  cluster_.submit(cluster_.world(worker),
                  {.collective = Collective::kAllReduce,
                   .input = values.data(),
                   .output = values.data(),
                   .count = values.size(),
                   .type = CANARY_F32,
                   .redop = CANARY_AVG,
                   .codec = codec,
                   .tensor = codec != 0 ? tensor : 0},
                  &pending.ticket);
}

void Engines::partial(int worker, const Among& among, std::span<float> values, ReduceOp op, Done done) {
  if (among.members.size() == 1) return after({}, std::move(done));
  const OpRequest request{.collective = Collective::kAllReduce,
                          .input = values.data(),
                          .output = values.data(),
                          .count = values.size(),
                          .type = CANARY_F32,
                          .redop = op};
  Pending& pending = add(std::move(done));
  pending.numbers.resize(port::kPartialHead);
  pending.numbers[port::kPartialNumber] = among.number;
  pending.numbers[port::kPartialCodec] = among.codec;
  pending.numbers[port::kPartialTensor] = among.codec != 0 ? among.tensor : 0;
  for (const int member : among.members) pending.numbers.push_back(static_cast<std::uint64_t>(member));
  const GroupMember* const world = cluster_.world(worker);
  cluster_.submit(worker, port::partial(world->id, request, pending.numbers, /*weighted=*/false,
                                        cluster_.id(world, &pending.ticket)));
}

void Engines::call(int worker, const MakeCommand& make, Done done) {
  Pending& pending = add(std::move(done));
  const GroupMember* const world = cluster_.world(worker);
  cluster_.submit(worker, make(world->id, cluster_.id(world, &pending.ticket)));
}

SessionView Engines::session(int worker, std::uint64_t number) {
  SessionView view;
  const bool open = cluster_.engine(cluster_.host_of(worker)).read_session(cluster_.world(worker)->id, number, &view);
  CANARY_CHECK(open, "a session that nobody has opened");
  return view;
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
  std::vector<int> before(static_cast<std::size_t>(cluster_.ranks()), -1);
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
