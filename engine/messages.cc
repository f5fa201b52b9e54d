#include "engine/messages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/types.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

using landing::kForgotten, landing::kLanded, landing::kMisfit, landing::kNoPlace, landing::kParked;

constexpr std::uint32_t kNone = 0xffffffff;
constexpr Landing kForget{Landing::Kind::kDiscard, nullptr, kForgotten};
constexpr Landing kComeAgain{Landing::Kind::kDiscard, nullptr, kNoPlace};

// The 64-bit number whose low half is `low`, nearest to `near`.
std::uint64_t unwrap(std::uint32_t low, std::uint64_t near) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
  return near + static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
}

std::uint64_t cells_of(std::uint64_t bytes, std::uint32_t piece_bytes) {
  return bytes == 0 ? 1 : (bytes + piece_bytes - 1) / piece_bytes;
}
std::uint32_t cell_bytes(std::uint64_t length, std::uint32_t piece_bytes, std::uint64_t cell) {
  const std::uint64_t at = cell * piece_bytes;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(length - at, piece_bytes));
}
std::byte* place_of(const MessageEnd& flow, const MessageRequest& r, std::uint64_t cell) {
  return r.data + cell * flow.piece_bytes;
}
std::uint32_t tag_of(const MessageEnd& flow, const wire::Header& h) { return flow.tagged ? h.epoch : 0; }

// A grouped receive takes messages of one tag in their order: one that came before those would be turned away again and
// again. `r` is the last of the sends.
bool must_follow(const MessageEnd& flow, const MessageRequest& r) {
  if (!flow.tagged) return false;
  const MessageRequest* other = r.previous;
  while (other != nullptr && (other->tag != r.tag || other->priority == CANARY_PRIORITY_URGENT))
    other = other->previous;
  return other != nullptr;
}

}  // namespace

// --- making and ending -----------------------------------------------------------------------------------------------

void Messages::open(MessageEnd& flow, std::uint32_t piece_bytes, std::uint64_t first) {
  flow.piece_bytes = piece_bytes;
  flow.received.reset(first);
  flow.sent = flow.posted = flow.credit_sent = first - 1;
  flow.credited = std::max(flow.credited, first - 1);  // a credit may have overtaken the answer that opens it
  if (flow.peer == nullptr) return;
  // A cell's charge must leave room for those of other flows.
  flow.eager_max = std::min<std::uint64_t>(piece_bytes, flow.peer->eager_budget / 4);
  flow.debts = std::make_unique<MessageEnd::Debt[]>(MessageEnd::kDebts);
}

void Messages::post(MessageRequest* request, Nanos now) {
  MessageEnd& f = *request->flow;
  // A receive may be done, and be its caller's again, as soon as it claims what waited for it.
  const bool sends = request->sends;
  const canary_priority priority = request->priority;
  std::uint32_t group = 0;
  for (const MessageRequest* r = request; r != nullptr; r = r->also) ++group;
  const std::uint64_t first = (sends ? f.sent : f.posted) + 1;
  (sends ? f.sent : f.posted) += group;
  MessageRequest* following = nullptr;
  for (MessageRequest* r = request; r != nullptr; r = following) {
    following = r->also;
    r->group_first = first;
    r->group_size = group;
    r->number = group == 1 ? first : 0;
    r->slot = kNone;
    r->length = r->sends ? r->bytes : 0;
    r->cells = r->sends ? cells_of(r->bytes, f.piece_bytes) : 0;
    r->next_cell = r->cells_done = r->received_bytes = 0;
    r->eager = false;
    r->through.reset(0);
    r->landing.fill(0);
    r->entered = r->last_progress = now;
    r->deadline = r->time_limit.count > 0 ? now + r->time_limit : Nanos::max();
    ++pending_;
    counters_.sending_bytes += r->length;
    MessageList& list = r->sends ? f.sends : f.receives;
    list.push(r);
    if (!r->sends) continue;
    if (r->priority == CANARY_PRIORITY_URGENT && must_follow(f, *r)) r->priority = CANARY_PRIORITY_NORMAL;
    if (f.stand(r->priority).cursor == nullptr) f.stand(r->priority).cursor = r;
  }
  if (!sends && f.peer != nullptr) claim_parked(f, now);
  if (!f.failure.ok()) {
    const Status why = f.failure;
    fail(f, why, now);
  } else if (f.twin != nullptr) {
    match_local(sends ? f : *f.twin, now);
  } else if (f.peer != nullptr) {
    make_ready(f, priority);
  }
}

