// Operations of the engine: entering, sending, landing, completing.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/serial.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

// Landing cookies: what on_arrival must remember of a landing's decision.
constexpr std::uint64_t kAckDiscarded = 0;  // a duplicate, or of a dead epoch: acked and forgotten
constexpr std::uint64_t kNoPlace = 1;       // not acked: it comes again
constexpr std::uint64_t kLanded = 2;
constexpr std::uint64_t kParked = 3;  // in the channel's eager store

constexpr std::size_t kProgramsMax = 128;  // cached shapes per member
constexpr std::size_t kStraysMax = 1024;
constexpr std::size_t kEarlyMax = 4096;  // signatures ahead of their operation

constexpr std::uint64_t cookie_of(const Run& run, std::uint32_t unit) { return std::uint64_t{run.index} << 32 | unit; }

// A peer speaks for its own ranks only: a piece or signature in another's name, ours even, is dropped.
bool served_by(const Group& g, std::uint32_t rank, std::uint32_t engine) {
  return rank < g.engine_of.size() && g.engine_of[rank] == engine;
}

std::optional<std::uint32_t> crc_in(const wire::Header& h) {
  if ((h.flags & wire::kUnchecked) != 0) return std::nullopt;
  return h.payload_crc32;
}

wire::Header piece_header(const GroupMember& m, const Operation& op, wire::Kind kind, int destination) {
  wire::Header h;
  h.kind = kind;
  h.flow = m.group->flow;
  h.epoch = m.group->epoch;
  h.op = op.number;
  h.signature = op.hash;
  h.source = static_cast<std::uint16_t>(m.rank);
  h.destination = static_cast<std::uint16_t>(destination);
  return h;
}

}  // namespace

// --- programs --------------------------------------------------------------------------------------------------------

Result<ProgramEntry*> Engine::program_for(GroupMember& m, const OpRequest& r) {
  const auto element = static_cast<std::uint32_t>(size_of(r.type));
  const int root = has_root(r.collective) ? r.root : 0;
  ++m.uses;
  for (auto& e : m.programs) {
    const Program& p = e->program;
    if (p.collective == r.collective && p.count == r.count && p.element_bytes == element && p.root == root &&
        std::equal(p.counts.begin(), p.counts.end(), r.counts.begin(), r.counts.end())) {
      e->last_used = m.uses;
      return e.get();
    }
  }
  PlanRequest request;
  request.collective = r.collective;
  request.ranks = static_cast<int>(m.group->members.size());
  request.count = r.count;
  request.counts = r.counts;
  request.element_bytes = element;
  request.root = root;
  request.reach = m.group->reach.get();
  request.bcube = m.group->bcube;
  request.servers = static_cast<int>(options_.settings.ps_servers);
  request.host_of = m.group->host_of;
  request.rail_rates = m.group->rail_rates;
  const auto chosen = select_planner(request, selector_);
  if (chosen.status().code() == CANARY_UNREACHABLE) {
    return Status(CANARY_UNREACHABLE, chosen.status().text() + " (which NICs meet: CANARY_RAIL_PAIRING=" +
                                          name_of(roster_.pairing) + ", subnets and routes)");
  }
  if (!chosen.ok()) return chosen.status();
  auto entry = std::make_unique<ProgramEntry>();
  entry->program = compile(chosen.value(), request, m.rank, static_cast<std::uint32_t>(roster_.piece_bytes.count));
  entry->last_used = m.uses;
  if (m.programs.size() >= kProgramsMax) {
    auto oldest = m.programs.end();
    for (auto it = m.programs.begin(); it != m.programs.end(); ++it) {
      if ((*it)->busy == 0 && (oldest == m.programs.end() || (*it)->last_used < (*oldest)->last_used)) oldest = it;
    }
    if (oldest != m.programs.end()) {
      for (auto& run : (*oldest)->idle) runs_[run->index] = nullptr;
      m.programs.erase(oldest);
    }
  }
  if (log_enabled(LogLevel::kDebug)) {
    const auto bytes = static_cast<std::int64_t>(r.count * element);
    log(LogLevel::kDebug, "group %u, rank %d: %s of %s among %d ranks by %s", m.group->flow, m.rank,
        std::string(name_of(r.collective)).c_str(), as_written(Bytes{bytes}).c_str(), request.ranks,
        std::string(name_of(chosen.value())).c_str());
  }
  m.programs.push_back(std::move(entry));
  return m.programs.back().get();
}

