#include "engine/messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/types.h"
#include "engine/landing_words.h"

namespace canarynet {
namespace {

using landing::kForgotten, landing::kLanded, landing::kMisfit, landing::kNoPlace, landing::kParked;

constexpr Landing kForget{Landing::Kind::kDiscard, nullptr, kForgotten};
constexpr Landing kComeAgain{Landing::Kind::kDiscard, nullptr, kNoPlace};

// The 64-bit number whose low half is `low`, nearest to `near`.
std::uint64_t unwrap(std::uint32_t low, std::uint64_t near) {
  const auto distance = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near));
  return near + static_cast<std::uint64_t>(static_cast<std::int64_t>(distance));
}

std::uint64_t pieces_of(std::uint64_t bytes, std::uint32_t piece_bytes) {
  return bytes == 0 ? 1 : (bytes + piece_bytes - 1) / piece_bytes;
}
std::uint32_t bytes_of_piece(std::uint64_t length, std::uint32_t piece_bytes, std::uint64_t piece) {
  const std::uint64_t at = piece * piece_bytes;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(length - at, piece_bytes));
}
std::byte* place_of(const MessageEnd& end, const MessageRequest& r, std::uint64_t piece) {
  return r.data + piece * end.piece_bytes;
}
std::uint32_t tag_of(const MessageEnd& end, const wire::Header& h) { return end.tagged ? h.epoch : 0; }

// A grouped receive takes messages of one tag in their order: one that came before those would be turned away again and
// again. `r` is the last of the sends.
bool must_follow(const MessageEnd& end, const MessageRequest& r) {
  if (!end.tagged) return false;
  const MessageRequest* other = r.previous;
  while (other != nullptr && (other->tag != r.tag || other->priority == CANARY_PRIORITY_URGENT))
    other = other->previous;
  return other != nullptr;
}

}  // namespace

// --- making and ending -----------------------------------------------------------------------------------------------

void Messages::open(MessageEnd& end, std::uint32_t piece_bytes, std::uint64_t first) {
  end.piece_bytes = piece_bytes;
  end.received.reset(first);
  end.sent = end.posted = end.credit_sent = first - 1;
  end.credited = std::max(end.credited, first - 1);  // a credit may have overtaken the answer that opens it
  if (end.peer == nullptr) return;
  // A piece's charge must leave room for those of other flows.
  end.eager_max = std::min<std::uint64_t>(piece_bytes, end.peer->eager_budget / 4);
  end.debts = std::make_unique<MessageEnd::Debt[]>(MessageEnd::kDebts);
}

MessageOrder Messages::order_of(const port::Command& c, const port::Regions& regions, OpTicket* ticket) {
  using Kind = port::Command::Kind;
  MessageOrder order;
  order.sends = c.kind == Kind::kSend || c.kind == Kind::kSendOn;
  const port::MemoryRef& buffer = order.sends ? c.input : c.output;
  order.data = regions.at(buffer);
  order.bytes = buffer.bytes;
  if (c.kind == Kind::kSendOn || c.kind == Kind::kReceiveOn) order.tag = c.tag;
  order.type = static_cast<std::uint8_t>(c.type);
  order.priority = static_cast<canary_priority>(c.priority);
  order.time_limit = Nanos{c.time_limit};
  order.ticket = ticket;
  return order;
}

