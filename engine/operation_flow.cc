#include "engine/operation_flow.h"

#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/serial.h"
#include "engine/engine.h"
#include "engine/flow/mux.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

constexpr std::uint64_t kInRun = std::uint64_t{1} << 63;  // a landing of an operation: its run and task follow

std::uint64_t cookie_of(const Run& run, std::uint32_t task) { return std::uint64_t{run.index} << 32 | task; }
std::uint32_t run_of(std::uint64_t cookie) { return static_cast<std::uint32_t>((cookie & ~kInRun) >> 32); }
std::uint32_t task_of(std::uint64_t cookie) { return static_cast<std::uint32_t>(cookie); }

std::optional<std::uint32_t> crc_in(const wire::Header& h) {
  if ((h.flags & wire::kUnchecked) != 0) return std::nullopt;
  return h.payload_crc32;
}

wire::Header header_of(const Run& run, const Operation& op, wire::Kind kind, int destination) {
  const GroupMember& m = *run.member;
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

bool gone(const Mux& to) { return to.channel() == nullptr || to.channel()->peer_left(); }

}  // namespace

// --- sending ---------------------------------------------------------------------------------------------------------

bool OperationFlow::next_frame(Mux& to, Turn& turn, OutPiece* out) {
  auto& mine = static_cast<OperationTurn&>(turn);
  Engine::EnginePeer& p = engine_.peers_[to.peer()];
  const bool departed = p.left || gone(to);
  bool filled = false;
  while (!filled && mine.sending.head != nullptr) {
    RunPartner& partner = *mine.sending.head;
    Run& run = *partner.run;
    if (!partner.signature_sent) {
      partner.signature_sent = true;
      if (--run.signatures_left == 0) engine_.look_at(run);  // it may be all that was left to do
      // Nobody who has left reads it; frames that no lane takes would keep later operations' from being counted.
      if (!departed) {
        sign(partner, out);
        filled = true;
      }
    }
    if (!filled && !departed && run.executor.has_send(partner.index)) {
      filled = fill(partner, out);
      if (!filled) continue;  // it stands elsewhere now
    }
    if (departed || !run.executor.has_send(partner.index)) engine_.dequeue(partner);
  }
  if (mine.sending.head == nullptr) turn.end();
  return filled;
}

// The signature behind the first piece, if that is small and may go; else by itself.
void OperationFlow::sign(RunPartner& partner, OutPiece* out) {
  Run& run = *partner.run;
  const Operation& op = *run.operation();
  const int rank = op.entry->program.peers[partner.index].rank;
  engine_.outgoing_signature_ = addressed(op.signature, op.request, static_cast<std::size_t>(rank));
  const auto signature = std::as_bytes(std::span(&engine_.outgoing_signature_, 1));
  if (run.executor.has_send(partner.index)) {
    const Executor::ReadyPiece ready = run.executor.peek_send(partner.index);
    if (wire::signed_bytes(ready.bytes) <= kCopiedPieceBytes && affords(partner, ready)) {
      out->behind = signature;
      fill(partner, out);
      out->header.flags = wire::kSigned;
      out->header.payload_bytes = wire::signed_bytes(ready.bytes);
      return;
    }
  }
  out->header = header_of(run, op, wire::Kind::kSignature, rank);
  out->header.payload_bytes = sizeof engine_.outgoing_signature_;
  out->payload = signature.data();  // small enough to be copied at once
}

// The peer has a place for the piece, or room for what goes ahead of its readiness.
bool OperationFlow::affords(const RunPartner& partner, const Executor::ReadyPiece& ready) const {
  const Engine::EnginePeer& peer = engine_.peers_[partner.engine];
  const auto budget = static_cast<std::uint64_t>(engine_.options_.settings.eager_bytes.count);
  return partner.ready || peer.eager_used + EagerStore::charge(ready.bytes) <= budget;
}