std::unique_ptr<Run> Engine::take_run(ProgramEntry* entry, const Group& group) {
  std::unique_ptr<Run> run;
  if (!entry->idle.empty()) {
    run = std::move(entry->idle.back());
    entry->idle.pop_back();
  } else {
    entry->idle.reserve(entry->idle.capacity() + 1);
    run = std::make_unique<Run>(entry->program);
    for (std::size_t s = 0; s < entry->program.peers.size(); ++s) {
      run->peer_engine[s] = group.engine_of[static_cast<std::size_t>(entry->program.peers[s].rank)];
      run->neighbours += run->peer_engine[s] == my_engine_;
    }
    if (run->neighbours != 0) run->executor.expect_neighbours();
    const auto hole = std::find(runs_.begin(), runs_.end(), nullptr);
    run->index = static_cast<std::uint32_t>(hole - runs_.begin());
    if (hole == runs_.end()) runs_.push_back(nullptr);
    runs_[run->index] = run.get();
  }
  ++entry->busy;
  std::fill(run->peer_ready.begin(), run->peer_ready.end(), std::uint8_t{0});
  std::fill(run->signature_sent.begin(), run->signature_sent.end(), std::uint8_t{0});
  std::fill(run->eager_bytes.begin(), run->eager_bytes.end(), 0u);
  run->signatures_left = 0;
  for (const std::uint32_t e : run->peer_engine) run->signatures_left += e != my_engine_;
  return run;
}

void Engine::return_run(Operation& op) {
  if (!op.run) return;
  const GroupMember& m = *op.run->member;
  for (std::size_t s = 0; s < op.run->eager_bytes.size(); ++s) {
    if (op.run->eager_bytes[s] == 0) continue;
    Peer& peer = peers_[op.run->peer_engine[s]];
    if (m.group->dead) {
      peer.eager_used -= op.run->eager_bytes[s];  // the verdict empties its store, too
    } else {
      peer.debts.push_back({m.group->flow, m.group->epoch, op.number, static_cast<std::uint16_t>(m.rank),
                            static_cast<std::uint16_t>(op.entry->program.peers[s].rank), op.run->eager_bytes[s]});
    }
  }
  op.run->member = nullptr;
  --op.entry->busy;
  op.entry->idle.push_back(std::move(op.run));
}

// --- entering --------------------------------------------------------------------------------------------------------

