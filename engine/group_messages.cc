// Send and receive in a group: the engine's part around engine/messages.h. Every ordered pair of ranks has its own
// numbers; collectives have theirs.
#include <algorithm>

#include "base/duration_text.h"
#include "engine/engine.h"
#include "engine/group_message_flow.h"

namespace canarynet {
namespace {

// At most so many are posted for a member in one cycle, so that lanes need not wait for long: the rest is due at once.
constexpr int kPostedPerCycle = 128;

const char* verb(bool sends) { return sends ? "send" : "recv"; }

}  // namespace

void Engine::post_messages() {
  messages_left_ = false;
  for (GroupMember* m : waiting_) {
    post_messages(*m, kPostedPerCycle);
    messages_left_ |= m->called_messages.ready();
  }
}

void Engine::post_messages(GroupMember& m, int limit) {
  port::Command c;
  while (limit-- > 0 && m.called_messages.pop(&c)) post_message(m, c);
}

void Engine::post_message(GroupMember& m, const port::Command& c) {
  Group& g = *m.group;
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  CANARY_CHECK(ticket != nullptr, "a ticket ended before its message");
  MessageEnd& end = message_end(m, c.rank);
  const std::uint32_t engine = g.engine_of[static_cast<std::size_t>(c.rank)];
  if (engine != my_engine_ && end.peer == nullptr && !g.dead) {
    ErrorDetail d;
    d.op_name = verb(c.kind == port::Command::Kind::kSend);
    d.phase = "entry";
    d.group = g.flow;
    d.rank = g.members[static_cast<std::size_t>(c.rank)];
    ticket->finish(Status(CANARY_UNREACHABLE,
                          d.op_name + ": " + rank_name(m.world_rank) + " and " + rank_name(d.rank) +
                              " share no rail (neither a subnet nor a route; CANARY_RAIL_PAIRING decides)",
                          d));
    return;
  }
  if (g.dead && end.failure.ok()) end.failure = g.verdict;
  const MessageOrder order = Messages::order_of(c, regions_, ticket);
  messages_.post(end, {&order, 1}, now_);
}

MessageEnd& Engine::message_end(GroupMember& m, int partner) {
  Group& g = *m.group;
  if (m.messages.empty()) m.messages.resize(g.members.size());
  auto& made = m.messages[static_cast<std::size_t>(partner)];
  if (made) return *made;
  made = std::make_unique<MessageEnd>();
  MessageEnd& end = *made;
  end.flow = g.messages_number();
  end.epoch = g.epoch;
  end.me = static_cast<std::uint16_t>(m.rank);
  end.other = static_cast<std::uint16_t>(partner);
  end.exact = true;
  end.owner = &m;
  const std::uint32_t engine = g.engine_of[static_cast<std::size_t>(partner)];
  if (engine != my_engine_) {
    if (GroupPeer* const peer = group_peer(g, engine)) {
      end.peer = peers_[engine].messages.get();
      end.rounds = &peer->messages;
    }
  } else if (partner == m.rank) {
    end.twin = &end;
  } else if (GroupMember* other = g.member(partner); other != nullptr && !other->messages.empty()) {
    // The one made second joins the two.
    if (MessageEnd* twin = other->messages[static_cast<std::size_t>(m.rank)].get()) {
      end.twin = twin;
      twin->twin = &end;
    }
  }
  messages_.open(end, static_cast<std::uint32_t>(roster_->piece_bytes.count), options_.first_message);
  return end;
}

// --- the flow --------------------------------------------------------------------------------------------------------

bool GroupMessageFlow::next_frame(Mux& to, Turn& turn, OutPiece* out) {
  if (engine_.peers_[to.peer()].left || to.channel()->peer_left()) return false;
  return engine_.messages_.next_frame(static_cast<MessageRound&>(turn), out);
}

void GroupMessageFlow::on_done(Mux&, std::uint64_t cookie) { engine_.messages_.on_done(cookie, engine_.now_); }

Messages::Where GroupMessageFlow::where_is(const Mux& from, const wire::Header& h) const {
  if (group_.dead || group_.epoch != h.epoch) return {nullptr, true};
  // A peer speaks for its own ranks only.
  if (h.source >= group_.members.size() || group_.engine_of[h.source] != from.peer()) return {nullptr, true};
  GroupMember* const m = group_.member(h.destination);
  if (m == nullptr) return {nullptr, true};
  return {&engine_.message_end(*m, h.source), false};
}

Landing GroupMessageFlow::landing_for(Mux& from, const wire::Header& h) {
  return engine_.messages_.landing_for(*engine_.peers_[from.peer()].messages, where_is(from, h), h);
}

bool GroupMessageFlow::on_arrival(Mux& from, const wire::Header& h, const Arrival& arrival) {
  MessagePeer& peer = *engine_.peers_[from.peer()].messages;
  return engine_.messages_.on_arrival(peer, where_is(from, h), h, arrival, engine_.now_);
}

void GroupMessageFlow::on_landing_lost(Mux& from, const wire::Header& h, std::uint64_t cookie) {
  engine_.messages_.on_landing_lost(*engine_.peers_[from.peer()].messages, where_is(from, h), h, cookie);
}

// --- ends and limits -------------------------------------------------------------------------------------------------

void Engine::on_mismatch(MessageEnd& end, const Status& why, bool) {
  const GroupMember& m = *static_cast<const GroupMember*>(end.owner);
  Verdict v;
  v.code = why.code();
  v.rank = m.group->members[end.other];
  v.text = "group " + std::to_string(m.group->flow) + ", " + why.text();
  kill(*m.group, v, true);
}

Status Engine::failure_of(const MessageRequest& r, const Status& why, Nanos now) {
  const GroupMember& m = *static_cast<const GroupMember*>(r.end->owner);
  ErrorDetail d = why.detail();
  d.op = static_cast<std::int64_t>(r.group_first);
  d.op_name = verb(r.sends);
  d.elapsed = now - r.entered;
  return Status(why.code(),
                d.op_name + " #" + std::to_string(d.op) + (r.sends ? " to rank " : " from rank ") +
                    std::to_string(m.group->members[r.end->other]) + ": " + why.text(),
                d);
}

// The group is dead: nothing of its messages may be read or written any more.
void Engine::end_messages(Group& g) {
  const std::uint32_t number = g.messages_number();
  for (EnginePeer& p : peers_) {
    if (!p.channel) continue;
    p.channel->cancel_flow(number);
    messages_.drop_parked(*p.messages, number);
  }
  for (auto& m : g.local) {
    for (auto& end : m->messages) {
      if (end) messages_.fail(*end, g.verdict, now_);
    }
  }
}

// A member that calls no more: what is parked for it, and what it is charged for, makes room.
void Engine::retire_messages(GroupMember& m) {
  const std::uint32_t number = m.group->messages_number();
  for (EnginePeer& p : peers_) {
    if (!p.messages) continue;
    p.messages->parked.for_each([&](EagerStore::Entry& e) {
      if (e.complete && e.header.flow == number && e.header.destination == m.rank) p.messages->parked.release(&e);
    });
  }
  for (auto& end : m.messages) {
    if (end && end->peer != nullptr) messages_.give_back_debts(*end, end->sent);
  }
}

void Engine::check_messages(Group& g, GroupMember& m, Nanos now) {
  const Settings& set = options_.settings;
  for (const auto& end : m.messages) {
    if (!end || end->idle()) continue;
    const int other = g.members[end->other];
    const auto give_up = [&](const MessageRequest& r, canary_status code, const std::string& text) {
      Verdict v;
      v.code = code;
      v.rank = other;
      v.op = static_cast<std::int64_t>(r.group_first);
      v.elapsed = now - r.entered;
      v.text = text;
      kill(g, v, true);
    };
    for (const MessageList* list : {&end->sends, &end->receives}) {
      for (const MessageRequest* r = list->head; r != nullptr; r = r->next) {
        if (now < r->deadline) continue;
        std::string passed = "the caller's deadline of ";
        passed.append(verb(r->sends)).append(" #").append(std::to_string(r->group_first));
        return give_up(*r, CANARY_DEADLINE, passed + " passed after " + milliseconds(now - r->entered));
      }
      const MessageRequest* r = list->head;  // the others wait for it
      if (r == nullptr) continue;
      const bool waits = r->sends ? r->number > end->credited && r->pieces_done == 0 : r->pieces_done == 0;
      // Words are for verdicts only: while all is well nothing is allocated here.
      const auto what = [&] {
        return std::string(r->sends ? "receive message #" : "send message #") + std::to_string(r->group_first) +
               (r->sends ? " from " : " to ") + rank_name(m.world_rank);
      };
      const Nanos since = std::max(r->last_progress, end->last_progress);
      if (g.left[end->other] != 0 && now - since > departure_grace()) {
        return give_up(*r, CANARY_PEER_DIED, rank_name(other) + " left the job (finalize) and did not " + what());
      }
      if (waits && now - since > set.entry_limit) {
        return give_up(*r, CANARY_ENTRY_TIMEOUT,
                       rank_name(other) + " did not " + what() + " within " + milliseconds(set.entry_limit));
      }
      if (!waits && now - since > set.exchange_limit) {
        return give_up(*r, CANARY_EXCHANGE_TIMEOUT,
                       rank_name(other) + " did not " + what() + ": no progress for " + milliseconds(now - since));
      }
    }
  }
}

}  // namespace canarynet