void Messages::post(MessageEnd& end, std::span<const MessageOrder> orders, Nanos now) {
  const bool sends = orders.front().sends;
  canary_priority priority = orders.front().priority;
  const auto group = static_cast<std::uint32_t>(orders.size());
  const std::uint64_t first = (sends ? end.sent : end.posted) + 1;
  (sends ? end.sent : end.posted) += group;
  for (const MessageOrder& order : orders) {
    MessageRequest& r = take_record();
    static_cast<MessageOrder&>(r) = order;
    r.end = &end;
    r.group_first = first;
    r.group_size = group;
    r.number = group == 1 ? first : 0;
    r.length = sends ? r.bytes : 0;
    r.pieces = sends ? pieces_of(r.bytes, end.piece_bytes) : 0;
    r.next_piece = r.pieces_done = 0;
    r.eager = false;
    r.through.reset(0);
    r.landing.fill(0);
    r.entered = r.last_progress = now;
    r.deadline = r.time_limit.count > 0 ? now + r.time_limit : Nanos::max();
    ++pending_;
    counters_.sending_bytes += r.length;
    (sends ? end.sends : end.receives).push(&r);
    if (!sends) continue;
    if (r.priority == CANARY_PRIORITY_URGENT && must_follow(end, r)) r.priority = CANARY_PRIORITY_NORMAL;
    priority = r.priority;
    if (end.stand(priority).cursor == nullptr) end.stand(priority).cursor = &r;
  }
  if (!sends && end.peer != nullptr) claim_parked(end, now);
  if (!end.failure.ok()) {
    const Status why = end.failure;
    fail(end, why, now);
  } else if (end.twin != nullptr) {
    match_local(sends ? end : *end.twin, now);
  } else if (end.peer != nullptr) {
    make_ready(end, priority);
  }
}

void Messages::fail(MessageEnd& end, const Status& why, Nanos now) {
  if (end.failure.ok()) end.failure = why;
  for (const canary_priority p : {CANARY_PRIORITY_NORMAL, CANARY_PRIORITY_URGENT}) {
    end.stand(p).cursor = nullptr;
    count_waiting(end, p);
  }
  for (MessageList* list : {&end.sends, &end.receives}) {
    while (MessageRequest* r = list->head) {
      list->remove(r);
      finish(*r, host_.failure_of(*r, why, now));
    }
  }
  if (end.peer != nullptr) give_back_debts(end, end.sent);
}

// The record is free before its ticket is done.
void Messages::finish(MessageRequest& r, Status status) {
  --pending_;
  if (r.sends) {
    counters_.sending_bytes -= r.length;
  } else if (r.pieces != 0) {
    counters_.receiving_bytes -= r.length;
  }
  OpTicket& ticket = *r.ticket;
  if (r.sends || status.ok()) ticket.bytes = r.length;
  r.end = nullptr;
  r.ticket = nullptr;
  r.next = free_;
  free_ = &r;
  ticket.finish(std::move(status));
}

MessageRequest& Messages::take_record() {
  if (free_ == nullptr) {
    auto chunk = std::make_unique<MessageRequest[]>(kChunk);
    records_.push_back(std::move(chunk));
    for (std::uint32_t i = kChunk; i-- > 0;) {
      MessageRequest& r = records_.back()[i];
      r.place = (static_cast<std::uint32_t>(records_.size()) - 1) * kChunk + i;
      r.next = free_;
      free_ = &r;
    }
  }
  MessageRequest& r = *free_;
  free_ = r.next;
  return r;
}

void Messages::drop_parked(MessagePeer& peer, std::uint32_t flow) {
  peer.parked.for_each([&](EagerStore::Entry& e) {
    if (e.header.flow == flow) peer.parked.release(&e);
  });
}

void Messages::make_ready(MessageEnd& end, canary_priority p) {
  MessageRound& round = end.rounds->of(p);
  MessageEnd::Stand& stand = end.stand(p);
  if (!stand.ready) {
    stand.ready = true;
    stand.next_ready = nullptr;
    (round.tail != nullptr ? round.tail->stand(p).next_ready : round.head) = &end;
    round.tail = &end;
  }
  count_waiting(end, p);
  end.peer->mux.make_ready(round);
}