void Engine::enter(GroupMember& m, const WaitingOperation& called) {
  const OpRequest& request = called.request;
  OpTicket* const ticket = called.ticket;
  Group& g = *m.group;
  const std::uint32_t number = ++m.entered;
  ticket->number = number;
  if (g.member(m.rank) != &m) {
    ticket->finish(
        Status(CANARY_INVALID_ARGUMENT, std::string(name_of(request.collective)) + ": the group has been destroyed"));
    return;
  }
  if (g.dead) {
    ErrorDetail d = g.verdict.detail();
    d.op = number;
    d.op_name = std::string(name_of(request.collective));
    d.phase = "entry";
    d.elapsed = now_ - called.submitted;
    ticket->finish(Status(g.verdict.code(), d.op_name + " #" + std::to_string(number) + ": " + g.verdict.text(), d));
    return;
  }
  std::unique_ptr<Run> run;
  auto entry = [&]() -> Result<ProgramEntry*> {
    try {
      auto found = program_for(m, request);
      if (found.ok()) run = take_run(found.value(), g);
      return found;
    } catch (const std::bad_alloc&) {
      // Only here: the others would wait for this rank.
      Verdict v;
      v.code = CANARY_LIMIT;
      v.rank = m.world_rank;
      v.op = number;
      v.text = "rank " + std::to_string(m.world_rank) + " has no memory left for this operation";
      kill(g, v, true);
      return Status(v.code, v.text);
    }
  }();
  if (!entry.ok()) {
    // Equal arguments give the same answer on every rank, so the group stays in step.
    ErrorDetail d;
    d.op = number;
    d.op_name = std::string(name_of(request.collective));
    d.group = g.flow;
    d.phase = "entry";
    ticket->finish(
        Status(entry.status().code(), d.op_name + " #" + std::to_string(number) + ": " + entry.status().text(), d));
    return;
  }
  if (m.operations.empty()) active_.push_back(&m);
  m.operations.emplace_back();
  Operation& op = m.operations.back();
  ++operations_in_flight_;
  op.number = number;
  op.request = request;
  op.ticket = ticket;
  op.entry = entry.value();
  op.entered = op.last_progress = now_;
  op.deadline = called.deadline;
  op.run = std::move(run);
  op.run->member = &m;
  op.run->number = number;

  const Program& program = op.entry->program;
  op.signature = make_signature(m, request, program);
  op.hash = signature_hash(op.signature);
  m.history[number % GroupMember::kHistory] = op.signature;
  g.entered[static_cast<std::size_t>(m.rank)] = number;

  op.run->executor.bind(request.input, request.output, request.type, request.redop);
  op.remaining_seen = op.run->executor.remaining();

  // What neighbours have told already: their arguments, and that they have room.
  for (std::size_t i = 0; i < m.early.size();) {
    if (m.early[i].op != number) {
      ++i;
      continue;
    }
    const auto early = m.early[i];
    m.early[i] = m.early.back();
    m.early.pop_back();
    if (!agrees(m, op, early.source, early.payload)) return;  // the group is dead, and this operation with it
    const int slot = program.slot_of(early.source);
    if (slot >= 0) op.run->peer_ready[static_cast<std::size_t>(slot)] = 1;
  }
  for (std::uint32_t s = 0; s < program.peers.size(); ++s) {
    if (op.run->peer_engine[s] != my_engine_) {
      if (Channel* c = channel_to(op.run->peer_engine[s])) c->wake();
      continue;
    }
    // A neighbour in this very engine.
    GroupMember* other = g.member(program.peers[s].rank);
    if (other == nullptr || later(number, other->entered)) continue;
    Operation* theirs = other->find(number);
    wire::SignaturePayload told = other->history[number % GroupMember::kHistory];
    if (theirs != nullptr) told = addressed(told, theirs->request, static_cast<std::size_t>(m.rank));
    if (!agrees(m, op, other->rank, told)) return;
    op.run->peer_ready[s] = 1;
    if (theirs != nullptr) {
      const int slot = theirs->entry->program.slot_of(m.rank);
      if (slot >= 0) theirs->run->peer_ready[static_cast<std::size_t>(slot)] = 1;
    }
  }
  local_dirty_ = true;
  drain_eager(m, op);
}

// Pieces that came before we entered.
void Engine::drain_eager(GroupMember& m, Operation& op) {
  const std::uint32_t flow = m.group->flow, epoch = m.group->epoch;
  for (std::size_t s = 0; s < op.run->peer_engine.size(); ++s) {
    const std::uint32_t engine = op.run->peer_engine[s];
    if (engine == my_engine_ || !peers_[engine].eager || peers_[engine].eager->empty()) continue;
    EagerStore& store = *peers_[engine].eager;
    store.for_each([&](EagerStore::Entry& e) {
      const wire::Header& h = e.header;
      if (!e.complete || h.flow != flow || h.epoch != epoch || h.op != op.number || h.destination != m.rank) return;
      bool other_landing = false;
      // Lengths are the sender's word here: nothing was known of the operation when it came.
      if (h.signature == op.hash && op.run->executor.fits(h.source, h.step, h.piece, h.payload_bytes)) {
        op.run->executor.arrived(h.source, h.step, h.piece, store.data(e), &other_landing, crc_in(h));
      }
      store.release(&e);
    });
  }
}

// What rank `source` called, against the own operation.
bool Engine::agrees(GroupMember& m, const Operation& op, int source, const wire::SignaturePayload& theirs) {
  return compare(m, op.number, addressed(op.signature, op.request, static_cast<std::size_t>(source)), theirs);
}

