// Operations of the engine: entering, progress, completing. engine/operation_flow.h sends and lands their frames.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/serial.h"
#include "compress/codec_ask.h"
#include "engine/engine.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

constexpr std::size_t kProgramsMax = 128;  // cached shapes per member
constexpr std::size_t kEarlyMax = 4096;    // signatures ahead of their operation

std::optional<std::uint32_t> crc_in(const wire::Header& h) {
  if ((h.flags & wire::kUnchecked) != 0) return std::nullopt;
  return h.payload_crc32;
}

}  // namespace

// --- programs --------------------------------------------------------------------------------------------------------

// What is equal for all operations of the group.
PlanRequest Engine::plan_request(const Group& g) const {
  PlanRequest request;
  request.ranks = static_cast<int>(g.members.size());
  request.reach = g.reach.get();
  request.bcube = g.bcube;
  request.servers = static_cast<int>(options_.settings.ps_servers);
  request.host_of = g.host_of;
  request.rail_rates = g.rail_rates;
  request.ring_order = g.ring_order;
  request.cores = g.cores;
  return request;
}

// `known_static`: a program of this shape that the static choice made; it would choose the same again, and take long.
// `carries`: what the codec of this number makes.
Result<Choice> Engine::choose(GroupMember& m, const PlanRequest& request, const MeasuredTable& table,
                              std::uint32_t carries, ProgramEntry* known_static, ChoiceUse::Cell* use) {
  auto by_row = choice_of_rows(request, decisions_, table, carries);
  if (!by_row.ok()) return by_row.status();
  if (by_row.value()) return *by_row.value();
  if (known_static != nullptr) return Choice{known_static->program.planner, 0, ChosenBy::kStatic};
  const bool encoded = carries != 0 && !makes_chain(codec_of_number(carries).value().kind);
  const auto chosen = encoded ? select_coded_planner(request, {}) : select_planner(request, {});
  if (chosen.status().code() == CANARY_UNREACHABLE) {
    return Status(CANARY_UNREACHABLE, chosen.status().text() + " (which NICs meet: CANARY_RAIL_PAIRING=" +
                                          name_of(roster_->pairing) + ", subnets and routes)");
  }
  if (!chosen.ok()) return chosen.status();
  if (use == nullptr) return Choice{chosen.value(), 0, ChosenBy::kStatic};
  use->static_choice = chosen.value();
  if (use->codec == 0) use->measured = options_.settings.measured_choice;
  if (!std::exchange(use->static_known, true) && m.group->decisions && use->measured) {
    m.group->decisions->note_new_class();
    decisions_due_ = Nanos{};
  }
  return Choice{chosen.value(), 0, ChosenBy::kStatic};
}

