#include "sim/swarm_traffic.h"

#include <algorithm>
#include <cstring>

namespace canarynet {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

void fill_message(std::uint64_t seed, std::byte* data, std::size_t bytes) {
  Random random(seed);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(data + i, &word, std::min<std::size_t>(8, bytes - i));
  }
}

// Every fourth operation is urgent; of another fourth only some ranks say so.
canary_priority priority_of(std::uint64_t number, int rank) {
  const bool urgent = number % 4 == 1 || (number % 4 == 2 && rank % 2 == 0);
  return urgent ? CANARY_PRIORITY_URGENT : CANARY_PRIORITY_NORMAL;
}

}  // namespace

bool SwarmGroup::has(int world_rank) const { return std::find(ranks.begin(), ranks.end(), world_rank) != ranks.end(); }

std::byte* SwarmTraffic::Round::input_of(int rank) {
  if (oracle::input_bytes(shape, rank) == 0) return nullptr;
  return input[at(rank)]->memory.data() + (in_place ? oracle::in_place_input(shape, rank) : 0);
}
std::byte* SwarmTraffic::Round::output_of(int rank) {
  if (oracle::output_bytes(shape, rank) == 0) return nullptr;
  return in_place ? input[at(rank)]->memory.data() + oracle::in_place_output(shape, rank)
                  : output[at(rank)]->memory.data();
}

SwarmTraffic::SwarmTraffic(const Life& life, Random& random, Excuse excuse)
    : life_(life),
      random_(random),
      excuse_(std::move(excuse)),
      collectives_left_(life.collectives),
      messages_left_(life.messages),
      groups_left_(life.groups) {
  agenda_.resize(at(life.ranks()));
  for (auto& queues : agenda_) queues.resize(at(1 + life.groups));
  pending_.resize(at(life.cluster.hosts));
}

void SwarmTraffic::begin(Cluster* cluster) {
  cluster_ = cluster;
  cluster->add_watcher(this);
  last_event_ = cluster->now();
  SwarmGroup& world = groups_.emplace_back();
  for (int r = 0; r < cluster->ranks(); ++r) {
    world.ranks.push_back(r);
    world.parts.push_back(SwarmGroup::Part::kMember);
    world.members.push_back(cluster->world(r));
    world.tickets.push_back(nullptr);
  }
}

int SwarmTraffic::group_rank(const SwarmGroup& group, int world_rank) const {
  return static_cast<int>(std::find(group.ranks.begin(), group.ranks.end(), world_rank) - group.ranks.begin());
}

// --- planning --------------------------------------------------------------------------------------------------------

bool SwarmTraffic::plan() {
  const bool rounds = collectives_left_ > 0 && rounds_.size() < at(life_.depth);
  const bool messages = messages_left_ > 0 && open_messages_.size() < 16;
  if (groups_left_ > 0 && random_.below(4) == 0) return plan_group(), true;
  if (groups_.size() > 1 && random_.below(12) == 0) return retire_group(), true;
  if (messages && (!rounds || random_.below(3) == 0)) return plan_message(), true;
  if (!rounds) return false;
  plan_round();
  return true;
}

void SwarmTraffic::plan_group() {
  --groups_left_;
  std::vector<int> ranks(at(life_.ranks()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random_.below(i)]);
  ranks.resize(2 + random_.below(ranks.size() - 1));
  if (random_.below(2) == 0) std::sort(ranks.begin(), ranks.end());
  for (const SwarmGroup& g : groups_) {
    if (g.ranks == ranks) return;
  }
  SwarmGroup& group = groups_.emplace_back();
  group.id = groups_.size() - 1;
  group.ranks = ranks;
  group.parts.resize(ranks.size());
  group.members.resize(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    group.tickets.push_back(std::make_unique<OpTicket>());
    assign(group, static_cast<int>(i), {Task::Kind::kCreate});
  }
}

void SwarmTraffic::retire_group() {
  SwarmGroup& group = groups_[1 + random_.below(groups_.size() - 1)];
  if (group.retired) return;
  group.retired = true;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) assign(group, static_cast<int>(i), {Task::Kind::kDestroy});
}