void Messages::forget(MessageEnd& end) {
  for (const canary_priority p : {CANARY_PRIORITY_NORMAL, CANARY_PRIORITY_URGENT}) {
    MessageEnd::Stand& stand = end.stand(p);
    if (!stand.ready) continue;
    MessageRound& round = end.rounds->of(p);
    MessageEnd* before = nullptr;
    for (MessageEnd* other = round.head; other != &end; other = other->stand(p).next_ready) before = other;
    (before != nullptr ? before->stand(p).next_ready : round.head) = stand.next_ready;
    if (round.tail == &end) round.tail = before;
    stand.ready = false;
    count_waiting(end, p);
  }
}

// --- sending ---------------------------------------------------------------------------------------------------------

bool Messages::next_frame(MessageRound& round, OutPiece* out) {
  while (MessageEnd* end = round.head) {
    // One with nothing to send leaves the round.
    MessageEnd::Stand& stand = end->stand(round.priority);
    round.head = stand.next_ready;
    if (round.head == nullptr) round.tail = nullptr;
    stand.ready = false;
    count_waiting(*end, round.priority);
    if (!fill(*end, round.priority, out)) continue;
    make_ready(*end, round.priority);
    return true;
  }
  return false;
}

// Its part in its round's waiting bytes, after either has changed.
void Messages::count_waiting(MessageEnd& end, canary_priority p) {
  if (end.rounds == nullptr) return;  // of this very engine
  MessageEnd::Stand& stand = end.stand(p);
  const MessageRequest* const r = stand.ready ? stand.cursor : nullptr;
  const std::uint64_t bytes = r != nullptr ? r->length - std::min(r->length, r->next_piece * end.piece_bytes) : 0;
  if (bytes == stand.counted) return;
  MessageRound& round = end.rounds->of(p);
  end.peer->mux.set_waiting_bytes(round, round.waiting_bytes() + bytes - stand.counted);
  stand.counted = bytes;
}

// Whether its first piece may leave now.
bool Messages::may_go(MessageEnd& end, MessageRequest& r) {
  if (r.number <= end.credited || r.eager) return true;
  if (r.length > end.eager_max || end.debts_count == MessageEnd::kDebts) return false;
  const std::uint32_t charge = EagerStore::charge(static_cast<std::uint32_t>(r.length));
  if (end.peer->eager_used + charge > end.peer->eager_budget) return false;
  end.peer->eager_used += charge;
  // In the order of the numbers: an urgent message may have gone before an older one.
  const auto debt = [&](std::uint32_t i) -> MessageEnd::Debt& {
    return end.debts[(end.debts_first + i) % MessageEnd::kDebts];
  };
  std::uint32_t at = end.debts_count++;
  for (; at != 0 && debt(at - 1).number > r.number; --at) debt(at) = debt(at - 1);
  debt(at) = {r.number, charge};
  return r.eager = true;
}

// The cursor, if it stands at `r`, moves on to the next send with that priority.
void Messages::pass_cursor(MessageEnd& end, MessageRequest& r) {
  MessageRequest*& cursor = end.stand(r.priority).cursor;
  if (cursor != &r) return;
  for (cursor = r.next; cursor != nullptr && cursor->priority != r.priority;) cursor = cursor->next;
  count_waiting(end, r.priority);
}