// Operations are numbered when they ask: m.entered is this one's.
Result<ProgramEntry*> Engine::program_for(GroupMember& m, const OpRequest& r) {
  const auto element = static_cast<std::uint32_t>(size_of(r.type));
  const int root = has_root(r.collective) ? r.root : 0;
  const DecisionFlow* const decisions = m.group->decisions.get();
  static const MeasuredTable kNoTable;
  const MeasuredTable& table = decisions != nullptr ? decisions->table_for(m.entered) : kNoTable;
  CodecSpec codec = codec_of(m, r, table);
  bool coded = codec.kind != CodecKind::kDense;
  std::uint32_t carries = coded ? codec_number(codec).value() : r.carries;
  const bool measured = carries != 0 && measures_plan(m, r);
  ++m.uses;
  const auto is_of_shape = [&](const ProgramEntry& e) {
    const Program& p = e.program;
    return p.collective == r.collective && p.count == r.count && p.element_bytes == element && p.root == root &&
           p.codec == codec && e.carries == carries &&
           std::equal(p.counts.begin(), p.counts.end(), r.counts.begin(), r.counts.end());
  };
  ProgramEntry* known_static = nullptr;
  for (auto& e : m.programs) {
    if (!is_of_shape(*e)) continue;
    if (measured && e->use != nullptr && !e->use->measured) continue;  // it was chosen before somebody asked
    if (e->decided_by == table.identity()) {
      e->last_used = m.uses;
      return e.get();
    }
    if (e->by == ChosenBy::kStatic) known_static = e.get();
  }
  PlanRequest request = plan_request(*m.group);
  request.collective = r.collective;
  request.count = r.count;
  request.counts = r.counts;
  request.element_bytes = element;
  request.root = root;
  const std::uint64_t bytes = operation_bytes(request);
  const auto use_of_plain = [&] {
    ChoiceUse::Cell& use = m.group->use.cell(r.collective, bytes);
    use.element_bytes = element;
    use.root = root;
    return &use;
  };
  ChoiceUse::Cell* use = carries != 0 ? coded_use(m, r, codec, carries, request) : use_of_plain();
  auto choice = choose(m, request, table, carries, known_static, use);
  if (!choice.ok() && coded && asks_for_choice(r.codec)) {
    codec = {};  // a user's row forces a plan that takes no codec for this very size
    coded = false;
    carries = 0;
    use = use_of_plain();
    choice = choose(m, request, table, 0, nullptr, use);
  }
  if (!choice.ok()) return choice.status();
  const auto job_piece = static_cast<std::uint32_t>(roster_->piece_bytes.count);
  const Choice& chosen = choice.value();
  std::vector<std::uint16_t> order;
  if (chosen.in_order) request.ring_order = order = table.ring_order();
  const std::uint32_t asked = chosen.piece_bytes != 0 ? std::min(chosen.piece_bytes, job_piece) : job_piece;
  const std::uint64_t part = bytes / static_cast<std::uint64_t>(request.ranks);
  const std::uint32_t piece = coded ? coded_piece_bytes(codec, asked, part) : asked;
  for (auto& e : m.programs) {
    if (!is_of_shape(*e) || e->program.planner != chosen.planner || e->program.piece_bytes != piece ||
        e->ring_order != order)
      continue;
    e->decided_by = table.identity();
    e->by = chosen.by;
    e->use = use;
    e->last_used = m.uses;
    return e.get();
  }
  auto entry = std::make_unique<ProgramEntry>();
  entry->program = compile(chosen.planner, request, m.rank, piece, codec);
  entry->last_used = m.uses;
  entry->bytes = bytes;
  entry->decided_by = table.identity();
  entry->by = chosen.by;
  entry->ring_order = std::move(order);
  entry->carries = carries;
  entry->use = use;
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
    const auto moved = static_cast<std::int64_t>(r.count * element);
    log(LogLevel::kDebug, "group %u, rank %d: %s of %s among %d ranks by %s", m.group->flow, m.rank,
        std::string(name_of(r.collective)).c_str(), as_written(Bytes{moved}).c_str(), request.ranks,
        std::string(name_of(chosen.planner)).c_str());
  }
  m.programs.push_back(std::move(entry));
  return m.programs.back().get();
}

std::unique_ptr<Run> Engine::take_run(ProgramEntry* entry, Group& group, canary_priority priority) {
  std::unique_ptr<Run> run;
  if (!entry->idle.empty()) {
    run = std::move(entry->idle.back());
    entry->idle.pop_back();
  } else {
    entry->idle.reserve(entry->idle.capacity() + 1);
    run = std::make_unique<Run>(entry->program);
    for (RunPartner& partner : run->partners) {
      partner.engine = group.engine_of[static_cast<std::size_t>(entry->program.peers[partner.index].rank)];
      if (partner.engine == my_engine_) {
        ++run->neighbours;
        continue;
      }
      partner.peer = group_peer(group, partner.engine);
      CANARY_CHECK(partner.peer != nullptr, "a plan uses only what connects");
    }
    if (run->neighbours != 0) run->executor.expect_neighbours();
    const auto hole = std::find(runs_.begin(), runs_.end(), nullptr);
    run->index = static_cast<std::uint32_t>(hole - runs_.begin());
    if (hole == runs_.end()) runs_.push_back(nullptr);
    runs_[run->index] = run.get();
    to_look_at_.reserve(2 * runs_.size());  // a run that is given up may stand there beside the one in its place
  }
  ++entry->busy;
  for (RunPartner& partner : run->partners) {
    partner.ready = partner.signature_sent = false;
    partner.eager_bytes = 0;
    if (partner.peer != nullptr) partner.turn = &partner.peer->turn_of(priority);
  }
  run->signatures_left = static_cast<std::uint32_t>(run->partners.size()) - run->neighbours;
  return run;
}