void Messages::fail(MessageEnd& flow, const Status& why, Nanos now) {
  if (flow.failure.ok()) flow.failure = why;
  for (MessageEnd::Stand& stand : flow.stands) stand.cursor = nullptr;
  for (MessageList* list : {&flow.sends, &flow.receives}) {
    while (MessageRequest* r = list->head) {
      list->remove(r);
      finish(*r, host_.failure_of(*r, why, now));
    }
  }
  if (flow.peer != nullptr) give_back_debts(flow, flow.sent);
}

void Messages::finish(MessageRequest& r, Status status) {
  release_slot(r);
  --pending_;
  if (r.sends) {
    counters_.sending_bytes -= r.length;
  } else if (r.cells != 0) {
    counters_.receiving_bytes -= r.length;
  }
  r.ticket->finish(std::move(status));
}

void Messages::release_slot(MessageRequest& r) {
  if (r.slot == kNone) return;
  slots_[r.slot] = nullptr;
  free_slots_.push_back(r.slot);
  r.slot = kNone;
}

void Messages::drop_parked(MessagePeer& peer, std::uint32_t flow) {
  peer.parked.for_each([&](EagerStore::Entry& e) {
    if (e.header.flow == flow) peer.parked.release(&e);
  });
}

void Messages::make_ready(MessageEnd& flow, canary_priority p) {
  MessageRound& round = flow.rounds->of(p);
  MessageEnd::Stand& stand = flow.stand(p);
  if (!stand.ready) {
    stand.ready = true;
    stand.next_ready = nullptr;
    (round.tail != nullptr ? round.tail->stand(p).next_ready : round.head) = &flow;
    round.tail = &flow;
  }
  flow.peer->mux.make_ready(round);
}

void Messages::forget(MessageEnd& flow) {
  for (const canary_priority p : {CANARY_PRIORITY_NORMAL, CANARY_PRIORITY_URGENT}) {
    MessageEnd::Stand& stand = flow.stand(p);
    if (!stand.ready) continue;
    MessageRound& round = flow.rounds->of(p);
    MessageEnd* before = nullptr;
    for (MessageEnd* f = round.head; f != &flow; f = f->stand(p).next_ready) before = f;
    (before != nullptr ? before->stand(p).next_ready : round.head) = stand.next_ready;
    if (round.tail == &flow) round.tail = before;
    stand.ready = false;
  }
}

// --- sending ---------------------------------------------------------------------------------------------------------

bool Messages::next_frame(MessageRound& round, OutPiece* out) {
  while (MessageEnd* f = round.head) {
    // One with nothing to send leaves the round.
    MessageEnd::Stand& stand = f->stand(round.priority);
    round.head = stand.next_ready;
    if (round.head == nullptr) round.tail = nullptr;
    stand.ready = false;
    if (!fill(*f, round.priority, out)) continue;
    make_ready(*f, round.priority);
    return true;
  }
  return false;
}

std::uint64_t Messages::waiting_bytes(const MessageRound& round) {
  std::uint64_t bytes = 0;
  for (const MessageEnd* f = round.head; f != nullptr; f = f->stand(round.priority).next_ready) {
    const MessageRequest* r = f->stand(round.priority).cursor;
    if (r != nullptr && r->next_cell < r->cells) bytes += r->length / r->cells * (r->cells - r->next_cell);
  }
  return bytes;
}