// False when the arguments differ: the group has been ended then.
bool Engine::compare(GroupMember& m, std::uint32_t number, const wire::SignaturePayload& mine,
                     const wire::SignaturePayload& theirs) {
  // The lower rank first, so that every rank that finds the same pair says the same sentence.
  const bool mine_first = mine.world_rank < theirs.world_rank;
  const std::string difference = disagreement(mine_first ? mine : theirs, mine_first ? theirs : mine);
  if (difference.empty()) return true;
  Verdict v;
  v.code = CANARY_MISMATCH;
  v.rank = static_cast<int>(theirs.world_rank);
  v.op = number;
  v.text = "operation #" + std::to_string(number) + " of group " + std::to_string(m.group->flow) + ": " + difference;
  kill(*m.group, v, true);
  return false;
}

void Engine::settle_debt(Peer& peer, const wire::Header& signature) {
  const auto debt = std::find_if(peer.debts.begin(), peer.debts.end(), [&](const EagerDebt& d) {
    return d.flow == signature.flow && d.epoch == signature.epoch && d.op == signature.op && d.to == signature.source &&
           d.from == signature.destination;
  });
  if (debt == peer.debts.end()) return;
  peer.eager_used -= debt->bytes;
  *debt = peer.debts.back();
  peer.debts.pop_back();
  peer.channel->wake();
}

void Engine::mark_ready(Operation& op, std::uint32_t slot) {
  Run& run = *op.run;
  if (run.peer_ready[slot]) return;
  run.peer_ready[slot] = 1;
  Peer& peer = peers_[run.peer_engine[slot]];
  const bool budget_freed = run.eager_bytes[slot] != 0;
  peer.eager_used -= run.eager_bytes[slot];
  run.eager_bytes[slot] = 0;
  if (peer.channel && (budget_freed || run.executor.has_send(slot))) peer.channel->wake();
  if (run.executor.complete()) local_dirty_ = true;  // it may be all that was left to hear
  op.last_progress = now_;
}

bool Engine::admit_signature(GroupMember& m, int source, std::uint32_t number, const wire::SignaturePayload& theirs) {
  if (later(number, m.entered)) {
    for (const auto& e : m.early) {
      if (e.op == number && e.source == source) return true;
    }
    if (m.early.size() >= kEarlyMax) return false;
    m.early.push_back({static_cast<std::uint16_t>(source), number, theirs});
    return true;
  }
  if (Operation* op = m.find(number)) {
    if (!agrees(m, *op, source, theirs)) return true;
    const int slot = op->entry->program.slot_of(source);
    if (slot >= 0) mark_ready(*op, static_cast<std::uint32_t>(slot));
  } else if (m.entered - number < GroupMember::kHistory) {
    // What passed between the two was compared while the operation ran: it does not end before.
    wire::SignaturePayload mine = m.history[number % GroupMember::kHistory];
    if (mine.collective == static_cast<std::uint32_t>(Collective::kAllToAllV)) {
      mine.counts[0] = theirs.counts[1];
      mine.counts[1] = theirs.counts[0];
    }
    compare(m, number, mine, theirs);
  }
  return true;
}

// --- sending ---------------------------------------------------------------------------------------------------------

bool Engine::next_piece(Channel& channel, OutPiece* out) {
  // Operations and messages take turns: neither waits for the other's stream to end.
  Peer& peer = peers_[channel.peer()];
  const auto messages = [&] { return !peer.left && !channel.peer_left() && messages_.next_piece(*peer.messages, out); };
  peer.messages->turn = !peer.messages->turn;
  if (peer.messages->turn && messages()) return true;
  return next_operation_piece(channel, out) || (!peer.messages->turn && messages());
}

std::uint64_t Engine::waiting_bytes(const Channel& channel) const {
  const Peer& peer = peers_[channel.peer()];
  if (peer.left || channel.peer_left()) return 0;
  std::uint64_t bytes = Messages::waiting_bytes(*peer.messages);
  for (const GroupMember* m : active_) {
    for (const Operation& op : m->operations) {
      for (std::uint32_t s = 0; s < op.run->peer_engine.size(); ++s) {
        if (op.run->peer_engine[s] == channel.peer()) bytes += op.run->executor.sends_waiting(s);
      }
    }
  }
  return bytes;
}