void Engine::return_run(Operation& op) {
  if (!op.run) return;
  const GroupMember& m = *op.run->member;
  for (RunPartner& partner : op.run->partners) {
    dequeue(partner);
    if (partner.eager_bytes == 0) continue;
    EnginePeer& peer = peers_[partner.engine];
    if (m.group->dead) {
      charge_less(peer, partner.eager_bytes);  // the verdict empties its store, too
    } else {
      const int rank = op.entry->program.peers[partner.index].rank;
      const EagerDebt debt{m.group->flow,
                           m.group->epoch,
                           op.number,
                           static_cast<std::uint16_t>(m.rank),
                           static_cast<std::uint16_t>(rank),
                           partner.eager_bytes};
      peer.debts->add(debt.hash(), debt);
    }
  }
  CANARY_CHECK(op.run->neighbours == 0 || neighbourly_ != 0, "an operation with ranks of this engine ends twice");
  neighbourly_ -= op.run->neighbours != 0;
  op.run->member = nullptr;
  --op.entry->busy;
  op.entry->idle.push_back(std::move(op.run));
}

// --- entering --------------------------------------------------------------------------------------------------------

void Engine::enter(GroupMember& m, const CalledOperation& called) {
  const OpRequest& request = called.request;
  const Collective named = called.chained ? Collective::kAllReduce : request.collective;  // by the caller
  OpTicket* const ticket = called.ticket;
  Group& g = *m.group;
  const std::uint32_t number = ++m.entered;
  ticket->number = number;
  if (g.dead) {
    ErrorDetail d = g.verdict.detail();
    d.op = number;
    d.op_name = std::string(name_of(named));
    d.phase = "entry";
    d.elapsed = now_ - called.submitted;
    ticket->finish(Status(g.verdict.code(), d.op_name + " #" + std::to_string(number) + ": " + g.verdict.text(), d));
    return;
  }
  std::unique_ptr<Run> run;
  ErrorFeedback::Exchange feedback;
  auto entry = [&]() -> Result<ProgramEntry*> {
    try {
      m.operations.make_room();
      auto found = program_for(m, request);
      if (!found.ok()) return found;
      if (Status begun = begin_feedback(m, called, found.value()->program, &feedback); !begun.ok()) return begun;
      run = take_run(found.value(), g, request.priority);
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
    d.op_name = std::string(name_of(named));
    d.group = g.flow;
    d.phase = "entry";
    ticket->finish(
        Status(entry.status().code(), d.op_name + " #" + std::to_string(number) + ": " + entry.status().text(), d));
    return;
  }
  if (m.operations.empty()) active_.push_back(&m);
  Operation& op = m.operations.add(number);
  ++operations_in_flight_;
  op.request = request;
  op.ticket = ticket;
  op.entry = entry.value();
  op.entered = now_;
  op.deadline = called.deadline;
  op.chained = called.chained;
  op.run = std::move(run);
  op.run->member = &m;
  neighbourly_ += op.run->neighbours != 0;
  op.run->number = number;
  if (ChoiceUse::Cell* const use = op.entry->use; use != nullptr) {
    const bool wakes = use->idle(number);
    use->note_entered(op.entry->bytes, number, !tells_time_of_call(m, op));
    if (wakes && g.decisions) g.decisions->note_class_wakes();
  }
  op.run->entered = ++operations_entered_;
  op.run->last_progress = now_;

  const Program& program = op.entry->program;
  op.signature = make_signature(m, request, program);
  if (op.chained) m.chain->sign(&op.signature);
  op.hash = signature_hash(op.signature);
  m.history[number % GroupMember::kHistory] = op.signature;
  g.entered[static_cast<std::size_t>(m.rank)] = number;

  note_asked(m, op);
  bind(m, op, feedback, called.null_pieces);
  op.remaining_seen = op.run->executor.remaining();

  // Some neighbours have told already what they were called with, and that they have room.
  GroupMember::EarlySignature early;
  const auto is_of_it = [&](const auto& e) { return e.op == number; };
  while (m.early.take(number, is_of_it, &early)) {
    if (!agrees(m, op, early.source, early.payload)) return;  // the group is dead, and this operation with it
    const int partner = program.peer_index(early.source);
    if (partner >= 0) op.run->partners[static_cast<std::size_t>(partner)].ready = true;
  }
  for (std::uint32_t s = 0; s < program.peers.size(); ++s) {
    if (op.run->partners[s].peer != nullptr) {
      if (!waits_for_its_piece(op, op.run->partners[s])) enqueue(op.run->partners[s]);  // its signature is due
      continue;
    }
    // A neighbour in this very engine.
    GroupMember* other = g.member(program.peers[s].rank);
    if (other == nullptr) continue;
    if (later(number, other->entered)) {
      if (other->session != nullptr) hear_of_round(*other, m.rank, number);
      continue;
    }
    Operation* theirs = other->find(number);
    wire::SignaturePayload told = other->history[number % GroupMember::kHistory];
    if (theirs != nullptr) told = addressed(told, theirs->request, static_cast<std::size_t>(m.rank));
    if (!agrees(m, op, other->rank, told)) return;
    op.run->partners[s].ready = true;
    if (theirs != nullptr) {
      const int partner = theirs->entry->program.peer_index(m.rank);
      if (partner >= 0) theirs->run->partners[static_cast<std::size_t>(partner)].ready = true;
      look_at(*theirs->run);
    }
  }
  local_dirty_ = true;
  drain_eager(m, op);
  for (RunPartner& partner : op.run->partners) {
    if (partner.peer == nullptr) continue;
    if (partner.list == RunPartner::List::kNone && op.run->executor.has_send(partner.index)) {
      enqueue(partner);  // that made the piece ready which its signature waits for
    } else {
      count_waiting(partner);  // what that made ready; their turns have come already
    }
  }
  look_at(*op.run);
}

// Whether the signature for the partner may stay until the first piece for it is ready, to share its frame; announce()
// ends the wait. Besides its arguments a signature tells of room, which the partner does not lack: half of what it may
// send ahead of us is enough for all that operations in flight can bring, and pieces of operations that are not entered
// here fill less than the other half.
bool Engine::waits_for_its_piece(const Operation& op, const RunPartner& partner) const {
  if (op.run->member->session != nullptr) return false;  // it is what tells the partner of a round
  const Program& program = op.entry->program;
  const ProgramPeer& peer = program.peers[partner.index];
  const std::uint64_t bytes = program.piece_offset.back();
  if (peer.send_tasks == 0 || op.run->executor.has_send(partner.index) || program.coded()) return false;
  if (bytes > kCopiedPieceBytes - sizeof op.signature || program.waits_for_signatures()) return false;
  // Callers who drive may not look for long.
  if (!options_.settings.progress_thread || peers_[partner.engine].eager->half_full()) return false;
  const std::uint64_t charge = EagerStore::charge(static_cast<std::uint32_t>(bytes));
  const auto budget = static_cast<std::uint64_t>(options_.settings.eager_bytes.count);
  return charge * peer.receive_tasks * operations_in_flight_ <= budget / 2;
}

// Signatures whose piece has not become ready go by themselves: to one engine, or to all, which happens at every look,
// so that nobody waits for long to hear that a rank has called, and with what.
void Engine::announce(GroupMember& m, std::optional<std::uint32_t> to) {
  for (Operation& op : m.operations) {
    if (op.run->signatures_left == 0) continue;
    for (RunPartner& partner : op.run->partners) {
      const bool meant = partner.peer != nullptr && (!to || partner.engine == *to);
      if (meant && !partner.signature_sent) enqueue(partner);
    }
  }
}

// Pieces that came before we entered.
void Engine::drain_eager(GroupMember& m, Operation& op) {
  const std::uint32_t flow = m.group->flow, epoch = m.group->epoch;
  for (const RunPartner& partner : op.run->partners) {
    const EnginePeer& peer = peers_[partner.engine];
    if (partner.peer == nullptr || !peer.eager || peer.eager->empty()) continue;
    EagerStore& store = *peer.eager;
    const auto source = static_cast<std::uint16_t>(op.entry->program.peers[partner.index].rank);
    const auto mine = static_cast<std::uint16_t>(m.rank);
    store.for_each_of(flow, epoch, op.number, source, mine, [&](EagerStore::Entry& e) {
      const wire::Header& h = e.header;
      if (!e.complete) return true;
      bool other_landing = false;
      // Lengths are the sender's word here: nothing was known of the operation when it came.
      std::uint32_t task = 0;
      if (h.signature == op.hash && op.run->executor.fits(h.source, h.step, h.piece, h.payload_bytes, &task))
        op.run->executor.arrived(task, {store.data(e), h.payload_bytes}, &other_landing, crc_in(h));
      store.release(&e);
      return true;
    });
  }
}

// Compares the call of rank `source` with the own operation.
bool Engine::agrees(GroupMember& m, const Operation& op, int source, const wire::SignaturePayload& theirs) {
  return compare(m, op.number, addressed(op.signature, op.request, static_cast<std::size_t>(source)), theirs);
}

// False when the arguments differ: the group has been ended then.
bool Engine::compare(GroupMember& m, std::uint32_t number, const wire::SignaturePayload& mine,
                     const wire::SignaturePayload& theirs) {
  if (same_arguments(mine, theirs)) return true;
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

void Engine::settle_debt(EnginePeer& peer, const wire::Header& signature) {
  const EagerDebt wanted{signature.flow, signature.epoch, signature.op, signature.destination, signature.source};
  const auto is = [&](const EagerDebt& d) {
    return d.flow == wanted.flow && d.epoch == wanted.epoch && d.op == wanted.op && d.from == wanted.from &&
           d.to == wanted.to;
  };
  EagerDebt debt;
  if (peer.debts && peer.debts->take(wanted.hash(), is, &debt)) charge_less(peer, debt.bytes);
}

void Engine::mark_ready(Operation& op, std::uint32_t index) {
  Run& run = *op.run;
  RunPartner& partner = run.partners[index];
  if (partner.ready) return;
  partner.ready = true;
  const std::uint32_t charged = std::exchange(partner.eager_bytes, 0);
  if (charged != 0) charge_less(peers_[partner.engine], charged);
  if (partner.peer != nullptr && run.executor.has_send(index)) enqueue(partner);
  if (run.executor.complete()) look_at(run);  // it may be all that was left to hear
  run.last_progress = now_;
}

// The run has something to send to the partner: it stands behind older operations of its priority.
void Engine::enqueue(RunPartner& partner) {
  if (partner.list != RunPartner::List::kSending) {
    dequeue(partner);
    partner.list = RunPartner::List::kSending;
    partner.turn->sending.insert(partner);
  }
  count_waiting(partner);
  // Also where it stood there: the more waits, the slower the lane that is worth using.
  peers_[partner.engine].mux->make_ready(*partner.turn);
}

void Engine::dequeue(RunPartner& partner) {
  if (partner.list == RunPartner::List::kSending) partner.turn->sending.remove(partner);
  if (partner.list == RunPartner::List::kPoor) peers_[partner.engine].poor.remove(partner);
  partner.list = RunPartner::List::kNone;
  if (partner.counted != 0) count_waiting(partner);
}

// Its part in what waits for its turn, after its list or its pieces have changed.
void Engine::count_waiting(RunPartner& partner) {
  const bool sends = partner.list == RunPartner::List::kSending;
  const std::uint64_t bytes = sends ? partner.run->executor.sends_waiting(partner.index) : 0;
  if (bytes == partner.counted) return;
  OperationTurn& turn = *partner.turn;
  peers_[partner.engine].mux->set_waiting_bytes(turn, turn.waiting_bytes() + bytes - partner.counted);
  partner.counted = bytes;
}

// The peer has room again for what it is sent ahead of its readiness.
void Engine::charge_less(EnginePeer& peer, std::uint32_t bytes) {
  CANARY_CHECK(bytes <= peer.eager_used, "less was sent ahead to a peer than comes back");
  peer.eager_used -= bytes;
  while (peer.poor.head != nullptr) enqueue(*peer.poor.head);
}

bool Engine::admit_signature(GroupMember& m, int source, std::uint32_t number, const wire::SignaturePayload& theirs) {
  if (later(number, m.entered)) {
    if (m.session != nullptr) hear_of_round(m, source, number);
    if (m.early.size() >= kEarlyMax) return false;
    m.early.add(number, {static_cast<std::uint16_t>(source), number, theirs});  // twice if it came twice: no harm
    return true;
  }
  if (Operation* op = m.find(number)) {
    if (!agrees(m, *op, source, theirs)) return true;
    const int partner = op->entry->program.peer_index(source);
    if (partner >= 0) mark_ready(*op, static_cast<std::uint32_t>(partner));
  } else if (m.entered - number < GroupMember::kHistory) {
    // The counts between the two were compared while the operation ran: it does not end before that.
    wire::SignaturePayload mine = m.history[number % GroupMember::kHistory];
    if (mine.collective == static_cast<std::uint32_t>(Collective::kAllToAllV)) {
      mine.counts[0] = theirs.counts[1];
      mine.counts[1] = theirs.counts[0];
    }
    compare(m, number, mine, theirs);
  }
  return true;
}

// --- progress --------------------------------------------------------------------------------------------------------

void Engine::wake_partners(Run& run) {
  std::uint32_t number = 0;
  while (run.executor.next_woken_peer(&number)) {
    RunPartner& partner = run.partners[number];
    if (partner.peer == nullptr) {
      local_dirty_ = true;
    } else if (partner.list != RunPartner::List::kPoor && run.executor.has_send(number)) {
      enqueue(partner);
    }
  }
  if (run.executor.has_applied()) local_dirty_ = true;
  if (!run.executor.fault().ok()) look_at(run);
}

// A whole and valid piece of its operation's.
void Engine::piece_arrived(Run& run, std::uint32_t task, Mux& from, const wire::Header& h,
                           std::span<const std::byte> payload, std::optional<std::uint32_t> crc) {
  bool other_landing = false;
  if (!run.executor.arrived(task, payload, &other_landing, crc)) return;
  run.last_progress = now_;
  auto& entered = run.member->group->entered[h.source];
  entered = later_of(entered, h.op);
  wake_partners(run);
  if (run.executor.complete()) look_at(run);
  if (other_landing) from.channel()->redirect_landing(h);
}

// A piece whose operation is not entered here yet, or whose group is not known.
Landing Engine::park(std::uint32_t from, const wire::Header& h) {
  EagerStore& store = *peers_[from].eager;
  if (const EagerStore::Entry* known = store.find(h))
    return {Landing::Kind::kDiscard, nullptr, known->complete ? landing::kForgotten : landing::kNoPlace};
  const bool had_room = !store.half_full();
  const EagerStore::Entry* e = store.take(h);
  if (e == nullptr) return {Landing::Kind::kDiscard, nullptr, landing::kNoPlace};
  if (had_room && store.half_full()) {
    for (GroupMember* m : active_) announce(*m, from);  // it may lack room for what is older
  }
  return {Landing::Kind::kSpan, store.data(*e), landing::kParked};
}

// The same for one that has landed elsewhere. False: there is no room for it.
bool Engine::park_whole(std::uint32_t from, const wire::Header& h, std::span<const std::byte> payload) {
  const Landing place = park(from, h);
  if (place.kind == Landing::Kind::kDiscard) return place.cookie != landing::kNoPlace;
  if (!payload.empty()) std::memcpy(place.data, payload.data(), payload.size());
  peers_[from].eager->find(h)->complete = true;
  return true;
}

void Engine::unpark(std::uint32_t from, const wire::Header& h) {
  EagerStore& store = *peers_[from].eager;
  if (EagerStore::Entry* e = store.find(h); e != nullptr && !e->complete) store.release(e);
}

// Steps between ranks of this engine: memory to memory, no lane. One rank after the other passes a piece to each of its
// neighbours, so that the sums of all grow side by side and a piece leaves for the network while the next one is added.
// False: there is nothing to pass.
bool Engine::pump_local(std::uint64_t* budget) {
  constexpr std::uint64_t kPieceCost = 512;  // bytes; so that empty pieces end, too
  bool moved = false;
  const std::size_t members = active_.size();
  for (std::size_t i = 0; i < members && *budget != 0; ++i) {
    GroupMember* m = active_[local_turn_++ % members];
    for (Operation& op : m->operations) {
      Run& run = *op.run;
      if (run.neighbours == 0) continue;
      for (Executor::Sender sender; run.executor.next_applied(&sender); moved = true)
        sender.executor->sent(sender.task);
      for (std::uint32_t s = 0; s < run.partners.size(); ++s) {
        if (run.partners[s].peer != nullptr || !run.partners[s].ready || !run.executor.has_send(s)) continue;
        GroupMember* other = m->group->member(op.entry->program.peers[s].rank);
        Operation* theirs = other != nullptr ? other->find(op.number) : nullptr;
        CANARY_CHECK(theirs != nullptr, "a ready neighbour has completed without our pieces");
        const Executor::ReadyPiece ready = run.executor.peek_send(s);
        run.executor.pop_send(s);
        if (theirs->run->executor.offer(m->rank, ready.step->tag, ready.in_step(), ready.data, ready.bytes,
                                        {&run.executor, ready.task})) {
          run.executor.sent(ready.task);
        }
        moved = true;
        *budget -= std::min(*budget, ready.bytes + kPieceCost);
        wake_partners(*theirs->run);
      }
      wake_partners(run);
      if (may_finish(run)) look_at(run);  // one that waits for signatures is looked at when they come
    }
  }
  return moved;
}

// --- completing ------------------------------------------------------------------------------------------------------

// It may be complete: that is looked at when the cycle comes to it, by settle_local().
void Engine::look_at(Run& run) {
  local_dirty_ = true;
  if (run.looked_at_soon) return;
  run.looked_at_soon = true;
  to_look_at_.push_back(run.index);
}

bool Engine::may_finish(const Run& run) {
  if (run.member == nullptr || !run.executor.complete() || run.signatures_left != 0) return false;
  return !run.operation()->entry->program.waits_for_signatures() || run.heard_of_all();
}

bool Engine::finish_if_complete(Run& run) {
  if (kill_of_fault(run)) return true;
  if (!may_finish(run)) return false;
  Operation& op = *run.operation();
  GroupMember& m = *run.member;
  const ProgramEntry& ran = *op.entry;
  m.last_algorithm.store(name_of(ran.program.planner).data(), std::memory_order_release);
  note_time(m, op);
  finish(m, op, end_coded(m, op));
  return true;
}

// `op` is gone afterwards.
void Engine::finish(GroupMember& m, Operation& op, Status status) {
  OpTicket* ticket = op.ticket;
  const bool chained = op.chained;
  const std::uint32_t number = op.number;
  const Nanos entered = op.entered;
  return_run(op);
  m.operations.remove(op);
  CANARY_CHECK(operations_in_flight_ != 0, "an operation ends twice");
  --operations_in_flight_;
  ++operations_ended_;
  operations_failed_ += !status.ok();
  if (m.operations.empty()) active_.erase(std::find(active_.begin(), active_.end(), &m));
  partials_due_ |= m.group->partial != nullptr;
  sessions_due_ |= m.session != nullptr;
  if (chained && go_on(m, number, entered, &status)) return;
  ticket->done_at = now_;
  ticket->finish(std::move(status));
}

}  // namespace canarynet