// Whether its first cell may leave now.
bool Messages::may_go(MessageEnd& f, MessageRequest& r) {
  if (r.number <= f.credited || r.eager) return true;
  if (r.length > f.eager_max || f.debts_count == MessageEnd::kDebts) return false;
  const std::uint32_t charge = EagerStore::charge(static_cast<std::uint32_t>(r.length));
  if (f.peer->eager_used + charge > f.peer->eager_budget) return false;
  f.peer->eager_used += charge;
  // In the order of the numbers: an urgent message may have gone before an older one.
  const auto debt = [&](std::uint32_t i) -> MessageEnd::Debt& {
    return f.debts[(f.debts_first + i) % MessageEnd::kDebts];
  };
  std::uint32_t at = f.debts_count++;
  for (; at != 0 && debt(at - 1).number > r.number; --at) debt(at) = debt(at - 1);
  debt(at) = {r.number, charge};
  return r.eager = true;
}

// Of its sends with that priority the next one has the cursor.
void Messages::pass_cursor(MessageEnd& f, MessageRequest& r) {
  MessageRequest*& cursor = f.stand(r.priority).cursor;
  if (cursor != &r) return;
  for (cursor = r.next; cursor != nullptr && cursor->priority != r.priority;) cursor = cursor->next;
}

bool Messages::fill(MessageEnd& f, canary_priority priority, OutPiece* out) {
  wire::Header& h = out->header;
  h.flow = f.flow;
  h.epoch = f.epoch;
  h.source = f.me;
  h.destination = f.other;
  if (f.refusal_due) {
    f.refusal_due = false;
    h.kind = wire::Kind::kSignature;
    h.step = static_cast<std::uint16_t>(wire::MessageFrame::kRefuse);
    h.op = static_cast<std::uint32_t>(f.refused);
    h.payload_bytes = sizeof f.refusal;
    out->payload = reinterpret_cast<const std::byte*>(&f.refusal);
    return true;
  }
  if (!f.failure.ok()) return false;
  if (f.credit_sent < f.posted) {
    f.credit_sent = f.posted;
    h.kind = wire::Kind::kSignature;
    h.step = static_cast<std::uint16_t>(wire::MessageFrame::kCredit);
    h.op = static_cast<std::uint32_t>(f.posted);
    return true;
  }
  MessageRequest* r = f.stand(priority).cursor;
  if (r == nullptr || !may_go(f, *r) || !r->through.in_reach(r->next_cell)) return false;
  if (r->slot == kNone) {
    if (free_slots_.empty()) {
      free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.push_back(nullptr);
      free_slots_.reserve(slots_.capacity());
    }
    r->slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[r->slot] = r;
  }
  const std::uint64_t cell = r->next_cell++;
  h.kind = wire::Kind::kPiece;
  h.op = static_cast<std::uint32_t>(r->number);
  if (f.tagged) h.epoch = r->tag;
  wire::set_message_length(&h, r->length, r->type);
  h.piece = static_cast<std::uint32_t>(cell);
  h.payload_bytes = cell_bytes(r->length, f.piece_bytes, cell);
  out->payload = place_of(f, *r, cell);
  out->borrow = true;
  out->cookie = std::uint64_t{r->slot} << 32 | static_cast<std::uint32_t>(cell);
  if (r->next_cell == r->cells) pass_cursor(f, *r);
  return true;
}

void Messages::on_done(std::uint64_t cookie, Nanos now) {
  const auto slot = static_cast<std::size_t>(cookie >> 32);
  MessageRequest* r = slot < slots_.size() ? slots_[slot] : nullptr;
  if (r == nullptr || !r->through.mark(static_cast<std::uint32_t>(cookie))) return;
  r->last_progress = now;
  r->flow->moved(now, true);
  if (++r->cells_done == r->cells) {
    complete_send(*r);
  } else if (r->flow->stand(r->priority).cursor == r) {
    make_ready(*r->flow, r->priority);  // it may have waited for the window
  }
}