bool Engine::next_operation_piece(Channel& channel, OutPiece* out) {
  const std::uint32_t engine = channel.peer();
  Peer& peer = peers_[engine];
  const bool departed = peer.left || channel.peer_left();
  for (GroupMember* m : active_) {
    for (Operation& op : m->operations) {
      Run& run = *op.run;
      const Program& program = op.entry->program;
      for (std::uint32_t s = 0; s < run.peer_engine.size(); ++s) {
        if (run.peer_engine[s] != engine) continue;
        if (!run.signature_sent[s]) {
          run.signature_sent[s] = 1;
          if (--run.signatures_left == 0) local_dirty_ = true;  // it may be all that was left to do
          if (departed)
            continue;  // nobody reads it; frames that no lane takes would keep later operations' from being counted
          out->header = piece_header(*m, op, wire::Kind::kSignature, program.peers[s].rank);
          outgoing_signature_ = addressed(op.signature, op.request, static_cast<std::size_t>(program.peers[s].rank));
          out->header.payload_bytes = sizeof outgoing_signature_;
          out->payload = reinterpret_cast<const std::byte*>(&outgoing_signature_);  // small enough to be copied at once
          out->cookie = kNoCookie;
          out->rail = -1;
          return true;
        }
        if (departed || !run.executor.has_send(s)) continue;
        const Executor::SendCell cell = run.executor.peek_send(s);
        if (!run.peer_ready[s]) {
          const std::uint32_t charge = EagerStore::charge(cell.bytes);
          if (peer.eager_used + charge > static_cast<std::uint64_t>(options_.settings.eager_bytes.count)) continue;
          peer.eager_used += charge;
          run.eager_bytes[s] += charge;
        }
        run.executor.pop_send(s);
        out->header = piece_header(*m, op, wire::Kind::kPiece, program.peers[s].rank);
        if (channel.checked()) out->header.payload_crc32 = run.executor.crc_of(cell);
        out->has_payload_crc = channel.checked();
        out->header.step = cell.step->tag;
        out->header.piece = cell.cell - cell.step->cell_begin;
        out->header.payload_bytes = cell.bytes;
        out->payload = cell.data;
        out->cookie = cookie_of(run, cell.unit);
        out->rail = cell.step->rail;
        return true;
      }
    }
  }
  return false;
}

void Engine::wake_slots(Operation& op) {
  std::uint32_t slot = 0;
  while (op.run->executor.take_ready_slot(&slot)) {
    const std::uint32_t engine = op.run->peer_engine[slot];
    if (engine == my_engine_) {
      local_dirty_ = true;
    } else if (Channel* c = channel_to(engine)) {
      c->wake();
    }
  }
  if (op.run->executor.has_taken()) local_dirty_ = true;
}

void Engine::on_done(Channel&, std::uint64_t cookie) {
  if (Messages::is_message(cookie)) return messages_.on_done(cookie, now_);
  const auto index = static_cast<std::size_t>(cookie >> 32);
  Run* run = index < runs_.size() ? runs_[index] : nullptr;
  if (run == nullptr || run->member == nullptr) return;
  run->executor.sent(static_cast<std::uint32_t>(cookie));
  Operation* op = run->member->find(run->number);
  CANARY_CHECK(op != nullptr, "a run without its operation");
  wake_slots(*op);
  if (run->executor.complete()) local_dirty_ = true;
}