// False: it is not affordable now.
bool OperationFlow::fill(RunPartner& partner, OutPiece* out) {
  Run& run = *partner.run;
  const Executor::ReadyPiece ready = run.executor.peek_send(partner.index);
  if (!partner.ready) {
    Engine::EnginePeer& peer = engine_.peers_[partner.engine];
    if (!affords(partner, ready)) {
      engine_.dequeue(partner);
      partner.list = RunPartner::List::kPoor;
      peer.poor.insert(partner);
      return false;
    }
    const std::uint32_t charge = EagerStore::charge(ready.bytes);
    peer.eager_used += charge;
    partner.eager_bytes += charge;
  }
  run.executor.pop_send(partner.index);
  engine_.count_waiting(partner);
  const Operation& op = *run.operation();
  out->header = header_of(run, op, wire::Kind::kPiece, op.entry->program.peers[partner.index].rank);
  const bool checked = engine_.peers_[partner.engine].channel->checked() && out->behind.empty();
  if (checked) out->header.payload_crc32 = run.executor.crc_of(ready);
  out->has_payload_crc = checked;
  if (ready.null) {
    ++engine_.null_pieces_;
    engine_.null_value_bytes_ += op.entry->program.bytes_of(ready.piece);
  }
  out->header.step = ready.step->tag;
  out->header.piece = ready.in_step();
  out->header.payload_bytes = ready.bytes;
  out->payload = ready.data;
  out->encoded = op.entry->program.coded();
  out->cookie = cookie_of(run, ready.task);
  out->rail = ready.step->rail;
  return true;
}

void OperationFlow::on_done(Mux&, std::uint64_t cookie) {
  Run* const run = engine_.run_at(run_of(cookie));
  if (run == nullptr || run->member == nullptr) return;
  run->executor.sent(task_of(cookie));
  engine_.wake_partners(*run);
  if (run->executor.complete()) engine_.look_at(*run);
}

// --- arriving --------------------------------------------------------------------------------------------------------

// A peer speaks for its own ranks only: a piece or signature in another's name, ours even, is dropped.
bool OperationFlow::speaks_for(const Mux& from, const wire::Header& h) const {
  return !group_.dead && h.epoch == group_.epoch && h.source < group_.engine_of.size() &&
         group_.engine_of[h.source] == from.peer();
}

Run* OperationFlow::landed_in(std::uint64_t cookie, const wire::Header& h) const {
  Run* const run = engine_.run_at(run_of(cookie));
  const bool runs = run != nullptr && run->member != nullptr && run->member->group == &group_;
  return runs && run->number == h.op && run->member->rank == h.destination ? run : nullptr;
}

Landing OperationFlow::landing_for(Mux& from, const wire::Header& h) {
  if (wire::has_signature(h)) return {Landing::Kind::kSlot, nullptr, landing::kLanded};
  const Landing forget{Landing::Kind::kDiscard, nullptr, landing::kForgotten};
  GroupMember* const m = group_.member(h.destination);
  if (m == nullptr || !speaks_for(from, h)) return forget;
  if (later(h.op, m->entered)) return engine_.park(from.peer(), h);
  const Operation* const op = m->find(h.op);
  // Completed: it has arrived before. Another signature: theirs, on its way, ends the group.
  if (op == nullptr || h.signature != op->hash) return forget;
  const auto place = op->run->executor.place_for(h.source, h.step, h.piece, h.payload_bytes);
  const std::uint64_t cookie = kInRun | cookie_of(*op->run, place.task);
  switch (place.kind) {
    case Executor::PlaceKind::kSpan:
      return {Landing::Kind::kSpan, place.data, cookie};
    case Executor::PlaceKind::kSlot:
      return {Landing::Kind::kSlot, nullptr, cookie};
    case Executor::PlaceKind::kDuplicate:
    case Executor::PlaceKind::kUnknown:
      break;
  }
  return forget;
}

