// Callers' requests on their way to becoming operations or messages: two queues per member, and one for all other
// commands.
//
// The other commands are read first and in every cycle: deadlines, aborts and new groups wait for no operation, and no
// member can hold back another one. A member's queue keeps the order of its calls until there is room
// (CANARY_OPS_IN_FLIGHT); what waits there is subject to the caller's deadline and to the group's verdict as if it ran.
// Operations enter in the order of their numbers, so an urgent one cannot pass those that were called before it: while
// one waits, they enter with it, up to as many again as the limit says.
#include <algorithm>
#include <climits>

#include "base/duration_text.h"
#include "base/serial.h"
#include "engine/engine.h"
#include "port/command_check.h"

namespace canarynet {
namespace {

// Per cycle, so that lanes need not wait for long: what is left over is due at once.
constexpr int kTakenPerCycle = 64;
constexpr int kEnteredPerCycle = 64;
// Members that stay listed while nothing of theirs waits, until the next housekeeping: a member that calls again and
// again need not be listed anew for every call. They are looked at in every cycle.
constexpr std::size_t kListedMax = 8;

// Commands of these kinds wait in their member's queue; all others wait in the engine's.
bool has_queue(port::Command::Kind kind) {
  using Kind = port::Command::Kind;
  return kind == Kind::kOperation || kind == Kind::kSend || kind == Kind::kReceive;
}

}  // namespace

Status Engine::check_call(const port::Command& c) const {
  const GroupMember* const m = member(c.member);
  port::Surroundings here{regions_, options_.world_size, {}, false};
  // Nobody calls those of a session or a partial all-reduce.
  if (m != nullptr && !wire::is_partial(m->group->flow)) here.member = m->shape();
  if (c.kind != port::Command::Kind::kDeadline) {  // whose ticket may be in use again
    const OpTicket* const ticket = tickets_->at(c.ticket.place);
    here.ticket = ticket != nullptr && ticket->id() == c.ticket;
  }
  if (Status wrong = port::check_command(c, here); !wrong.ok()) return wrong;
  if (c.kind == port::Command::Kind::kPartial) return check_codec_of_partial(port::all_reduce_of(c, regions_));
  return check_codec(c);
}

Status Engine::submit(const port::Command& c) {
  if (Status wrong = check_call(c); !wrong.ok()) return wrong;
  GroupMember* const m = member(c.member);
  const bool taken = m != nullptr && has_queue(c.kind) ? call(*m, c) : commands_.push(c);
  return taken ? Status() : Status(CANARY_WOULD_BLOCK, "");
}

// Into the member's queue of its kind. False: that is full.
bool Engine::call(GroupMember& m, const port::Command& c) {
  if (c.kind != port::Command::Kind::kOperation) {
    if (!m.called_messages.push(c)) return false;
    note_called(m);
    return true;
  }
  const bool urgent = c.priority == CANARY_PRIORITY_URGENT;
  if (urgent) m.urgent_waiting.fetch_add(1, std::memory_order_relaxed);
  const bool pushed = m.waiting.push_with([&](WaitingOperation& w) {
    w.command = c;
    w.seen = false;
  });
  if (!pushed) {
    if (urgent) m.urgent_waiting.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  note_called(m);
  return true;
}

// Something of it waits.
void Engine::note_called(GroupMember& m) {
  if (m.listed.exchange(true, std::memory_order_acq_rel)) return;
  m.next_called = called_.load(std::memory_order_relaxed);
  while (!called_.compare_exchange_weak(m.next_called, &m, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

bool Engine::full(port::MemberId id) const {
  const GroupMember* const m = member(id);
  return m != nullptr && m->waiting.full();
}

void Engine::take_commands() {
  commands_left_ = false;
  list_called();
  post_messages();  // first: a deadline among the commands may be one of theirs
  if (!commands_.ready()) return;
  port::Command c;
  for (int i = 0; i < kTakenPerCycle; ++i) {
    if (!commands_.pop(&c)) return;
    obey(c);
  }
  commands_left_ = commands_.ready();
}

void Engine::obey(const port::Command& c) {
  GroupMember* const m = member(c.member);  // none: its group has ended since
  switch (c.kind) {
    case port::Command::Kind::kGroup: {
      const std::uint64_t cookie = next_cookie_++;
      const auto* ranks = reinterpret_cast<const std::int32_t*>(regions_.at(c.numbers));
      const std::vector<int> list(ranks, ranks + c.numbers.bytes / sizeof *ranks);
      pending_groups_.push_back({cookie, tickets_->at(c.ticket.place), list});
      membership_->request_group(now_, c.rank, list, cookie);
      give_up_groups();
      return;
    }
    case port::Command::Kind::kDeadline:
      if (m == nullptr) return;
      post_messages(*m, INT_MAX);  // it has overtaken what it is meant for
      set_session_deadline(c.ticket, now_ + Nanos{c.time_limit});
      set_partial_deadline(c.ticket, now_ + Nanos{c.time_limit});
      set_deadline(*m, c.ticket, now_ + Nanos{c.time_limit});
      return;
    case port::Command::Kind::kAbort: {
      if (m != nullptr) {
        Verdict v;
        v.code = CANARY_ABORTED;
        v.rank = m->world_rank;
        v.text = "aborted by " + rank_name(m->world_rank) + ": " +
                 std::string(reinterpret_cast<const char*>(regions_.at(c.numbers)), c.numbers.bytes);
        kill(*m->group, v, true);
      }
      if (OpTicket* ticket = tickets_->at(c.ticket.place); ticket != nullptr) ticket->finish(Status());
      return;
    }
    case port::Command::Kind::kPartial:
      return obey_partial(m, c);
    case port::Command::Kind::kOpenSession:
    case port::Command::Kind::kPush:
    case port::Command::Kind::kStep:
    case port::Command::Kind::kThresholds:
    case port::Command::Kind::kCloseSession:
      return obey_session(m, c);
    case port::Command::Kind::kPolicy:
      return obey_policy(m, c);
    case port::Command::Kind::kSaveFeedback:
    case port::Command::Kind::kRestoreFeedback:
    case port::Command::Kind::kFeedbackGain:
    case port::Command::Kind::kTopKRoots:
      return obey_feedback(m, c);
    default:
      break;
  }
  CANARY_CHECK(false, "a command that no queue of commands takes");
}

// --- operations that wait --------------------------------------------------------------------------------------------

// Members that were called and are not known to be: they come behind those that are, in the order of their calls.
void Engine::list_called() {
  const auto first = static_cast<std::ptrdiff_t>(waiting_.size());
  if (called_.load(std::memory_order_relaxed) != nullptr) {
    for (GroupMember* m = called_.exchange(nullptr, std::memory_order_acquire); m != nullptr; m = m->next_called)
      waiting_.push_back(m);
    std::reverse(waiting_.begin() + first, waiting_.end());
  }
  for (GroupMember* m : waiting_) {
    const std::size_t waiting = m->waiting.claimed() - m->waiting.taken();
    for (std::size_t i = waiting; i-- > 0;) {
      WaitingOperation* const w = m->waiting.peek(i);
      if (w == nullptr) continue;
      if (w->seen) break;
      look_at(*w);
    }
  }
}

// It waits from now on; a limit that came with the call begins.
void Engine::look_at(WaitingOperation& w) const {
  if (w.seen) return;
  w.seen = true;
  w.submitted = now_;
  w.deadline = w.command.time_limit > 0 ? now_ + Nanos{w.command.time_limit} : Nanos::max();
}

void Engine::unlist_idle() {
  std::erase_if(waiting_, [](GroupMember* m) { return unlist(*m); });
}

// Whether nothing waits any more; then the next call lists the member again.
bool Engine::unlist(GroupMember& m) {
  if (m.called()) return false;
  m.listed.exchange(false, std::memory_order_acq_rel);
  return !m.called() || m.listed.exchange(true, std::memory_order_acq_rel);  // it may be called this very moment
}

bool Engine::has_room(const GroupMember& m) const {
  if (m.chains() || (m.group->decisions && m.group->decisions->holds(m))) return false;
  const auto limit = static_cast<std::size_t>(options_.settings.ops_in_flight);
  // Its residual is known when the operation before has ended.
  const WaitingOperation* const next = m.waiting.peek(0);
  if (next != nullptr && (m.exchanges(next->command) || exchanges_in_partial(m, port::tensor_of(next->command))))
    return false;
  const bool urgent = m.urgent_waiting.load(std::memory_order_relaxed) != 0;
  return m.operations.size() < (urgent ? 2 * limit : limit);
}

// Its next operation waits until it is known which table decides it. It was called all the same: nobody is to be told
// that this rank did not.
bool Engine::held(GroupMember& m) {
  if (!m.group->decisions || !m.group->decisions->holds(m)) return false;
  std::uint32_t& entered = m.group->entered[static_cast<std::size_t>(m.rank)];
  if (m.waiting.ready() || (m.chains() && m.chain->due())) entered = later_of(entered, m.entered + 1);
  return true;
}

// Members take turns, operation by operation.
void Engine::enter_waiting() {
  enter_phases();
  int budget = kEnteredPerCycle;
  for (bool entered = true; entered && budget != 0;) {
    entered = false;
    for (std::size_t i = 0; i < waiting_.size() && budget != 0; ++i) {
      GroupMember& m = *waiting_[i];
      if (held(m) || !has_room(m) || !enter_next(m)) continue;
      entered = true;
      --budget;
    }
  }
  // The member whose turn was cut short comes first next time.
  if (waiting_.size() > kListedMax) unlist_idle();
  if (budget == 0 && !waiting_.empty()) std::rotate(waiting_.begin(), waiting_.begin() + 1, waiting_.end());
}

// False: nothing waits.
bool Engine::enter_next(GroupMember& m) {
  WaitingOperation* const w = m.waiting.peek(0);
  if (w == nullptr) return false;
  look_at(*w);
  CalledOperation next{port::request_of(w->command, regions_), tickets_->at(w->command.ticket.place), w->submitted,
                       w->deadline};
  CANARY_CHECK(next.ticket != nullptr, "a ticket ended before its operation");
  m.waiting.drop();  // before anything that may end all that waits
  if (next.request.priority == CANARY_PRIORITY_URGENT) m.urgent_waiting.fetch_sub(1, std::memory_order_relaxed);
  if (is_chain(m, next.request)) {
    begin_chain(m, next);
  } else {
    enter(m, next);
  }
  return true;
}

// The group is dead, or the member has gone: each hears of it, in the order of the calls.
void Engine::end_waiting(GroupMember& m) {
  while (enter_next(m)) {
  }
}

// A limit that the caller set does not wait for room. False: the group has been ended.
bool Engine::check_waiting(Group& g, GroupMember& m, Nanos now) {
  const std::size_t waiting = m.waiting.claimed() - m.waiting.taken();
  for (std::size_t i = 0; i < waiting; ++i) {
    const WaitingOperation* const w = m.waiting.peek(i);
    if (w == nullptr || !w->seen || now < w->deadline) continue;
    Verdict v;
    v.code = CANARY_DEADLINE;
    v.op = m.entered + 1 + static_cast<std::uint32_t>(i);
    v.elapsed = now - w->submitted;
    v.text = "the caller's deadline of operation #" + std::to_string(v.op) + " passed after " +
             milliseconds(v.elapsed) + ", while it waited for operation #" +
             std::to_string(m.operations.empty() ? m.entered + 1 : m.operations.front().number);
    kill(g, v, true);
    return false;
  }
  return true;
}

void Engine::set_deadline(GroupMember& m, port::TicketId ticket, Nanos deadline) {
  // An operation that holds a ticket keeps it from being used again, so the ticket's use stands still there.
  for (Operation& op : m.operations) {
    if (op.ticket->id() == ticket) op.deadline = deadline;
  }
  if (m.chains() && m.chain->called().ticket->id() == ticket) m.chain->set_deadline(deadline);
  // Also among those of this very moment: the deadline has overtaken what it is meant for.
  const std::size_t waiting = m.waiting.claimed() - m.waiting.taken();
  for (std::size_t i = 0; i < waiting; ++i) {
    WaitingOperation* const w = m.waiting.peek(i);
    if (w == nullptr || w->command.ticket != ticket) continue;
    look_at(*w);
    w->deadline = deadline;
  }
  // Behind a command that another thread is still writing, messages can't be posted yet: they take it along.
  const std::size_t called = m.called_messages.claimed() - m.called_messages.taken();
  for (std::size_t i = 0; i < called; ++i) {
    port::Command* const c = m.called_messages.peek(i);
    if (c != nullptr && c->ticket == ticket) c->time_limit = std::max<std::int64_t>(1, (deadline - now_).count);
  }
  for (const auto& end : m.messages) {
    if (!end) continue;
    for (const MessageList* list : {&end->sends, &end->receives}) {
      for (MessageRequest* r = list->head; r != nullptr; r = r->next) {
        if (r->ticket->id() == ticket) r->deadline = deadline;
      }
    }
  }
}

}  // namespace canarynet