// Steps between ranks of this engine: memory to memory, no lane. One rank after the other passes a cell to each of its
// neighbours, so that the sums of all grow side by side and a cell leaves for the network while the next one is added.
// False: there is nothing to pass.
bool Engine::pump_local(std::uint64_t* budget) {
  constexpr std::uint64_t kCellCost = 512;  // bytes; so that empty cells end, too
  bool moved = false;
  const std::size_t members = active_.size();
  for (std::size_t i = 0; i < members && *budget != 0; ++i) {
    GroupMember* m = active_[local_turn_++ % members];
    for (Operation& op : m->operations) {
      Run& run = *op.run;
      if (run.neighbours == 0) continue;
      for (Executor::Taken taken; run.executor.next_taken(&taken); moved = true) taken.from->sent(taken.unit);
      for (std::uint32_t s = 0; s < run.peer_engine.size(); ++s) {
        if (run.peer_engine[s] != my_engine_ || !run.peer_ready[s] || !run.executor.has_send(s)) continue;
        GroupMember* other = m->group->member(op.entry->program.peers[s].rank);
        Operation* theirs = other != nullptr ? other->find(op.number) : nullptr;
        CANARY_CHECK(theirs != nullptr, "a ready neighbour has completed without our pieces");
        const Executor::SendCell cell = run.executor.peek_send(s);
        run.executor.pop_send(s);
        if (theirs->run->executor.take(m->rank, cell.step->tag, cell.cell - cell.step->cell_begin, cell.data,
                                       cell.bytes, {&run.executor, cell.unit})) {
          run.executor.sent(cell.unit);
        }
        moved = true;
        *budget -= std::min(*budget, cell.bytes + kCellCost);
        wake_slots(*theirs);
      }
      wake_slots(op);
    }
  }
  return moved;
}

// --- arriving --------------------------------------------------------------------------------------------------------

Landing Engine::landing_for(Channel& channel, const wire::Header& h) {
  if (Messages::is_message(h)) return messages_.landing_for(*peers_[channel.peer()].messages, where_is(channel, h), h);
  if (h.kind == wire::Kind::kSignature) return {Landing::Kind::kSlot, nullptr, kLanded};
  const Landing forget{Landing::Kind::kDiscard, nullptr, kAckDiscarded};
  Group* g = find_group(h.flow);
  GroupMember* m = g != nullptr ? g->member(h.destination) : nullptr;
  if (g == nullptr && over()) return forget;
  if (g != nullptr && (g->dead || g->epoch != h.epoch || m == nullptr || !served_by(*g, h.source, channel.peer())))
    return forget;
  if (m != nullptr && !later(h.op, m->entered)) {
    Operation* op = m->find(h.op);
    // Completed: it has arrived before. Another signature: theirs, on its way, ends the group.
    if (op == nullptr || h.signature != op->hash) return forget;
    const auto place = op->run->executor.place_for(h.source, h.step, h.piece, h.payload_bytes);
    switch (place.kind) {
      case Executor::PlaceKind::kSpan:
        return {Landing::Kind::kSpan, place.data, kLanded};
      case Executor::PlaceKind::kSlot:
        return {Landing::Kind::kSlot, nullptr, kLanded};
      case Executor::PlaceKind::kDuplicate:
      case Executor::PlaceKind::kUnknown:
        return forget;
    }
  }
  // Not entered yet (or the group is not known here yet): eager.
  EagerStore& store = *peers_[channel.peer()].eager;
  if (EagerStore::Entry* known = store.find(h)) {
    return known->complete ? forget : Landing{Landing::Kind::kDiscard, nullptr, kNoPlace};
  }
  EagerStore::Entry* e = store.take(h);
  if (e == nullptr) return {Landing::Kind::kDiscard, nullptr, kNoPlace};
  return {Landing::Kind::kSpan, store.data(*e), kParked};
}