void Messages::complete_send(MessageRequest& r) {
  r.flow->sends.remove(&r);
  ++counters_.sent;
  counters_.sent_bytes += r.length;
  finish(r, Status());
}

void Messages::settle_sends(MessageEnd& f, std::uint32_t op, Nanos now) {
  const std::uint64_t number = unwrap(op, f.credited);
  while (f.sends.head != nullptr && f.sends.head->number <= number) {
    pass_cursor(f, *f.sends.head);
    f.last_progress = now;
    complete_send(*f.sends.head);
  }
}

Nanos Messages::stuck_since(const MessageEnd& f) {
  Nanos since = Nanos::max();
  if (const MessageRequest* r = f.sends.head; r != nullptr && r->number <= f.credited) {
    since = std::max(r->last_progress, f.sends_progress);
  }
  for (const MessageRequest* r = f.receives.head; r != nullptr; r = r->next) {
    if (r->cells_done != 0) return std::min(since, f.receives_progress);
  }
  return since;
}

void Messages::give_back_debts(MessageEnd& f, std::uint64_t up_to) {
  while (f.debts_count != 0 && f.debts[f.debts_first].number <= up_to) {
    f.peer->eager_used -= f.debts[f.debts_first].bytes;
    f.debts_first = (f.debts_first + 1) % MessageEnd::kDebts;
    --f.debts_count;
  }
}

void Messages::on_credit(MessageEnd& f, std::uint32_t op, Nanos now) {
  const std::uint64_t number = unwrap(op, f.credited);
  if (number <= f.credited || !f.failure.ok()) return;
  f.credited = number;
  give_back_debts(f, number);
  f.moved(now, true);
  for (MessageRequest* r = f.sends.head; r != nullptr && r->number <= number; r = r->next) r->last_progress = now;
  for (const canary_priority p : {CANARY_PRIORITY_URGENT, CANARY_PRIORITY_NORMAL}) {
    if (f.stand(p).cursor != nullptr) make_ready(f, p);
  }
}

// --- local -----------------------------------------------------------------------------------------------------------

// Both ends are in this engine: memory to memory.
void Messages::match_local(MessageEnd& sender, Nanos now) {
  MessageEnd& receiver = *sender.twin;
  for (MessageRequest* s = sender.sends.head; s != nullptr && s->number <= receiver.posted;) {
    wire::Header h;
    h.epoch = s->tag;
    wire::set_message_length(&h, s->length, s->type);
    MessageRequest* r = nullptr;
    if (find_receive(receiver, s->number, s->tag, &r) != Match::kFound || !accepts(receiver, *r, s->number, h)) {
      mismatch(receiver, s->number, h, r);
      return;  // both have failed
    }
    if (s->length != 0) std::memcpy(r->data, s->data, s->length);
    sender.last_progress = receiver.last_progress = now;
    pass_cursor(sender, *s);
    MessageRequest* const following = s->next;
    complete_send(*s);
    complete_receive(receiver, *r);
    s = following;
  }
}

// --- arriving --------------------------------------------------------------------------------------------------------

std::uint64_t Messages::number_of(const MessageEnd& flow, const wire::Header& h) {
  return unwrap(h.op, flow.received.base());
}