bool OperationFlow::on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) {
  if (h.kind == wire::Kind::kSignature) {
    wire::SignaturePayload theirs;
    return !from.is_read(h, arrival.payload, &theirs) || on_signature(from, h, theirs);
  }
  if (wire::has_signature(h)) return on_signed_piece(from, h, arrival.payload);
  if (arrival.discarded) return arrival.cookie != landing::kNoPlace;
  if ((arrival.cookie & kInRun) == 0) return on_parked(from, h, arrival);
  Run* const run = landed_in(arrival.cookie, h);
  if (run == nullptr) return true;  // it has ended since, or came over another lane as well
  engine_.piece_arrived(*run, task_of(arrival.cookie), from, h, arrival.payload, crc_in(h));
  return true;
}

bool OperationFlow::on_signature(Mux& from, const wire::Header& h, const wire::SignaturePayload& theirs) {
  // Before anything that takes both lists for one: ranks in the group are places in it.
  if (group_.partial && !group_.dead && h.epoch == group_.epoch && !engine_.lists_agree(group_, from.peer(), theirs))
    return true;
  if (!speaks_for(from, h)) return true;
  engine_.settle_debt(engine_.peers_[from.peer()], h);
  auto& entered = group_.entered[h.source];
  entered = later_of(entered, h.op);
  GroupMember* const m = group_.member(h.destination);
  return m == nullptr || engine_.admit_signature(*m, h.source, h.op, theirs);
}

// The signature first: elements of another operation than ours go nowhere.
bool OperationFlow::on_signed_piece(Mux& from, const wire::Header& h, std::span<const std::byte> payload) {
  wire::SignedPiece piece;
  if (!from.is_read(h, payload, &piece)) return true;
  if (group_.partial && !group_.dead && h.epoch == group_.epoch &&
      !engine_.lists_agree(group_, from.peer(), piece.signature))
    return true;
  if (!speaks_for(from, h)) return true;
  GroupMember* const m = group_.member(h.destination);
  // Room first: a frame without it comes again, and leaves no signature behind each time.
  const bool early = m != nullptr && later(h.op, m->entered);
  if (early && !engine_.park_whole(from.peer(), piece.piece, piece.elements)) return false;
  if (!on_signature(from, h, piece.signature)) return false;
  if (early || m == nullptr || !speaks_for(from, h)) return true;
  const Operation* const op = m->find(h.op);
  std::uint32_t task = 0;
  const wire::Header& own = piece.piece;
  if (op != nullptr && own.signature == op->hash &&
      op->run->executor.fits(own.source, own.step, own.piece, own.payload_bytes, &task))
    engine_.piece_arrived(*op->run, task, from, own, piece.elements, crc_in(own));
  return true;
}

// Its operation was not entered when it came; it may be by now.
bool OperationFlow::on_parked(Mux& from, const wire::Header& h, const Arrival& arrival) {
  EagerStore& store = *engine_.peers_[from.peer()].eager;
  EagerStore::Entry* const parked = arrival.cookie == landing::kParked ? store.find(h) : nullptr;
  GroupMember* const m = group_.member(h.destination);
  const bool theirs = speaks_for(from, h);
  Operation* const op = m != nullptr && theirs ? m->find(h.op) : nullptr;
  if (op == nullptr) {
    if (parked == nullptr) return true;
    parked->complete = true;
    // Entered and even completed meanwhile (over another lane), or dead: nobody will drain it.
    if (!theirs || m == nullptr || !later(h.op, m->entered)) store.release(parked);
    return true;
  }
  // A piece that was parked when its operation was entered has not been compared with it yet.
  std::uint32_t task = 0;
  if (h.signature == op->hash && op->run->executor.fits(h.source, h.step, h.piece, h.payload_bytes, &task))
    engine_.piece_arrived(*op->run, task, from, h, arrival.payload, crc_in(h));
  if (parked != nullptr) store.release(parked);
  return true;
}

void OperationFlow::on_landing_lost(Mux& from, const wire::Header& h, std::uint64_t cookie) {
  // By its cookie: a piece may be landing in the store over one lane and, its operation entered since, in place over
  // another.
  if (cookie == landing::kParked) return engine_.unpark(from.peer(), h);
  if ((cookie & kInRun) == 0) return;
  if (Run* const run = landed_in(cookie, h)) run->executor.landing_lost(task_of(cookie));
}

}  // namespace canarynet