bool Engine::on_arrival(Channel& channel, const wire::Header& h, const Arrival& arrival) {
  if (Messages::is_message(h))
    return messages_.on_arrival(*peers_[channel.peer()].messages, where_is(channel, h), h, arrival, now_);
  if (h.kind == wire::Kind::kSignature) {
    wire::SignaturePayload theirs;
    if (arrival.payload.size() != sizeof theirs) return true;
    std::memcpy(&theirs, arrival.payload.data(), sizeof theirs);
    Group* g = find_group(h.flow);
    if (g == nullptr) {
      settle_debt(peers_[channel.peer()], h);  // of a rank that is done with the group
      if (over()) return true;
      // Its creation is on the way to us.
      if (strays_.size() >= kStraysMax) return false;
      strays_.push_back({h.flow, h.epoch, h.source, h.destination, channel.peer(), h.op, theirs});
      return true;
    }
    if (g->dead || g->epoch != h.epoch || !served_by(*g, h.source, channel.peer())) return true;
    settle_debt(peers_[channel.peer()], h);
    auto& entered = g->entered[h.source];
    entered = later_of(entered, h.op);
    GroupMember* m = g->member(h.destination);
    return m == nullptr || admit_signature(*m, h.source, h.op, theirs);
  }
  if (arrival.discarded) return arrival.cookie != kNoPlace;
  EagerStore& store = *peers_[channel.peer()].eager;
  EagerStore::Entry* parked = arrival.cookie == kParked ? store.find(h) : nullptr;
  Group* g = find_group(h.flow);
  GroupMember* m = g != nullptr ? g->member(h.destination) : nullptr;
  const bool theirs = g != nullptr && !g->dead && h.epoch == g->epoch && served_by(*g, h.source, channel.peer());
  Operation* op = m != nullptr && theirs ? m->find(h.op) : nullptr;
  if (parked != nullptr && op == nullptr) {
    parked->complete = true;
    // Entered and even completed meanwhile (over another lane), or dead: nobody will drain it.
    if (g == nullptr ? over() : !theirs || m == nullptr || !later(h.op, m->entered)) store.release(parked);
    return true;
  }
  // What was parked when its operation was entered has not been compared with it yet.
  if (op != nullptr && h.signature == op->hash && op->run->executor.fits(h.source, h.step, h.piece, h.payload_bytes)) {
    bool other_landing = false;
    if (op->run->executor.arrived(h.source, h.step, h.piece, arrival.payload.data(), &other_landing, crc_in(h))) {
      op->last_progress = now_;
      m->group->entered[h.source] = later_of(m->group->entered[h.source], h.op);
      wake_slots(*op);
      if (op->run->executor.complete()) local_dirty_ = true;
      if (other_landing) channel.redirect_landing(h);
    }
  }
  if (parked != nullptr) store.release(parked);
  return true;
}

void Engine::on_landing_lost(Channel& channel, const wire::Header& h, std::uint64_t cookie) {
  if (Messages::is_message(h))
    return messages_.on_landing_lost(*peers_[channel.peer()].messages, where_is(channel, h), h, cookie);
  // By its cookie: a piece may be landing in the store over one lane and, its operation entered since, in place over
  // another.
  if (cookie == kParked) {
    EagerStore& store = *peers_[channel.peer()].eager;
    if (EagerStore::Entry* e = store.find(h); e != nullptr && !e->complete) store.release(e);
    return;
  }
  Group* g = find_group(h.flow);
  GroupMember* m = g != nullptr ? g->member(h.destination) : nullptr;
  if (m == nullptr) return;
  if (Operation* op = m->find(h.op)) op->run->executor.landing_lost(h.source, h.step, h.piece);
}

// --- completing ------------------------------------------------------------------------------------------------------

bool Engine::finish_completed(GroupMember& m) {
  bool any = false;
  for (std::size_t i = 0; i < m.operations.size();) {
    Operation& op = m.operations[i];
    const bool heard = !op.entry->program.waits_for_signatures() || op.run->heard_of_all();
    if (!op.run->executor.complete() || op.run->signatures_left != 0 || !heard) {
      ++i;
      continue;
    }
    m.last_algorithm.store(name_of(op.entry->program.planner).data(), std::memory_order_release);
    finish(m, op, Status());
    any = true;
  }
  return any;
}

// `op` is gone afterwards.
void Engine::finish(GroupMember& m, Operation& op, Status status) {
  OpTicket* ticket = op.ticket;
  return_run(op);
  m.operations.erase(m.operations.begin() + (&op - m.operations.data()));
  --operations_in_flight_;
  ++operations_ended_;
  operations_failed_ += !status.ok();
  if (m.operations.empty()) active_.erase(std::find(active_.begin(), active_.end(), &m));
  ticket->finish(std::move(status));
}

}  // namespace canarynet
