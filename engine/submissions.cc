// What callers hand over, on its way to being an operation: the ring that all threads share, then a queue per member.
//
// The ring is emptied in every cycle, whatever waits: no member can hold back another one. A member's queue keeps the
// order of its calls until it has a slot (CANARY_OPS_IN_FLIGHT); what waits there is subject to the caller's deadline
// and to the group's verdict as if it ran.
#include <algorithm>

#include "base/duration_text.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

// Per cycle, so that lanes need not wait for long: what is left over is due at once.
constexpr int kTakenPerCycle = 64;
constexpr int kEnteredPerCycle = 64;

}  // namespace

bool Engine::submit(Submission s) {
  GroupMember* const m = s.member;
  if (m != nullptr && m->submitted.fetch_add(1, std::memory_order_acq_rel) >= GroupMember::kSubmittedMax &&
      s.kind == Submission::Kind::kOperation) {
    m->submitted.fetch_sub(1, std::memory_order_acq_rel);
    return false;
  }
  if (submissions_.push(std::move(s))) return true;
  if (m != nullptr) m->submitted.fetch_sub(1, std::memory_order_acq_rel);
  return false;
}

bool Engine::submit(MessageRequest* message) {
  GroupMember* const m = static_cast<GroupMember*>(message->member);
  m->submitted.fetch_add(1, std::memory_order_acq_rel);
  if (message_submissions_.push(message)) return true;
  m->submitted.fetch_sub(1, std::memory_order_acq_rel);
  return false;
}

void Engine::take_submissions() {
  submissions_left_ = false;
  if (!submissions_.ready()) return;
  Submission s;
  for (int i = 0; i < kTakenPerCycle; ++i) {
    if (!submissions_.pop(&s)) return;
    take(s);
  }
  submissions_left_ = submissions_.ready();
}

void Engine::take(Submission& s) {
  switch (s.kind) {
    case Submission::Kind::kOperation:
      if (s.member->waiting.empty()) waiting_.push_back(s.member);
      s.member->waiting.push(
          {s.request, s.ticket, now_, s.request.time_limit.count > 0 ? now_ + s.request.time_limit : Nanos::max()});
      return;  // it counts as submitted until it has entered
    case Submission::Kind::kGroup: {
      const std::uint64_t cookie = next_cookie_++;
      pending_groups_.push_back({cookie, s.ticket, *s.members});
      membership_->request_group(now_, s.local_rank, *s.members, cookie);
      give_up_groups();
      return;
    }
    case Submission::Kind::kDeadline:
      set_deadline(*s.member, *s.ticket, s.generation, now_ + s.time_limit);
      break;
    case Submission::Kind::kAbort: {
      Verdict v;
      v.code = CANARY_ABORTED;
      v.rank = s.member->world_rank;
      v.text = "aborted by " + rank_name(s.member->world_rank) + ": " + *s.text;
      kill(*s.member->group, v, true);
      break;
    }
  }
  s.member->submitted.fetch_sub(1, std::memory_order_acq_rel);
}

bool Engine::has_slot(const GroupMember& m) const {
  return m.operations.size() < static_cast<std::size_t>(options_.settings.ops_in_flight);
}

// Members take turns, operation by operation.
void Engine::enter_waiting() {
  int budget = kEnteredPerCycle;
  for (bool entered = true; entered && budget != 0;) {
    entered = false;
    for (std::size_t i = 0; i < waiting_.size() && budget != 0; ++i) {
      GroupMember& m = *waiting_[i];
      if (m.waiting.empty() || !has_slot(m)) continue;
      enter_next(m);
      entered = true;
      --budget;
    }
  }
  // Whose turn was cut short comes first next time.
  std::erase_if(waiting_, [](const GroupMember* m) { return m->waiting.empty(); });
  if (budget == 0 && !waiting_.empty()) std::rotate(waiting_.begin(), waiting_.begin() + 1, waiting_.end());
}

void Engine::enter_next(GroupMember& m) {
  const WaitingOperation next = m.waiting.pop();
  m.submitted.fetch_sub(1, std::memory_order_acq_rel);
  enter(m, next);
}

// The group is dead, or the member has gone: each hears of it, in the order of the calls.
void Engine::end_waiting(GroupMember& m) {
  while (!m.waiting.empty()) enter_next(m);
  std::erase(waiting_, &m);  // it may be freed before the next turn
}

// A limit that the caller set does not wait for a slot. False: the group has been ended.
bool Engine::check_waiting(Group& g, GroupMember& m, Nanos now) {
  for (std::size_t i = 0; i < m.waiting.size(); ++i) {
    const WaitingOperation& w = m.waiting[i];
    if (now < w.deadline) continue;
    Verdict v;
    v.code = CANARY_DEADLINE;
    v.op = m.entered + 1 + static_cast<std::uint32_t>(i);
    v.elapsed = now - w.submitted;
    v.text = "the caller's deadline of operation #" + std::to_string(v.op) + " passed after " +
             milliseconds(v.elapsed) + ", while it waited for operation #" +
             std::to_string(m.operations.empty() ? m.entered + 1 : m.operations.front().number);
    kill(g, v, true);
    return false;
  }
  return true;
}

void Engine::set_deadline(GroupMember& m, const OpTicket& ticket, std::uint32_t generation, Nanos deadline) {
  // What holds the ticket keeps it from being used again, so its generation stands still there.
  const auto meant = [&](const OpTicket* t) { return t == &ticket && t->generation == generation; };
  for (Operation& op : m.operations) {
    if (meant(op.ticket)) op.deadline = deadline;
  }
  for (std::size_t i = 0; i < m.waiting.size(); ++i) {
    if (meant(m.waiting[i].ticket)) m.waiting[i].deadline = deadline;
  }
  for (const auto& flow : m.messages) {
    if (!flow) continue;
    for (const MessageList* list : {&flow->sends, &flow->receives}) {
      for (MessageRequest* r = list->head; r != nullptr; r = r->next) {
        if (meant(r->ticket)) r->deadline = deadline;
      }
    }
  }
}

}  // namespace canarynet
