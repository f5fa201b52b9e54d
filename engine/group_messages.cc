// Send and receive in a group: the engine's part around engine/messages.h. Every ordered pair of ranks has its own
// numbers; collectives have theirs.
#include <algorithm>

#include "base/duration_text.h"
#include "engine/engine.h"
#include "engine/group_message_flow.h"

namespace canarynet {
namespace {

constexpr int kMessagesPerCycle = 1024;  // all that their ring holds

const char* verb(const MessageRequest& r) { return r.sends ? "send" : "recv"; }

}  // namespace

void Engine::drain_messages() {
  messages_left_ = false;
  MessageRequest* message = nullptr;
  for (int i = 0; i < kMessagesPerCycle; ++i) {
    if (!message_submissions_.pop(&message)) return;
    post_message(message);
  }
  messages_left_ = message_submissions_.ready();
}

void Engine::post_message(MessageRequest* message) {
  ErrorDetail d;
  d.op_name = verb(*message);
  d.phase = "entry";
  GroupMember* const caller = member(message->member);
  if (caller == nullptr) {
    message->ticket->finish(Status(CANARY_INVALID_ARGUMENT, d.op_name + ": its group has been destroyed", d));
    return;
  }
  GroupMember& m = *caller;
  Group& g = *m.group;
  d.group = g.flow;
  MessageEnd& flow = message_end(m, message->partner);
  const std::uint32_t engine = g.engine_of[static_cast<std::size_t>(message->partner)];
  if (engine != my_engine_ && flow.peer == nullptr && !g.dead) {
    const int other = g.members[static_cast<std::size_t>(message->partner)];
    d.rank = other;
    message->ticket->finish(Status(CANARY_UNREACHABLE,
                                   d.op_name + ": " + rank_name(m.world_rank) + " and " + rank_name(other) +
                                       " share no rail (neither a subnet nor a route; CANARY_RAIL_PAIRING decides)",
                                   d));
    return;
  }
  message->flow = &flow;
  if (g.dead && flow.failure.ok()) flow.failure = g.verdict;
  messages_.post(message, now_);
}

MessageEnd& Engine::message_end(GroupMember& m, int partner) {
  Group& g = *m.group;
  if (m.messages.empty()) m.messages.resize(g.members.size());
  auto& made = m.messages[static_cast<std::size_t>(partner)];
  if (made) return *made;
  made = std::make_unique<MessageEnd>();
  MessageEnd& f = *made;
  f.flow = g.messages_number();
  f.epoch = g.epoch;
  f.me = static_cast<std::uint16_t>(m.rank);
  f.other = static_cast<std::uint16_t>(partner);
  f.exact = true;
  f.owner = &m;
  const std::uint32_t engine = g.engine_of[static_cast<std::size_t>(partner)];
  if (engine != my_engine_) {
    f.peer = peers_[engine].messages.get();
    f.rounds = &g.peer(engine)->messages;
  } else if (partner == m.rank) {
    f.twin = &f;
  } else if (GroupMember* other = g.member(partner); other != nullptr && !other->messages.empty()) {
    // The one made second joins the two.
    if (MessageEnd* twin = other->messages[static_cast<std::size_t>(m.rank)].get()) {
      f.twin = twin;
      twin->twin = &f;
    }
  }
  messages_.open(f, static_cast<std::uint32_t>(roster_.piece_bytes.count), options_.first_message);
  return f;
}

// --- the flow --------------------------------------------------------------------------------------------------------

bool GroupMessageFlow::next_frame(Mux& to, Turn& turn, OutPiece* out) {
  if (engine_.peers_[to.peer()].left || to.channel()->peer_left()) return false;
  return engine_.messages_.next_frame(static_cast<MessageRound&>(turn), out);
}

std::uint64_t GroupMessageFlow::waiting_bytes(const Mux& to, const Turn& turn) const {
  if (engine_.peers_[to.peer()].left || to.channel()->peer_left()) return 0;
  return Messages::waiting_bytes(static_cast<const MessageRound&>(turn));
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

void Engine::on_mismatch(MessageEnd& flow, const Status& why, bool) {
  const GroupMember& m = *static_cast<const GroupMember*>(flow.owner);
  Verdict v;
  v.code = why.code();
  v.rank = m.group->members[flow.other];
  v.text = "group " + std::to_string(m.group->flow) + ", " + why.text();
  kill(*m.group, v, true);
}

Status Engine::failure_of(const MessageRequest& r, const Status& why, Nanos now) {
  const GroupMember& m = *static_cast<const GroupMember*>(r.flow->owner);
  ErrorDetail d = why.detail();
  d.op = static_cast<std::int64_t>(r.group_first);
  d.op_name = verb(r);
  d.elapsed = now - r.entered;
  return Status(why.code(),
                d.op_name + " #" + std::to_string(d.op) + (r.sends ? " to rank " : " from rank ") +
                    std::to_string(m.group->members[r.flow->other]) + ": " + why.text(),
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
    for (auto& flow : m->messages) {
      if (flow) messages_.fail(*flow, g.verdict, now_);
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
  for (auto& flow : m.messages) {
    if (flow && flow->peer != nullptr) messages_.give_back_debts(*flow, flow->sent);
  }
}

void Engine::check_messages(Group& g, GroupMember& m, Nanos now) {
  const Settings& set = options_.settings;
  for (const auto& flow : m.messages) {
    if (!flow || flow->idle()) continue;
    const int other = g.members[flow->other];
    const auto end = [&](const MessageRequest& r, canary_status code, const std::string& text) {
      Verdict v;
      v.code = code;
      v.rank = other;
      v.op = static_cast<std::int64_t>(r.group_first);
      v.elapsed = now - r.entered;
      v.text = text;
      kill(g, v, true);
    };
    for (const MessageList* list : {&flow->sends, &flow->receives}) {
      for (const MessageRequest* r = list->head; r != nullptr; r = r->next) {
        if (now < r->deadline) continue;
        return end(*r, CANARY_DEADLINE,
                   std::string("the caller's deadline of ") + verb(*r) + " #" + std::to_string(r->group_first) +
                       " passed after " + milliseconds(now - r->entered));
      }
      const MessageRequest* r = list->head;  // the others wait for it
      if (r == nullptr) continue;
      const bool waits = r->sends ? r->number > flow->credited && r->cells_done == 0 : r->cells_done == 0;
      // Words are for verdicts only: while all is well nothing is allocated here.
      const auto what = [&] {
        return std::string(r->sends ? "receive message #" : "send message #") + std::to_string(r->group_first) +
               (r->sends ? " from " : " to ") + rank_name(m.world_rank);
      };
      const Nanos since = std::max(r->last_progress, flow->last_progress);
      if (g.left[flow->other] != 0 && now - since > departure_grace()) {
        return end(*r, CANARY_PEER_DIED, rank_name(other) + " left the job (finalize) and did not " + what());
      }
      if (waits && now - since > set.entry_limit) {
        return end(*r, CANARY_ENTRY_TIMEOUT,
                   rank_name(other) + " did not " + what() + " within " + milliseconds(set.entry_limit));
      }
      if (!waits && now - since > set.exchange_limit) {
        return end(*r, CANARY_EXCHANGE_TIMEOUT,
                   rank_name(other) + " did not " + what() + ": no progress for " + milliseconds(now - since));
      }
    }
  }
}

}  // namespace canarynet
