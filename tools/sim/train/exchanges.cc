// What each kind of exchange is among simulated engines.
//
//   gradients of all, in step   all-reduces of the engine, a colayer as soon as it is computed
//   a server, not in step       a message with the gradient to its host, one with the parameters back
//   a session                   the engines' (sessions.h)
//   deltas, a group's mean      a partial all-reduce; of deltas one more of the new state, among those behind and the
//                               one that has it
//   neighbours                  a message to each of them and one back
//   a partition                 a message to every peer
#include <algorithm>
#include <string>

#include "base/check.h"
#include "tools/sim/train/trainer.h"

namespace canarynet::sim {
namespace {

// nullptr: everybody.
std::vector<int> members_of(const sync::WorkerSet* set, int workers) {
  std::vector<int> members;
  for (int w = 0; w < workers; ++w) {
    if (set == nullptr || set->has(w)) members.push_back(w);
  }
  return members;
}

}  // namespace

void Trainer::exchange(int w, const Exchange& exchange) {
  Worker& me = at(w);
  me.exchanging = true;
  me.stepped = false;
  me.exchange = exchange;
  if (exchange.behind != nullptr) {  // the coordinator closes further rounds while this one's exchange runs
    me.behind = *exchange.behind;
    me.exchange.behind = &me.behind;
  }
  switch (exchange.kind) {
    case Exchange::Kind::kNone:
      return exchanged(w);
    case Exchange::Kind::kSession:
      return sessions_->step(w, [this, w] { exchanged(w); });
    case Exchange::Kind::kAllReduce:
      return exchange.what == Exchange::What::kDelta ? reduce_delta(w) : finish_gradient(w);
    case Exchange::Kind::kServer:
      return exchange.waits ? finish_gradient(w) : push_to_server(w);
    case Exchange::Kind::kGroup:
      return average_group(w);
    case Exchange::Kind::kNeighbours:
      return average_neighbours(w);
    case Exchange::Kind::kPartition:
      return send_partition(w);
  }
}

void Trainer::exchanged(int w) {
  Worker& me = at(w);
  me.exchanging = false;
  me.is_told = false;
  ++result_.exchanges;
  me.policy->exchanged(engines_.now());
  proceed(w);
}

// A colayer of the running iteration's gradient is computed: all workers reduce it, one after the other, or a round of
// their session takes it along.
void Trainer::gradient_part(int w, int z) {
  const auto values = slices_[static_cast<std::size_t>(z)].of(std::span(at(w).gradient));
  if (sessions_) {
    if (sessions_->push(w, z, values)) return;
    give_up_iteration(w);
    return sessions_->pull(w, [this, w] { proceed(w); });
  }
  engines_.all_reduce(w, values, codec_, static_cast<std::uint64_t>(z) + 1, [this, w] {
    Worker& me = at(w);
    if (--me.parts == 0 && me.exchanging) finish_gradient(w);
  });
}

// Ends the exchange once all colayers hold the mean of all workers' gradients.
void Trainer::finish_gradient(int w) {
  Worker& me = at(w);
  if (me.parts > 0) return;
  for (std::size_t i = 0; i < me.parameters.size(); ++i) me.parameters[i] -= rate() * me.gradient[i];
  exchanged(w);
}

// Beside iterations, too: what they change meanwhile stays in the parameters.
void Trainer::reduce_delta(int w) {
  Worker& me = at(w);
  me.sent.resize(me.updates->part(me.exchange.partition).size);
  me.updates->take(me.parameters, me.exchange.partition, me.exchange.counted, me.sent);
  const auto number = 2 * static_cast<std::uint64_t>(me.exchange.number);
  const auto tensor = static_cast<std::uint64_t>(me.exchange.partition) + 1;
  engines_.mean(w, {members_of(me.exchange.members, count()), number, codec_, tensor}, me.sent, [this, w] {
    Worker& it = at(w);
    const Exchange& e = it.exchange;
    if (e.behind == nullptr || !e.behind->has(w)) it.updates->apply(it.parameters, e.partition, it.sent);
    if (e.behind != nullptr && (e.source == w || e.behind->has(w))) return hand_over(w);
    it.rounds = e.number + 1;
    exchanged(w);
  });
}

// What the source's outer step has made, for those that are behind.
void Trainer::hand_over(int w) {
  Worker& me = at(w);
  const int part = me.exchange.partition;
  me.sent.assign(me.updates->state_size(part), 0.0f);
  if (me.exchange.source == w) me.updates->save(part, me.sent);
  sync::WorkerSet members = *me.exchange.behind;
  members.add(me.exchange.source);
  const auto number = 2 * static_cast<std::uint64_t>(me.exchange.number) + 1;
  engines_.sum(w, {members_of(&members, count()), number}, me.sent, [this, w, part] {
    Worker& it = at(w);
    if (it.exchange.source != w) it.updates->adopt(it.parameters, part, it.sent);
    it.rounds = it.exchange.number + 1;
    exchanged(w);
  });
}

// An iteration may end meanwhile: its step is then taken from the mean.
void Trainer::average_group(int w) {
  Worker& me = at(w);
  me.before = me.sent = me.parameters;
  const auto number = static_cast<std::uint64_t>(me.exchange.number);
  engines_.mean(w, {members_of(me.exchange.members, count()), number}, me.sent, [this, w] {
    Worker& it = at(w);
    if (it.stepped) {
      for (std::size_t i = 0; i < it.sent.size(); ++i) it.sent[i] += it.parameters[i] - it.before[i];
    }
    it.parameters = it.sent;
    exchanged(w);
  });
}

void Trainer::average_neighbours(int w) {
  for (const int peer : members_of(at(w).exchange.members, count())) {
    if (peer == w) continue;
    engines_.transfer(w, peer, at(w).parameters, [this, w, peer](std::span<const float> values) {
      at(peer).arrived[w].emplace_back(values.begin(), values.end());
      join_neighbours(peer);
    });
  }
  join_neighbours(w);
}

// Takes the mean once something is here from every neighbour. One that is an iteration ahead may have sent twice.
void Trainer::join_neighbours(int w) {
  Worker& me = at(w);
  if (!me.exchanging) return;
  const std::vector<int> members = members_of(me.exchange.members, count());
  for (const int peer : members) {
    if (peer != w && me.arrived[peer].empty()) return;
  }
  const float share = 1 / static_cast<float>(members.size());
  for (float& value : me.parameters) value *= share;
  for (const int peer : members) {
    if (peer == w) continue;
    const std::vector<float>& theirs = me.arrived[peer].front();
    for (std::size_t i = 0; i < theirs.size(); ++i) me.parameters[i] += share * theirs[i];
    me.arrived[peer].pop_front();
  }
  exchanged(w);
}

// The server has a host of its own behind the workers', and takes a step for each gradient that comes.
void Trainer::push_to_server(int w) {
  const int server = options_.hosts() * options_.workers_per_host;
  engines_.transfer(w, server, at(w).gradient, [this, w, server](std::span<const float> gradient) {
    for (std::size_t i = 0; i < server_.size(); ++i) server_[i] -= rate() * gradient[i];
    engines_.transfer(server, w, server_, [this, w](std::span<const float> parameters) {
      at(w).parameters.assign(parameters.begin(), parameters.end());
      exchanged(w);
    });
  });
}

// The own gradient counts at once, and each partition of what was gathered goes to all others in its turn. The exchange
// ends when the last one has it: a worker that sent on would only fill its own queues.
void Trainer::send_partition(int w) {
  Worker& me = at(w);
  const float scale = rate() / static_cast<float>(count());
  for (std::size_t i = 0; i < me.parameters.size(); ++i) {
    me.waiting[i] += me.gradient[i];
    me.parameters[i] -= scale * me.gradient[i];
  }
  const auto parts = slices_of(me.parameters.size(), me.exchange.partitions);
  const Slice part = parts[static_cast<std::size_t>(me.exchange.partition)];
  const auto waiting = part.of(std::span(me.waiting));
  const std::vector<float> values(waiting.begin(), waiting.end());
  std::fill(waiting.begin(), waiting.end(), 0.0f);
  me.parts = count() - 1;
  if (me.parts == 0) return exchanged(w);
  for (int step = 1; step < count(); ++step) {
    const int peer = (w + step) % count();
    engines_.transfer(w, peer, values, [this, w, peer, part, scale](std::span<const float> arrived) {
      const auto theirs = part.of(std::span(at(peer).parameters));
      for (std::size_t i = 0; i < arrived.size(); ++i) theirs[i] -= scale * arrived[i];
      if (--at(w).parts == 0) exchanged(w);
    });
  }
}

}  // namespace canarynet::sim