bool Messages::fill(MessageEnd& end, canary_priority priority, OutPiece* out) {
  wire::Header& h = out->header;
  h.flow = end.flow;
  h.epoch = end.epoch;
  h.source = end.me;
  h.destination = end.other;
  if (end.refusal_due) {
    end.refusal_due = false;
    h.kind = wire::Kind::kSignature;
    h.step = static_cast<std::uint16_t>(wire::MessageFrame::kRefuse);
    h.op = static_cast<std::uint32_t>(end.refused);
    h.payload_bytes = sizeof end.refusal;
    out->payload = reinterpret_cast<const std::byte*>(&end.refusal);
    return true;
  }
  if (!end.failure.ok()) return false;
  if (end.credit_sent < end.posted) {
    end.credit_sent = end.posted;
    h.kind = wire::Kind::kSignature;
    h.step = static_cast<std::uint16_t>(wire::MessageFrame::kCredit);
    h.op = static_cast<std::uint32_t>(end.posted);
    return true;
  }
  MessageRequest* r = end.stand(priority).cursor;
  if (r == nullptr || !may_go(end, *r) || !r->through.in_reach(r->next_piece)) return false;
  const std::uint64_t piece = r->next_piece++;
  h.kind = wire::Kind::kPiece;
  h.op = static_cast<std::uint32_t>(r->number);
  if (end.tagged) h.epoch = r->tag;
  wire::set_message_length(&h, r->length, r->type);
  h.piece = static_cast<std::uint32_t>(piece);
  h.payload_bytes = bytes_of_piece(r->length, end.piece_bytes, piece);
  out->payload = place_of(end, *r, piece);
  out->borrow = true;
  out->cookie = std::uint64_t{r->place} << 32 | static_cast<std::uint32_t>(piece);
  if (r->next_piece == r->pieces) pass_cursor(end, *r);
  return true;
}

void Messages::on_done(std::uint64_t cookie, Nanos now) {
  const auto place = static_cast<std::size_t>(cookie >> 32);
  if (place / kChunk >= records_.size()) return;
  MessageRequest* const r = &records_[place / kChunk][place % kChunk];
  if (r->end == nullptr || !r->sends || !r->through.mark(static_cast<std::uint32_t>(cookie))) return;
  r->last_progress = now;
  r->end->moved(now, true);
  if (++r->pieces_done == r->pieces) {
    complete_send(*r);
  } else if (r->end->stand(r->priority).cursor == r) {
    make_ready(*r->end, r->priority);  // it may have waited for the window
  }
}

void Messages::complete_send(MessageRequest& r) {
  r.end->sends.remove(&r);
  ++counters_.sent;
  counters_.sent_bytes += r.length;
  finish(r, Status());
}

void Messages::settle_sends(MessageEnd& end, std::uint32_t op, Nanos now) {
  const std::uint64_t number = unwrap(op, end.credited);
  while (end.sends.head != nullptr && end.sends.head->number <= number) {
    pass_cursor(end, *end.sends.head);
    end.last_progress = now;
    complete_send(*end.sends.head);
  }
}

Nanos Messages::stuck_since(const MessageEnd& end) {
  Nanos since = Nanos::max();
  if (const MessageRequest* r = end.sends.head; r != nullptr && r->number <= end.credited) {
    since = std::max(r->last_progress, end.sends_progress);
  }
  for (const MessageRequest* r = end.receives.head; r != nullptr; r = r->next) {
    if (r->pieces_done != 0) return std::min(since, end.receives_progress);
  }
  return since;
}

void Messages::give_back_debts(MessageEnd& end, std::uint64_t up_to) {
  while (end.debts_count != 0 && end.debts[end.debts_first].number <= up_to) {
    end.peer->eager_used -= end.debts[end.debts_first].bytes;
    end.debts_first = (end.debts_first + 1) % MessageEnd::kDebts;
    --end.debts_count;
  }
}