Messages::Match Messages::find_receive(MessageEnd& f, std::uint64_t number, std::uint32_t tag, MessageRequest** out) {
  if (number > f.posted) return Match::kNotPosted;
  MessageRequest* open = nullptr;  // the first of its group that has the tag and no message yet
  std::uint32_t same_tag = 0;
  std::uint64_t bound_before = 0, group_first = 0;
  for (MessageRequest* r = f.receives.head; r != nullptr; r = r->next) {
    if (r->number == number) {
      *out = r;
      return Match::kFound;
    }
    if (number < r->group_first || number >= r->group_first + r->group_size) continue;
    group_first = r->group_first;
    if (r->number != 0 && r->number < number) ++bound_before;
    if (r->number != 0 || r->tag != tag) continue;
    ++same_tag;
    if (open == nullptr) open = r;
  }
  if (open == nullptr) return Match::kUnknownTag;
  if (same_tag > 1) {
    // Equal tags are filled in the order of the sends: all messages of the group before this one must have their
    // places.
    for (std::uint64_t n = group_first; n < number; ++n) bound_before += f.received.through(n) ? 1 : 0;
    if (bound_before != number - group_first) return Match::kAmbiguous;
  }
  open->number = number;
  *out = open;
  return Match::kFound;
}

bool Messages::accepts(MessageEnd& f, MessageRequest& r, std::uint64_t number, const wire::Header& h) {
  const std::uint64_t length = wire::message_length(h);
  if (r.cells != 0) return length == r.length && number == r.number;
  const bool fits = f.exact ? length == r.bytes && wire::message_type(h) == r.type : length <= r.bytes;
  if (!fits) return false;
  r.length = length;
  r.cells = cells_of(length, f.piece_bytes);
  counters_.receiving_bytes += length;
  return true;
}

bool Messages::is_refused(const MessageEnd& f, std::uint64_t number) {
  return f.peer != nullptr && !f.exact && !f.failure.ok() && f.refused == number;
}

bool Messages::well_formed(const MessageEnd& f, const MessageRequest& r, const wire::Header& h) {
  return h.piece < r.cells && h.payload_bytes == cell_bytes(r.length, f.piece_bytes, h.piece);
}

Landing Messages::landing_for(MessagePeer& peer, const Where& where, const wire::Header& h) {
  if (h.kind == wire::Kind::kSignature) return {Landing::Kind::kSlot, nullptr, kLanded};
  if (where.over) return kForget;
  if (MessageEnd* f = where.flow) {
    const std::uint64_t number = number_of(*f, h);
    if (f->received.through(number)) return kForget;
    if (!f->received.in_reach(number)) return kComeAgain;
    MessageRequest* r = nullptr;
    switch (find_receive(*f, number, tag_of(*f, h), &r)) {
      case Match::kFound: {
        const bool first = r->cells == 0;
        if (!accepts(*f, *r, number, h)) return first ? Landing{Landing::Kind::kDiscard, nullptr, kMisfit} : kForget;
        if (!well_formed(*f, *r, h) || r->through.through(h.piece)) return kForget;
        if (!r->through.in_reach(h.piece)) return kComeAgain;
        if (r->is_landing(h.piece)) return {Landing::Kind::kSlot, nullptr, kLanded};
        if (h.payload_bytes == 0) return {Landing::Kind::kSlot, nullptr, kLanded};
        r->set_landing(h.piece, true);
        return {Landing::Kind::kSpan, place_of(*f, *r, h.piece), kLanded};
      }
      case Match::kUnknownTag:
        return {Landing::Kind::kDiscard, nullptr, kMisfit};
      case Match::kAmbiguous:
      case Match::kNotPosted:
        break;
    }
    if (!f->failure.ok()) return kForget;
  }
  // Only a message of one cell may come before its receive.
  if (h.piece != 0 || wire::message_length(h) != h.payload_bytes) return kComeAgain;
  if (EagerStore::Entry* known = peer.parked.find(h)) return known->complete ? kForget : kComeAgain;
  EagerStore::Entry* e = peer.parked.take(h);
  if (e == nullptr) return kComeAgain;
  return {Landing::Kind::kSpan, peer.parked.data(*e), kParked};
}

