#include "engine/flow/mux.h"

#include <utility>

#include "base/check.h"

namespace canarynet {

void Mux::push(Queue& queue, Turn& turn) {
  turn.next_ = nullptr;
  queue.bytes += turn.waiting_bytes_;
  (queue.tail != nullptr ? queue.tail->next_ : queue.head) = &turn;
  queue.tail = &turn;
}

void Mux::push_front(Queue& queue, Turn& turn) {
  turn.next_ = queue.head;
  queue.bytes += turn.waiting_bytes_;
  queue.head = &turn;
  if (queue.tail == nullptr) queue.tail = &turn;
}

void Mux::pop(Queue& queue) {
  queue.bytes -= queue.head->waiting_bytes_;
  queue.head = queue.head->next_;
  if (queue.head == nullptr) queue.tail = nullptr;
}

void Mux::make_ready(Turn& turn) {
  CANARY_CHECK(turn.flow_ != nullptr, "a turn of no flow has nothing to send");
  if (channel_ == nullptr) return;
  channel_->wake();
  if (&turn == asked_) ready_again_ = true;
  if (turn.waits_) return;
  turn.waits_ = true;
  // It is served when it first comes to the front: what it owed from before it has paid, since who owes is not asked.
  if (turn.credit_ <= 0) turn.credit_ += kQuantum * turn.weight_;
  push(queue_of(turn), turn);
}

void Mux::forget(Turn& turn) {
  if (!turn.waits_) return;
  turn.waits_ = false;
  if (&turn == asked_) {
    asked_ = nullptr;
    return;
  }
  Queue& queue = queue_of(turn);
  queue.bytes -= turn.waiting_bytes_;
  Turn* before = nullptr;
  for (Turn* t = queue.head; t != &turn; t = t->next_) {
    CANARY_CHECK(t != nullptr, "a turn that waits is in the queue of its class, at the peer that it waits for");
    before = t;
  }
  (before != nullptr ? before->next_ : queue.head) = turn.next_;
  if (queue.tail == &turn) queue.tail = before;
}

void Mux::set_waiting_bytes(Turn& turn, std::uint64_t bytes) {
  if (turn.waits_ && &turn != asked_) queue_of(turn).bytes += bytes - turn.waiting_bytes_;
  turn.waiting_bytes_ = bytes;
}

bool Mux::serve(FlowClass which, OutPiece* out) {
  Queue& queue = queue_of(which);
  while (Turn* const turn = queue.head) {
    pop(queue);
    if (turn->credit_ <= 0) {
      turn->credit_ += kQuantum * turn->weight_;
      push(queue, *turn);
      continue;
    }
    *out = OutPiece{};
    asked_ = turn;
    ready_again_ = turn->ended_ = false;
    const bool any = turn->flow_->next_frame(*this, *turn, out);
    const bool stays = std::exchange(asked_, nullptr) != nullptr;  // nobody has forgotten it
    if (any) {
      turn->credit_ -= static_cast<std::int64_t>(out->header.payload_bytes + sizeof(wire::Header));
      out->owner = FlowTable::handle_of(*turn->flow_);
      out->urgent = which == FlowClass::kUrgent;
    }
    if (stays) {
      // One that owes stays until it has paid.
      if (any && (!turn->ended_ || ready_again_ || turn->credit_ <= 0)) {
        push_front(queue, *turn);
      } else if (ready_again_) {
        push(queue, *turn);
      } else {
        turn->waits_ = false;
        turn->credit_ = 0;
      }
    }
    if (any) return true;
  }
  return false;
}

bool Mux::next_piece(Channel&, PieceClass which, OutPiece* out) {
  if (which == PieceClass::kBulk) return serve(FlowClass::kBulk, out);
  return serve(FlowClass::kControl, out) || serve(FlowClass::kUrgent, out);
}

void Mux::on_done(Channel&, std::uint64_t owner, std::uint64_t cookie) {
  if (Flow* const flow = owner_of(owner)) flow->on_done(*this, cookie);
}

Landing Mux::landing_for(Channel&, const wire::Header& header) {
  Flow* const flow = flows_ != nullptr ? flows_->find(header.flow) : nullptr;
  if (flow == nullptr) return others_.landing_for(*this, header);
  Landing landing = flow->landing_for(*this, header);
  landing.owner = FlowTable::handle_of(*flow);
  return landing;
}

// When the flow has ended since, the one that hears of unknown numbers decides.
bool Mux::on_arrival(Channel&, const wire::Header& header, const Arrival& arrival) {
  Flow* const flow = owner_of(arrival.owner);
  return (flow != nullptr ? *flow : others_).on_arrival(*this, header, arrival);
}

void Mux::on_landing_lost(Channel&, const wire::Header& header, std::uint64_t owner, std::uint64_t cookie) {
  Flow* const flow = owner_of(owner);
  (flow != nullptr ? *flow : others_).on_landing_lost(*this, header, cookie);
}

}  // namespace canarynet