void Messages::on_credit(MessageEnd& end, std::uint32_t op, Nanos now) {
  const std::uint64_t number = unwrap(op, end.credited);
  if (number <= end.credited || !end.failure.ok()) return;
  end.credited = number;
  give_back_debts(end, number);
  end.moved(now, true);
  for (MessageRequest* r = end.sends.head; r != nullptr && r->number <= number; r = r->next) r->last_progress = now;
  for (const canary_priority p : {CANARY_PRIORITY_URGENT, CANARY_PRIORITY_NORMAL}) {
    if (end.stand(p).cursor != nullptr) make_ready(end, p);
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

std::uint64_t Messages::number_of(const MessageEnd& end, const wire::Header& h) {
  return unwrap(h.op, end.received.base());
}

Messages::Match Messages::find_receive(MessageEnd& end, std::uint64_t number, std::uint32_t tag, MessageRequest** out) {
  if (number > end.posted) return Match::kNotPosted;
  if (end.receives.found != nullptr && end.receives.found->number == number) {
    *out = end.receives.found;
    return Match::kFound;
  }
  MessageRequest* open = nullptr;  // the first of its group that has the tag and no message yet
  std::uint32_t same_tag = 0;
  std::uint64_t bound_before = 0, group_first = 0;
  for (MessageRequest* r = end.receives.head; r != nullptr; r = r->next) {
    if (r->number == number) {
      *out = end.receives.found = r;
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
    for (std::uint64_t n = group_first; n < number; ++n) bound_before += end.received.through(n) ? 1 : 0;
    if (bound_before != number - group_first) return Match::kAmbiguous;
  }
  open->number = number;
  *out = end.receives.found = open;
  return Match::kFound;
}

bool Messages::accepts(MessageEnd& end, MessageRequest& r, std::uint64_t number, const wire::Header& h) {
  const std::uint64_t length = wire::message_length(h);
  if (r.pieces != 0) return length == r.length && number == r.number;
  const bool fits = end.exact ? length == r.bytes && wire::message_type(h) == r.type : length <= r.bytes;
  if (!fits) return false;
  r.length = length;
  r.pieces = pieces_of(length, end.piece_bytes);
  counters_.receiving_bytes += length;
  return true;
}

bool Messages::is_refused(const MessageEnd& end, std::uint64_t number) {
  return end.peer != nullptr && !end.exact && !end.failure.ok() && end.refused == number;
}

bool Messages::well_formed(const MessageEnd& end, const MessageRequest& r, const wire::Header& h) {
  return h.piece < r.pieces && h.payload_bytes == bytes_of_piece(r.length, end.piece_bytes, h.piece);
}

Landing Messages::landing_for(MessagePeer& peer, const Where& where, const wire::Header& h) {
  if (h.kind == wire::Kind::kSignature) return {Landing::Kind::kSlot, nullptr, kLanded};
  if (where.over) return kForget;
  if (MessageEnd* end = where.end) {
    const std::uint64_t number = number_of(*end, h);
    if (end->received.through(number)) return kForget;
    if (!end->received.in_reach(number)) return kComeAgain;
    MessageRequest* r = nullptr;
    switch (find_receive(*end, number, tag_of(*end, h), &r)) {
      case Match::kFound: {
        const bool first = r->pieces == 0;
        if (!accepts(*end, *r, number, h)) return first ? Landing{Landing::Kind::kDiscard, nullptr, kMisfit} : kForget;
        if (!well_formed(*end, *r, h) || r->through.through(h.piece)) return kForget;
        if (!r->through.in_reach(h.piece)) return kComeAgain;
        if (r->is_landing(h.piece)) return {Landing::Kind::kSlot, nullptr, kLanded};
        if (h.payload_bytes == 0) return {Landing::Kind::kSlot, nullptr, kLanded};
        r->set_landing(h.piece, true);
        return {Landing::Kind::kSpan, place_of(*end, *r, h.piece), kLanded};
      }
      case Match::kUnknownTag:
        return {Landing::Kind::kDiscard, nullptr, kMisfit};
      case Match::kAmbiguous:
      case Match::kNotPosted:
        break;
    }
    if (!end->failure.ok()) return kForget;
  }
  // Only a message of one piece may come before its receive.
  if (h.piece != 0 || wire::message_length(h) != h.payload_bytes) return kComeAgain;
  if (EagerStore::Entry* known = peer.parked.find(h)) return known->complete ? kForget : kComeAgain;
  EagerStore::Entry* e = peer.parked.take(h);
  if (e == nullptr) return kComeAgain;
  return {Landing::Kind::kSpan, peer.parked.data(*e), kParked};
}

bool Messages::on_arrival(MessagePeer& peer, const Where& where, const wire::Header& h, const Arrival& arrival,
                          Nanos now) {
  if (h.kind == wire::Kind::kSignature) {
    wire::MessageWord word;
    return !peer.mux.is_read(h, arrival.payload, &word) || on_word(where, word, now);
  }
  MessageEnd* end = where.over ? nullptr : where.end;
  // An acknowledgement could overtake the refusal, and the send would count as done.
  if (end != nullptr && arrival.discarded && is_refused(*end, number_of(*end, h))) return false;
  if (arrival.discarded && arrival.cookie != kMisfit) return arrival.cookie != kNoPlace;
  EagerStore::Entry* parked = arrival.cookie == kParked ? peer.parked.find(h) : nullptr;
  if (end == nullptr) {
    if (parked != nullptr) parked->complete = true;
    if (parked != nullptr && where.over) peer.parked.release(parked);
    return true;
  }
  const std::uint64_t number = number_of(*end, h);
  const bool known = end->received.through(number) || (!end->failure.ok() && number <= end->posted);
  MessageRequest* r = nullptr;
  const Match match = known ? Match::kNotPosted : find_receive(*end, number, tag_of(*end, h), &r);
  if (match == Match::kFound) {
    const bool first = r->pieces == 0;
    if (!accepts(*end, *r, number, h)) {
      if (parked != nullptr) peer.parked.release(parked);
      if (first) mismatch(*end, number, h, r);
      return !is_refused(*end, number);
    }
    if (!arrival.discarded && well_formed(*end, *r, h)) arrived(*end, *r, h, arrival.payload.data(), now);
  } else if (match == Match::kUnknownTag) {
    mismatch(*end, number, h, nullptr);
    if (parked != nullptr) peer.parked.release(parked);
    return !is_refused(*end, number);
  } else if (parked != nullptr && !known) {
    parked->complete = true;
    return true;
  }
  if (parked != nullptr) peer.parked.release(parked);
  return true;
}

bool Messages::on_word(const Where& where, const wire::MessageWord& word, Nanos now) {
  if (where.over) return true;
  if (where.end == nullptr) return false;
  if (const auto* credit = std::get_if<wire::Credit>(&word)) on_credit(*where.end, credit->up_to, now);
  if (const auto* refusal = std::get_if<wire::Refuse>(&word)) on_refusal(*where.end, *refusal);
  return true;
}

void Messages::arrived(MessageEnd& end, MessageRequest& r, const wire::Header& h, const std::byte* payload, Nanos now) {
  if (!r.through.in_reach(h.piece) || !r.through.mark(h.piece)) return;
  std::byte* const place = place_of(end, r, h.piece);
  const bool other_landing = r.is_landing(h.piece) && payload != place;
  r.set_landing(h.piece, false);
  r.last_progress = now;
  end.moved(now, false);
  if (payload != place && h.payload_bytes != 0) std::memcpy(place, payload, h.payload_bytes);
  const bool grouped = r.group_size > 1;
  const bool complete = ++r.pieces_done == r.pieces;
  // Before anybody may take the memory back. By its place: only the number was compared, the tag and the type of that
  // landing may be others.
  if (other_landing) end.peer->mux.channel()->redirect_landing(place);
  if (complete) complete_receive(end, r);
  if (grouped) claim_parked(end, now);  // one that waited for this message's binding
}

void Messages::complete_receive(MessageEnd& end, MessageRequest& r) {
  end.received.mark(r.number);
  end.receives.remove(&r);
  ++counters_.received;
  counters_.received_bytes += r.length;
  finish(r, Status());
}

// Messages that came before their receive.
void Messages::claim_parked(MessageEnd& end, Nanos now) {
  EagerStore& store = end.peer->parked;
  for (bool again = true; again && !store.empty() && end.receives.head != nullptr;) {
    again = false;
    store.for_each_of(end.flow, end.epoch, 0, end.other, end.me, [&](EagerStore::Entry& e) {
      const wire::Header& h = e.header;
      if (end.receives.head == nullptr) return false;  // all have their message, or ended by one that did not fit
      if (!e.complete || (!end.tagged && h.epoch != end.epoch)) return true;
      const std::uint64_t number = number_of(end, h);
      if (end.received.through(number)) {
        store.release(&e);
        return true;
      }
      if (!end.received.in_reach(number)) return true;
      MessageRequest* r = nullptr;
      const Match match = find_receive(end, number, tag_of(end, h), &r);
      if (match == Match::kNotPosted || match == Match::kAmbiguous) return true;
      const wire::Header header = h;
      if (match == Match::kUnknownTag || !accepts(end, *r, number, header)) {
        store.release(&e);
        mismatch(end, number, header, r);
        return true;
      }
      if (well_formed(end, *r, header) && r->through.mark(header.piece)) {
        if (header.payload_bytes != 0)
          std::memcpy(place_of(end, *r, header.piece), store.data(e), header.payload_bytes);
        r->last_progress = now;
        end.moved(now, false);
        again = r->group_size > 1;
        if (++r->pieces_done == r->pieces) complete_receive(end, *r);
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
  if (where.over || where.end == nullptr) return;
  const std::uint64_t number = number_of(*where.end, h);
  for (MessageRequest* r = where.end->receives.head; r != nullptr; r = r->next) {
    if (r->number == number && !r->through.through(h.piece)) r->set_landing(h.piece, false);
  }
}

// --- what does not fit -----------------------------------------------------------------------------------------------

void Messages::mismatch(MessageEnd& end, std::uint64_t number, const wire::Header& h, const MessageRequest* r) {
  const std::uint64_t length = wire::message_length(h);
  std::string text = "message #" + std::to_string(number) + ": ";
  if (r == nullptr) {
    text += "it has tag " + std::to_string(tag_of(end, h)) + ", and no receive of its group has that";
  } else if (end.exact) {
    const auto words = [](std::uint64_t bytes, std::uint8_t type) {
      const bool known = type < kDataTypeCount;
      const std::string name =
          known ? std::string(name_of(static_cast<DataType>(type))) : "type " + std::to_string(type);
      return name + " n=" + std::to_string(known ? bytes / size_of(static_cast<DataType>(type)) : bytes);
    };
    text += "rank " + std::to_string(end.other) + " of the group sends " + words(length, wire::message_type(h)) +
            ", rank " + std::to_string(end.me) + " receives " + words(r->bytes, r->type);
  } else {
    text += std::to_string(length) + " bytes were sent, the receive has room for " + std::to_string(r->bytes);
  }
  end.refusal = {};
  end.refusal.message_bytes = length;
  end.refusal.room_bytes = r != nullptr ? r->bytes : 0;
  end.refusal.tag = tag_of(end, h);
  end.refusal.unknown_tag = r == nullptr ? 1 : 0;
  end.refused = number;
  end.refusal_due = end.peer != nullptr && !end.exact;  // a group's verdict tells everybody
  if (end.refusal_due) make_ready(end, CANARY_PRIORITY_NORMAL);
  host_.on_mismatch(end, Status(CANARY_MISMATCH, text), false);
}

void Messages::on_refusal(MessageEnd& end, const wire::Refuse& word) {
  const wire::RefusePayload& refusal = word.why;
  std::string text = "message #" + std::to_string(unwrap(word.message, end.credited)) + ": ";
  if (refusal.unknown_tag != 0) {
    text += "it has tag " + std::to_string(refusal.tag) + ", and no receive of its group has that";
  } else {
    text += std::to_string(refusal.message_bytes) + " bytes were sent, the receive has room for " +
            std::to_string(refusal.room_bytes);
  }
  host_.on_mismatch(end, Status(CANARY_MISMATCH, text), true);
}

}  // namespace canarynet