bool Messages::on_arrival(MessagePeer& peer, const Where& where, const wire::Header& h, const Arrival& arrival,
                          Nanos now) {
  if (h.kind == wire::Kind::kSignature) {
    if (where.over) return true;
    if (where.flow == nullptr) return false;
    if (h.step == static_cast<std::uint16_t>(wire::MessageFrame::kCredit)) on_credit(*where.flow, h.op, now);
    wire::RefusePayload refusal;
    if (h.step == static_cast<std::uint16_t>(wire::MessageFrame::kRefuse) && arrival.payload.size() == sizeof refusal) {
      std::memcpy(&refusal, arrival.payload.data(), sizeof refusal);
      on_refusal(*where.flow, h, refusal);
    }
    return true;
  }
  MessageEnd* f = where.over ? nullptr : where.flow;
  // An acknowledgement could overtake the refusal, and the send would count as done.
  if (f != nullptr && arrival.discarded && is_refused(*f, number_of(*f, h))) return false;
  if (arrival.discarded && arrival.cookie != kMisfit) return arrival.cookie != kNoPlace;
  EagerStore::Entry* parked = arrival.cookie == kParked ? peer.parked.find(h) : nullptr;
  if (f == nullptr) {
    if (parked != nullptr) parked->complete = true;
    if (parked != nullptr && where.over) peer.parked.release(parked);
    return true;
  }
  const std::uint64_t number = number_of(*f, h);
  const bool known = f->received.through(number) || (!f->failure.ok() && number <= f->posted);
  MessageRequest* r = nullptr;
  const Match match = known ? Match::kNotPosted : find_receive(*f, number, tag_of(*f, h), &r);
  if (match == Match::kFound) {
    const bool first = r->cells == 0;
    if (!accepts(*f, *r, number, h)) {
      if (parked != nullptr) peer.parked.release(parked);
      if (first) mismatch(*f, number, h, r);
      return !is_refused(*f, number);
    }
    if (!arrival.discarded && well_formed(*f, *r, h)) arrived(*f, *r, h, arrival.payload.data(), now);
  } else if (match == Match::kUnknownTag) {
    mismatch(*f, number, h, nullptr);
    if (parked != nullptr) peer.parked.release(parked);
    return !is_refused(*f, number);
  } else if (parked != nullptr && !known) {
    parked->complete = true;
    return true;
  }
  if (parked != nullptr) peer.parked.release(parked);
  return true;
}

void Messages::arrived(MessageEnd& f, MessageRequest& r, const wire::Header& h, const std::byte* payload, Nanos now) {
  if (!r.through.in_reach(h.piece) || !r.through.mark(h.piece)) return;
  std::byte* const place = place_of(f, r, h.piece);
  const bool other_landing = r.is_landing(h.piece) && payload != place;
  r.set_landing(h.piece, false);
  r.last_progress = now;
  f.moved(now, false);
  if (payload != place && h.payload_bytes != 0) std::memcpy(place, payload, h.payload_bytes);
  const bool grouped = r.group_size > 1;
  const bool complete = ++r.cells_done == r.cells;
  // Before anybody may take the memory back. By its place: only the number was compared, the tag and the type of that
  // landing may be others.
  if (other_landing) f.peer->mux.channel()->redirect_landing(place);
  if (complete) complete_receive(f, r);
  if (grouped) claim_parked(f, now);  // one that waited for this message's binding
}

void Messages::complete_receive(MessageEnd& f, MessageRequest& r) {
  f.received.mark(r.number);
  f.receives.remove(&r);
  r.received_bytes = r.length;
  ++counters_.received;
  counters_.received_bytes += r.length;
  finish(r, Status());
}