oracle::Shape SwarmTraffic::draw_shape(int ranks) {
  oracle::Shape s;
  const auto kind = random_.below(10);
  s.collective = kind < 3 ? Collective::kAllReduce : static_cast<Collective>(random_.below(kCollectiveCount));
  if (is_pairwise(s.collective) && !life_.pairs) s.collective = Collective::kAllReduce;
  s.ranks = ranks;
  s.type = static_cast<DataType>(random_.below(kDataTypeCount));
  s.redop = static_cast<ReduceOp>(random_.below(kReduceOpCount));
  s.root = static_cast<int>(random_.below(static_cast<std::uint64_t>(ranks)));
  s.salt = random_.next();
  s.rounds = random_.below(2) == 0;
  const std::uint64_t sizes[] = {0, 1, 7, 1001, 4096, 20'000};
  s.count = sizes[random_.below(6)];
  if (life_.large && random_.below(2) == 0) {
    const auto most = static_cast<std::uint64_t>(life_.large_bytes);  // of the larger buffer
    s.count = most / size_of(s.type) / (in_blocks(s.collective) ? static_cast<std::uint64_t>(ranks) : 1);
    s.count -= random_.below(1000);
  }
  oracle::draw_counts(&s, is_pairwise(s.collective) ? s.count / static_cast<std::uint64_t>(ranks) : s.count);
  if (has_counts(s.collective)) s.count = 0;
  return s;
}

void SwarmTraffic::plan_round() {
  SwarmGroup& group = groups_[random_.below(groups_.size())];
  if (group.retired) return;
  --collectives_left_;
  ++collectives_;
  auto round = std::make_unique<Round>();
  round->group = &group;
  // A sum of fractions may be asked for again later: its order of reduction must not have changed.
  const auto earlier = echoes_.empty() ? 0 : random_.below(echoes_.size());
  if (!echoes_.empty() && random_.below(3) == 0 && echoes_[earlier].group == &group) {
    round->echo = earlier;
    round->shape = echoes_[earlier].shape;
  } else {
    round->shape = draw_shape(static_cast<int>(group.ranks.size()));
    if (oracle::rounds(round->shape) && echoes_.size() < 8) {
      round->echo = echoes_.size();
      echoes_.push_back({&group, round->shape, std::vector<Echo::Bits>(group.ranks.size())});
    }
  }
  const oracle::Shape& shape = round->shape;
  round->judge = std::make_unique<oracle::Judge>(shape);
  round->in_place = random_.below(2) == 0 && oracle::can_be_in_place(shape);
  for (int r = 0; r < shape.ranks; ++r) {
    const std::size_t in = oracle::input_bytes(shape, r), out = oracle::output_bytes(shape, r);
    round->input.push_back(std::make_unique<Lent>(round->in_place ? std::max(in, out) : in));
    round->output.push_back(std::make_unique<Lent>(round->in_place ? 0 : out));
    round->counts.push_back(oracle::counts_of(shape, r));
    round->tickets.push_back(std::make_unique<OpTicket>());
    oracle::fill_input(shape, r, round->input_of(r));
    if (!round->in_place) round->input.back()->digest = oracle::digest(round->input_of(r), in);
  }
  Task task{Task::Kind::kCollective};
  task.round = round.get();
  round->open = group.ranks.size();
  rounds_.push_back(std::move(round));
  for (std::size_t r = 0; r < group.ranks.size(); ++r) assign(group, static_cast<int>(r), task);
}

void SwarmTraffic::plan_message() {
  SwarmGroup& group = groups_[random_.below(groups_.size())];
  if (group.retired) return;
  const auto n = group.ranks.size();
  const int from = static_cast<int>(random_.below(n)), to = static_cast<int>(random_.below(n));
  const auto host = [&](int rank) { return cluster_->host_of(group.ranks[at(rank)]); };
  if (!life_.meet(host(from), host(to))) return;
  --messages_left_;
  ++messages_;
  auto message = std::make_unique<Message>();
  message->group = &group;
  message->from = from;
  message->to = to;
  message->seed = group.id << 48 | at(from) << 40 | at(to) << 32 | message_count_[{group.id, from, to}]++;
  const std::uint64_t sizes[] = {0, 1, 100, 8192, 8193, 65'536, 200'000};
  std::uint64_t bytes = sizes[random_.below(std::size(sizes))];
  if (life_.large && random_.below(2) == 0) bytes = (2 << 20) + random_.below(1000);
  message->sent = std::make_unique<Lent>(bytes);
  message->received = std::make_unique<Lent>(bytes);
  fill_message(message->seed, message->sent->memory.data(), bytes);
  message->sent->digest = oracle::digest(message->sent->memory.data(), bytes);
  Task send{Task::Kind::kSend}, receive{Task::Kind::kReceive};
  send.message = receive.message = message.get();
  open_messages_.push_back(std::move(message));
  assign(group, from, send);
  assign(group, to, receive);
}

// A rank whose host has died calls nothing any more.
void SwarmTraffic::assign(SwarmGroup& group, int rank, Task task) {
  const int world_rank = group.ranks[at(rank)];
  if (!cluster_->alive(cluster_->host_of(world_rank))) return drop(task);
  agenda_[at(world_rank)][group.id].push_back(task);
  ++assigned_;
}

// --- calling ---------------------------------------------------------------------------------------------------------

bool SwarmTraffic::act() {
  if ((assigned_ == 0 || random_.below(3) == 0) && plan()) return true;
  const auto n = agenda_.size();
  const auto turn = random_.below(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (call(static_cast<int>((turn + i) % n))) return true;
  }
  return false;
}

bool SwarmTraffic::call(int world_rank) {
  const int host = cluster_->host_of(world_rank);
  if (!cluster_->alive(host) || cluster_->fabric().frozen(host)) return false;
  auto& queues = agenda_[at(world_rank)];
  const auto turn = random_.below(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::size_t g = (turn + i) % groups_.size();
    if (!queues[g].empty() && call_front(world_rank, groups_[g], queues[g])) return true;
  }
  return false;
}

bool SwarmTraffic::pending_in(const SwarmGroup& group, int world_rank) const {
  const auto& pending = pending_[at(cluster_->host_of(world_rank))];
  return std::any_of(pending.begin(), pending.end(),
                     [&](const Pending& p) { return p.group == &group && group.ranks[at(p.rank)] == world_rank; });
}

bool SwarmTraffic::call_front(int world_rank, SwarmGroup& group, std::deque<Task>& tasks) {
  using Part = SwarmGroup::Part;
  const int rank = group_rank(group, world_rank);
  Part& part = group.parts[at(rank)];
  Task task = tasks.front();
  if (part == Part::kAsked) return false;
  if (task.kind == Task::Kind::kCreate) {
    // Acts like a caller that blocks: one group after the other, all ranks in the same order.
    for (const SwarmGroup& other : groups_) {
      if (other.id >= group.id) break;
      if (other.id == 0 || !other.has(world_rank)) continue;
      const Part theirs = other.parts[at(group_rank(other, world_rank))];
      if (theirs == Part::kWanted || theirs == Part::kAsked) return false;
    }
  }
  if (task.kind == Task::Kind::kDestroy && part == Part::kMember && pending_in(group, world_rank)) return false;
  tasks.pop_front();
  --assigned_;
  last_event_ = cluster_->now();
  if (part == Part::kFailed) {
    drop(task);
    return true;
  }
  const int host = cluster_->host_of(world_rank);
  const Pending pending{task, &group, rank};
  if (task.kind != Task::Kind::kDestroy) {
    pending_[at(host)].push_back(pending);
    ++pending_count_;
  }
  switch (task.kind) {
    case Task::Kind::kCreate: {
      part = Part::kAsked;
      const port::TicketId ticket = cluster_->engine(host).ticket_id(*group.tickets[at(rank)]);
      cluster_->submit(world_rank, port::group(world_rank, group.ranks, ticket));
      break;
    }
    case Task::Kind::kDestroy:
      cluster_->engine(host).forget(group.members[at(rank)]->id);
      part = Part::kDestroyed;
      break;
    case Task::Kind::kCollective: {
      Round& round = *task.round;
      cluster_->submit(group.members[at(rank)],
                       {.collective = round.shape.collective,
                        .input = round.input_of(rank),
                        .output = round.output_of(rank),
                        .count = round.shape.count,
                        .type = round.shape.type,
                        .redop = round.shape.redop,
                        .root = round.shape.root,
                        .priority = priority_of(round.shape.salt, rank),
                        .counts = round.counts[at(rank)]},
                       round.tickets[at(rank)].get());
      break;
    }
    case Task::Kind::kSend:
    case Task::Kind::kReceive: {
      Message& m = *task.message;
      const GroupMember* const member = group.members[at(rank)];
      const std::uint64_t bytes = m.sent->memory.size();
      const port::Terms terms{priority_of(bytes, rank), {}};
      if (task.kind == Task::Kind::kSend) {
        cluster_->send(member, m.to, m.sent->memory.data(), bytes, &m.send_ticket, CANARY_U8, terms);
      } else {
        cluster_->receive(member, m.from, m.received->memory.data(), bytes, &m.receive_ticket, CANARY_U8, terms);
      }
      break;
    }
  }
  return true;
}

// Drops a task that will not be called.
void SwarmTraffic::drop(Task& task) {
  if (task.round != nullptr && --task.round->open == 0) close_round(task.round);
  if (task.message != nullptr && --task.message->open == 0) close_message(task.message);
}

void SwarmTraffic::bury(int host) {
  for (Pending& p : pending_[at(host)]) drop(p.task);
  pending_count_ -= pending_[at(host)].size();
  pending_[at(host)].clear();
  for (std::size_t r = 0; r < agenda_.size(); ++r) {
    if (cluster_->host_of(static_cast<int>(r)) != host) continue;
    for (auto& tasks : agenda_[r]) {
      assigned_ -= tasks.size();
      for (Task& task : tasks) drop(task);
      tasks.clear();
    }
  }
}

bool SwarmTraffic::finished() const {
  return collectives_left_ == 0 && messages_left_ == 0 && assigned_ == 0 && pending_count_ == 0;
}

bool SwarmTraffic::pick_member(const SwarmGroup** group, int* world_rank, GroupMember** member) {
  const SwarmGroup& g = groups_[random_.below(groups_.size())];
  const auto rank = random_.below(g.ranks.size());
  const int host = cluster_->host_of(g.ranks[rank]);
  if (g.retired || g.parts[rank] != SwarmGroup::Part::kMember || cluster_->fabric().frozen(host)) return false;
  *group = &g;
  *world_rank = g.ranks[rank];
  *member = g.members[rank];
  return true;
}

bool SwarmTraffic::pick_pending(const SwarmGroup** group, int* world_rank, GroupMember** member, OpTicket** ticket) {
  const auto host = random_.below(pending_.size());
  if (pending_[host].empty() || cluster_->fabric().frozen(static_cast<int>(host))) return false;
  const Pending& p = pending_[host][random_.below(pending_[host].size())];
  if (p.task.kind == Task::Kind::kCreate) return false;
  *group = p.group;
  *world_rank = p.group->ranks[at(p.rank)];
  *member = p.group->members[at(p.rank)];
  *ticket = &ticket_of(p);
  return true;
}

// --- judging ---------------------------------------------------------------------------------------------------------

OpTicket& SwarmTraffic::ticket_of(const Pending& p) {
  switch (p.task.kind) {
    case Task::Kind::kCollective:
      return *p.task.round->tickets[at(p.rank)];
    case Task::Kind::kSend:
      return p.task.message->send_ticket;
    case Task::Kind::kReceive:
      return p.task.message->receive_ticket;
    default:
      return *p.group->tickets[at(p.rank)];
  }
}

void SwarmTraffic::polled(int host) {
  auto& pending = pending_[at(host)];
  for (std::size_t i = 0; i < pending.size();) {
    if (!ticket_of(pending[i]).done()) {
      ++i;
      continue;
    }
    const Pending p = pending[i];
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    --pending_count_;
    settle(p);
  }
}

void SwarmTraffic::settle(const Pending& p) {
  last_event_ = cluster_->now();
  const OpTicket& ticket = ticket_of(p);
  const int world_rank = p.group->ranks[at(p.rank)];
  mix(static_cast<std::uint64_t>(ticket.code));
  if (ticket.code != CANARY_OK) {
    ++errors_;
    p.group->erred = true;
    const std::string wrong = excuse_(*p.group, world_rank, ticket.status);
    if (!wrong.empty())
      fail("rank " + std::to_string(world_rank) + ", group " + std::to_string(p.group->id) + ": " + wrong);
  }
  switch (p.task.kind) {
    case Task::Kind::kCreate:
      p.group->members[at(p.rank)] = cluster_->engine(cluster_->host_of(world_rank)).member(ticket.member);
      p.group->parts[at(p.rank)] = ticket.code == CANARY_OK ? SwarmGroup::Part::kMember : SwarmGroup::Part::kFailed;
      break;
    case Task::Kind::kCollective:
      settle_round(p);
      break;
    default:
      settle_message(p);
      break;
  }
}

void SwarmTraffic::settle_round(const Pending& p) {
  Round& round = *p.task.round;
  const OpTicket& ticket = *round.tickets[at(p.rank)];
  Lent& input = *round.input[at(p.rank)];
  if (ticket.code == CANARY_OK) {
    const std::string who = "rank " + std::to_string(p.group->ranks[at(p.rank)]) + ", #" +
                            std::to_string(ticket.number) + " of group " + std::to_string(p.group->id) + ": ";
    const std::string wrong = round.judge->check(p.rank, round.output_of(p.rank));
    if (!wrong.empty()) fail("wrong result: " + who + wrong);
    if (input.digest != 0 && oracle::digest(input.memory.data(), input.memory.size()) != input.digest)
      fail("input written: " + who + oracle::to_string(round.shape));
    if (round.echo != SIZE_MAX) {
      Echo::Bits& known = echoes_[round.echo].latest[at(p.rank)];
      const auto number = static_cast<std::uint32_t>(ticket.number);
      const std::uint32_t table = p.group->members[at(p.rank)]->history[number % GroupMember::kHistory].table;
      const std::uint64_t bits = oracle::digest(round.output_of(p.rank), oracle::output_bytes(round.shape, p.rank));
      if (known.digest != 0 && table == known.table && bits != known.digest)
        fail("other bits than before: " + who + oracle::to_string(round.shape));
      known = {bits, table};
      hash_ ^= bits;
    }
  }
  input.memory.take_back();
  round.output[at(p.rank)]->memory.take_back();
  if (--round.open == 0) close_round(&round);
}

void SwarmTraffic::settle_message(const Pending& p) {
  Message& message = *p.task.message;
  const bool sends = p.task.kind == Task::Kind::kSend;
  Lent& lent = sends ? *message.sent : *message.received;
  if (ticket_of(p).code == CANARY_OK) {
    const std::uint64_t bits = oracle::digest(lent.memory.data(), lent.memory.size());
    const std::string text = "message of " + std::to_string(lent.memory.size()) + " bytes, number " +
                             std::to_string((message.seed & 0xffffffff) + 1) + " from " +
                             std::to_string(p.group->ranks[at(message.from)]) + " to " +
                             std::to_string(p.group->ranks[at(message.to)]);
    if (sends && bits != lent.digest) fail("written: sent " + text);
    if (!sends) {
      Lent expected(lent.memory.size());
      fill_message(message.seed, expected.memory.data(), expected.memory.size());
      if (message.receive_ticket.bytes != lent.memory.size() ||
          oracle::digest(expected.memory.data(), expected.memory.size()) != bits)
        fail("wrong: received " + text);
      hash_ ^= bits;
    }
  }
  lent.memory.take_back();
  if (--message.open == 0) close_message(&message);
}

// --- watching --------------------------------------------------------------------------------------------------------

void SwarmTraffic::shelve(std::vector<std::unique_ptr<Lent>> lent) {
  for (auto& one : lent) {
    if (const std::string where = shelf_.add(std::move(one->memory)); !where.empty()) fail(where);
  }
}

void SwarmTraffic::close_round(Round* round) {
  const auto found =
      std::find_if(rounds_.begin(), rounds_.end(), [&](const auto& known) { return known.get() == round; });
  shelve(std::move(round->input));
  shelve(std::move(round->output));
  rounds_.erase(found);
}

void SwarmTraffic::close_message(Message* message) {
  const auto found = std::find_if(open_messages_.begin(), open_messages_.end(),
                                  [&](const auto& known) { return known.get() == message; });
  std::vector<std::unique_ptr<Lent>> both;
  both.push_back(std::move(message->sent));
  both.push_back(std::move(message->received));
  shelve(std::move(both));
  open_messages_.erase(found);
}

void SwarmTraffic::expect_dead() {
  for (const SwarmGroup& group : groups_) {
    if (!group.erred) continue;
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      const int host = cluster_->host_of(group.ranks[r]);
      if (!cluster_->alive(host) || group.parts[r] != SwarmGroup::Part::kMember) continue;
      OpTicket& ticket = probes_.emplace_back();
      cluster_->submit(
          group.members[r],
          {.collective = Collective::kAllReduce, .input = &probe_, .output = &probe_, .count = 1, .type = CANARY_F32},
          &ticket);
      if (ticket.done() && ticket.code != CANARY_OK) continue;
      fail("rank " + std::to_string(group.ranks[r]) + " still accepts operations in group " + std::to_string(group.id) +
           ", which is dead");
      return;
    }
  }
}

std::string SwarmTraffic::pending() const {
  std::string text;
  for (const auto& host : pending_) {
    for (const Pending& p : host) {
      const bool collective = p.task.kind == Task::Kind::kCollective;
      text += "; rank " + std::to_string(p.group->ranks[at(p.rank)]) + " group " + std::to_string(p.group->id) + ": " +
              (collective ? oracle::to_string(p.task.round->shape) + " #" +
                                std::to_string(p.task.round->tickets[at(p.rank)]->number)
               : p.task.kind == Task::Kind::kCreate ? "creation"
               : p.task.kind == Task::Kind::kSend   ? "send"
                                                    : "receive");
      if (text.size() > 1000) return text + " ...";
    }
  }
  return text + "; " + std::to_string(assigned_) + " calls to come";
}

void SwarmTraffic::close() {
  for (auto& round : rounds_) {
    shelve(std::move(round->input));
    shelve(std::move(round->output));
  }
  if (const std::string where = shelf_.trespass(); !where.empty()) fail(where);
}

}  // namespace canarynet