// Messages that came before their receive.
void Messages::claim_parked(MessageEnd& f, Nanos now) {
  EagerStore& store = f.peer->parked;
  for (bool again = true; again && !store.empty() && f.receives.head != nullptr;) {
    again = false;
    store.for_each_of(f.flow, f.epoch, 0, f.other, f.me, [&](EagerStore::Entry& e) {
      const wire::Header& h = e.header;
      if (f.receives.head == nullptr) return false;  // all have their message, or ended by one that did not fit
      if (!e.complete || (!f.tagged && h.epoch != f.epoch)) return true;
      const std::uint64_t number = number_of(f, h);
      if (f.received.through(number)) {
        store.release(&e);
        return true;
      }
      if (!f.received.in_reach(number)) return true;
      MessageRequest* r = nullptr;
      const Match match = find_receive(f, number, tag_of(f, h), &r);
      if (match == Match::kNotPosted || match == Match::kAmbiguous) return true;
      const wire::Header header = h;
      if (match == Match::kUnknownTag || !accepts(f, *r, number, header)) {
        store.release(&e);
        mismatch(f, number, header, r);
        return true;
      }
      if (well_formed(f, *r, header) && r->through.mark(header.piece)) {
        if (header.payload_bytes != 0) std::memcpy(place_of(f, *r, header.piece), store.data(e), header.payload_bytes);
        r->last_progress = now;
        f.moved(now, false);
        again = r->group_size > 1;
        if (++r->cells_done == r->cells) complete_receive(f, *r);
      }
      store.release(&e);
      return true;
    });
  }
}

void Messages::on_landing_lost(MessagePeer& peer, const Where& where, const wire::Header& h, std::uint64_t cookie) {
  if (cookie == kParked) {
    if (EagerStore::Entry* e = peer.parked.find(h); e != nullptr && !e->complete) peer.parked.release(e);
    return;
  }
  if (where.over || where.flow == nullptr) return;
  const std::uint64_t number = number_of(*where.flow, h);
  for (MessageRequest* r = where.flow->receives.head; r != nullptr; r = r->next) {
    if (r->number == number && !r->through.through(h.piece)) r->set_landing(h.piece, false);
  }
}

// --- what does not fit -----------------------------------------------------------------------------------------------

void Messages::mismatch(MessageEnd& f, std::uint64_t number, const wire::Header& h, const MessageRequest* r) {
  const std::uint64_t length = wire::message_length(h);
  std::string text = "message #" + std::to_string(number) + ": ";
  if (r == nullptr) {
    text += "it has tag " + std::to_string(tag_of(f, h)) + ", and no receive of its group has that";
  } else if (f.exact) {
    const auto words = [](std::uint64_t bytes, std::uint8_t type) {
      const bool known = type < kDataTypeCount;
      const std::string name =
          known ? std::string(name_of(static_cast<DataType>(type))) : "type " + std::to_string(type);
      return name + " n=" + std::to_string(known ? bytes / size_of(static_cast<DataType>(type)) : bytes);
    };
    text += "rank " + std::to_string(f.other) + " of the group sends " + words(length, wire::message_type(h)) +
            ", rank " + std::to_string(f.me) + " receives " + words(r->bytes, r->type);
  } else {
    text += std::to_string(length) + " bytes were sent, the receive has room for " + std::to_string(r->bytes);
  }
  f.refusal = {};
  f.refusal.message_bytes = length;
  f.refusal.room_bytes = r != nullptr ? r->bytes : 0;
  f.refusal.tag = tag_of(f, h);
  f.refusal.unknown_tag = r == nullptr ? 1 : 0;
  f.refused = number;
  f.refusal_due = f.peer != nullptr && !f.exact;  // a group's verdict tells everybody
  if (f.refusal_due) make_ready(f, CANARY_PRIORITY_NORMAL);
  host_.on_mismatch(f, Status(CANARY_MISMATCH, text), false);
}

void Messages::on_refusal(MessageEnd& f, const wire::Header& h, const wire::RefusePayload& refusal) {
  std::string text = "message #" + std::to_string(unwrap(h.op, f.credited)) + ": ";
  if (refusal.unknown_tag != 0) {
    text += "it has tag " + std::to_string(refusal.tag) + ", and no receive of its group has that";
  } else {
    text += std::to_string(refusal.message_bytes) + " bytes were sent, the receive has room for " +
            std::to_string(refusal.room_bytes);
  }
  host_.on_mismatch(f, Status(CANARY_MISMATCH, text), true);
}

}  // namespace canarynet
