// Partial all-reduces of the engine: calls become a group of their own, which ends with its operation.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "kernels/reduce.h"

namespace canarynet {
namespace {

constexpr std::size_t kPartialsMax = 1024;  // under way at once, of all ranks served here

// Whether the group's own members are those of the list.
bool same_list(const Group& g, const wire::SignaturePayload& theirs) {
  wire::SignaturePayload mine;
  sign_partial(*g.partial, g.members, false, &mine);
  return mine.counts_crc == theirs.counts_crc && g.members.size() == theirs.members;
}

bool is_mean_by_weights(const PartialCall& call, const Group& g) {
  return g.partial->weighted && call.request.redop == CANARY_AVG;
}

}  // namespace

// --- calls -----------------------------------------------------------------------------------------------------------

void Engine::obey_partial(GroupMember* caller, const port::Command& c) {
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  CANARY_CHECK(ticket != nullptr, "a ticket ended before its operation");
  if (caller == nullptr)
    return ticket->finish(Status(CANARY_INVALID_ARGUMENT, "partial_all_reduce: its group has been destroyed"));
  const Group& parent = *caller->group;
  // Whoever aborted it meant all that is done in it; a rank that was lost is no obstacle for others.
  if (parent.dead && parent.verdict.code() == CANARY_ABORTED)
    return ticket->finish(parent.verdict.wrap("partial_all_reduce"));
  const auto* numbers = reinterpret_cast<const std::uint64_t*>(regions_.at(c.numbers));
  std::vector<int> members;
  for (std::size_t i = port::kPartialHead; i < c.numbers.bytes / sizeof *numbers; ++i)
    members.push_back(parent.members[static_cast<std::size_t>(numbers[i])]);
  std::sort(members.begin(), members.end());

  PartialCall call;
  call.caller = caller->id;
  call.request = port::request_of(c, regions_);
  call.ticket = ticket;
  call.submitted = now_;
  call.deadline = c.time_limit > 0 ? now_ + Nanos{c.time_limit} : Nanos::max();
  call.weight = c.rank != 0 ? std::bit_cast<double>(numbers[port::kPartialWeight]) : 1;
  const std::uint64_t number = numbers[port::kPartialNumber];
  if (call.request.tensor != 0 &&
      (caller->exchanges(port::all_reduce_of(c, regions_)) || exchanges_in_partial(*caller, call.request.tensor))) {
    return ticket->finish(Status(
        CANARY_INVALID_ARGUMENT,
        describe_partial(number, members) + ": tensor " + std::to_string(call.request.tensor) + " is being exchanged"));
  }
  const GroupEpoch name = partial_group(parent.flow, parent.epoch, number, members.front());
  const Status wrong = begin_partial(*caller, name, number, std::move(members), c.rank != 0, call);
  if (!wrong.ok()) ticket->finish(wrong);
  settle_partials();
}

// An error is the call's, which then is not part of it.
Status Engine::begin_partial(const GroupMember& caller, GroupEpoch name, std::uint64_t number, std::vector<int> members,
                             bool weighted, const PartialCall& what) {
  const std::string text = describe_partial(number, members);
  Group* g = find_group(name.flow);
  for (const Group* other : partials_) {
    const auto calls = [&](const auto& call) {
      return call->step != PartialCall::Step::kNone && call->step != PartialCall::Step::kDone &&
             call->caller == caller.id;
    };
    const auto& under_way = *other->partial;
    if ((other != g || g->members != members) && under_way.number == number &&
        std::any_of(under_way.calls.begin(), under_way.calls.end(), calls))
      return Status(CANARY_INVALID_ARGUMENT,
                    text + ": this rank has called " + describe_partial(number, other->members));
  }
  if (g == nullptr) {
    if (const Status* const past = past_partials_.find(name)) {
      return past->ok() ? Status(CANARY_INVALID_ARGUMENT, text + ": has been run, each one takes a number of its own")
                        : past->wrap(text);
    }
    g = &add_partial(*caller.group, name, number, std::move(members), weighted);
  } else if (g->epoch != name.epoch) {
    return Status(CANARY_LIMIT, text + ": another one under way has the same number by chance, take the next");
  } else if (g->members != members) {
    // Both ranks are served here, so no signature tells them.
    Verdict v;
    v.code = CANARY_MISMATCH;
    v.rank = caller.world_rank;
    v.text = "rank " + std::to_string(caller.world_rank) + " called " + text + "; others of this process called " +
             describe_partial(number, g->members);
    kill(*g, v, true);
    return g->verdict.wrap(text);
  }
  GroupMember* const m = g->member_of_world(caller.world_rank);
  CANARY_CHECK(m != nullptr, "a list of ranks without the one that calls");
  PartialCall& call = *g->partial->calls[g->place_of(*m)];
  if (call.step != PartialCall::Step::kNone)
    return Status(CANARY_INVALID_ARGUMENT, text + ": this rank has called it already");
  call.caller = what.caller;
  call.request = what.request;
  call.ticket = what.ticket;
  call.submitted = what.submitted;
  call.deadline = what.deadline;
  call.weight = what.weight;
  call.member = m;
  for (std::size_t i = 0; i < strays_.size() && !g->dead; ++i) {
    const StraySignature stray = strays_[i];  // it may be taken out
    contradicts(stray, *g);
  }
  if (weighted != g->partial->weighted) {
    Verdict v;
    v.code = CANARY_MISMATCH;
    v.rank = caller.world_rank;
    v.text = text + ": weights count at some ranks of this process and not at others";
    kill(*g, v, true);
  }
  enter_partial(*g, call);
  return {};
}

// The first call of a rank served here makes the group. What came for it before is taken in.
Group& Engine::add_partial(const Group& parent, GroupEpoch name, std::uint64_t number, std::vector<int> members,
                           bool weighted) {
  Group& g = add_group(name.flow, std::move(members), {parent.flow, parent.epoch}, number);
  CANARY_CHECK(g.epoch == name.epoch, "a group of another epoch");
  g.partial->weighted = weighted;
  for (std::size_t i = 0; i < g.local.size(); ++i) g.partial->calls.push_back(std::make_unique<PartialCall>());
  partials_.push_back(&g);
  if (partials_.size() > kPartialsMax) {
    Verdict v;
    v.code = CANARY_LIMIT;
    v.rank = g.local.front()->world_rank;
    v.text =
        rank_name(v.rank) + " has " + std::to_string(kPartialsMax) + " partial all-reduces under way: there is no room";
    kill(g, v, true);
    return g;
  }
  kill_if_lost(g);
  if (g.dead) return g;
  admit_strays(g);
  drop_early(g);
  return g;
}

// Its next step, or its only one.
void Engine::enter_partial(Group& g, PartialCall& call) {
  using At = PartialCall::Step;
  OpRequest step = call.request;
  if (is_mean_by_weights(call, g) && call.step == At::kNone) {
    // The sum of the weights first: elements of 16 bits overflow when they are multiplied by the size of a batch.
    call.step = At::kWeights;
    call.total = call.weight;
    step.input = step.output = &call.total;
    step.count = 1;
    step.type = CANARY_F64;
    step.redop = CANARY_SUM;
    step.codec = 0;
    step.tensor = 0;
    step.momentum = 0;
  } else {
    call.step = At::kElements;
    if (g.partial->weighted) {
      const double factor = is_mean_by_weights(call, g) ? call.weight / call.total : call.weight;
      if (!g.dead) scale(step.type, step.output, step.input, step.count, factor);
      step.input = step.output;
      step.redop = CANARY_SUM;
    }
  }
  call.inner.reset();
  enter(*call.member, {step, &call.inner, call.submitted, call.deadline});
  partials_due_ = true;
}

// --- ends ------------------------------------------------------------------------------------------------------------

// What has ended goes on with its next step, or its caller hears of it; a group without any more to do is closed.
void Engine::settle_partials() {
  while (std::exchange(partials_due_, false)) {
    for (std::size_t i = 0; i < partials_.size();) {
      Group& g = *partials_[i];
      bool left = false;
      for (auto& call : g.partial->calls) {
        settle_partial(g, *call);
        left |= call->step != PartialCall::Step::kDone && (call->step != PartialCall::Step::kNone || !g.dead);
      }
      if (left) {
        ++i;
        continue;
      }
      partials_.erase(partials_.begin() + static_cast<std::ptrdiff_t>(i));
      close_partial(g);
    }
  }
}

void Engine::settle_partial(Group& g, PartialCall& call) {
  using At = PartialCall::Step;
  if (call.step == At::kNone || call.step == At::kDone || !call.inner.done()) return;
  Status status = call.inner.code == CANARY_OK ? Status() : call.inner.status;
  if (status.ok() && call.step == At::kWeights) {
    if (call.total > 0 && !std::isinf(call.total)) return enter_partial(g, call);
    // All members see the same sum.
    status = Status(CANARY_INVALID_ARGUMENT, "the weights sum to " + std::to_string(call.total));
  }
  call.step = At::kDone;
  call.ticket->finish(status.ok() ? status : status.wrap(describe_partial(g.partial->number, g.members)));
}

void Engine::close_partial(Group& g) {
  SpentNumber spent;
  if (g.dead) {
    spent = {g.partial->number, {g.partial->parent, g.partial->parent_epoch}, g.members, {}};
    for (const auto& call : g.partial->calls) {
      if (call->member != nullptr) spent.callers.push_back(call->member->world_rank);
    }
  }
  past_partials_.add({g.flow, g.epoch}, g.dead ? g.verdict : Status(), std::move(spent));
  // Who counts on this very list, which was over when it was called here, is answered by its end.
  std::erase_if(strays_, [&](const StraySignature& s) {
    return s.flow == g.flow && s.epoch == g.epoch && same_list(g, s.payload);
  });
  while (!g.local.empty()) dismiss(*g.local.back());
  close_group(g);
  for (std::size_t i = 0; i < strays_.size();) {
    const StraySignature stray = strays_[i];
    i = contradicts_past(stray) ? 0 : i + 1;  // then some are gone
  }
}

// A verdict on one that is not called here, or is over: what came for it is of no use any more.
void Engine::end_unknown_partial(GroupEpoch name, const Status& why) {
  past_partials_.add(name, why);
  std::erase_if(strays_, [&](const StraySignature& s) { return s.flow == name.flow && s.epoch == name.epoch; });
  for (EnginePeer& p : peers_) {
    if (!p.channel) continue;
    p.eager->for_each([&](EagerStore::Entry& e) {
      if (e.complete && e.header.flow == name.flow && e.header.epoch == name.epoch) p.eager->release(&e);
    });
    p.debts->erase_if([&](const EagerDebt& d) {
      const bool of_it = d.flow == name.flow && d.epoch == name.epoch;
      if (of_it) p.eager_used -= d.bytes;
      return of_it;
    });
    charge_less(p, 0);
  }
}

// Signatures of those that nobody here called in all the time that their callers would have waited.
void Engine::expire_strays(Nanos now) {
  const Nanos limit = options_.settings.entry_limit * 2 + options_.settings.silence_limit;
  for (std::size_t i = 0; i < strays_.size();) {
    const StraySignature& s = strays_[i];
    if (!wire::is_partial(s.flow) || now - s.came <= limit) {
      ++i;
      continue;
    }
    end_unknown_partial({s.flow, s.epoch}, Status(CANARY_ENTRY_TIMEOUT, "it was called here too late"));
    i = 0;
  }
}

// --- disagreement ----------------------------------------------------------------------------------------------------

bool Engine::says_who_it_is(std::uint32_t from, const wire::SignaturePayload& theirs) const {
  const auto rank = static_cast<std::size_t>(theirs.world_rank);
  return rank < roster_->engine_of.size() && static_cast<std::uint32_t>(roster_->engine_of[rank]) == from;
}

// A signature of a partial all-reduce that has this one's number and another list. False: the group has been ended.
bool Engine::lists_agree(Group& g, std::uint32_t from, const wire::SignaturePayload& theirs) {
  if (!is_partial(theirs) || same_list(g, theirs)) return true;
  if (!says_who_it_is(from, theirs)) return true;
  Verdict v;
  v.code = CANARY_MISMATCH;
  v.rank = static_cast<int>(theirs.world_rank);
  v.text = "rank " + std::to_string(theirs.world_rank) + " called " + describe_partial(theirs) + "; rank " +
           std::to_string(g.local.front()->world_rank) + " called " + describe_partial(g.partial->number, g.members);
  kill(g, v, true);
  return false;
}

// Whether somebody counts on a rank for an exchange whose number that rank has given to another list of ranks, this
// group's: where the lowest ranks of both differ, they are two groups, and each would wait for the other's members.
// Both end.
bool Engine::contradicts(const StraySignature& stray, Group& g) {
  const PartialOperation& mine = *g.partial;
  if (g.dead || !wire::is_partial(stray.flow) || stray.flow == g.flow || !is_partial(stray.payload)) return false;
  if (stray.payload.counts_moment != mine.number) return false;
  const std::vector<int> ranks = ranks_in(stray.payload);
  const GroupEpoch theirs{stray.flow, stray.epoch};
  if (ranks.empty() || partial_group(mine.parent, mine.parent_epoch, mine.number, ranks.front()) != theirs)
    return false;
  const bool wanted = std::any_of(mine.calls.begin(), mine.calls.end(), [&](const auto& call) {
    return call->member != nullptr && std::find(ranks.begin(), ranks.end(), call->member->world_rank) != ranks.end();
  });
  if (!wanted || lists_agree(g, stray.engine, stray.payload)) return false;
  Verdict v;
  v.code = CANARY_MISMATCH;
  v.rank = g.local.front()->world_rank;
  v.text = g.verdict.text();
  end_partial_of(stray, std::move(v));
  return true;
}

// Whether somebody counts on a rank served here for an exchange whose number that rank has given to another list, one
// that failed: who saw a death first leaves the dead out, and who saw it later has called the list with it. The
// stray's ends.
bool Engine::contradicts_past(const StraySignature& stray) {
  if (!wire::is_partial(stray.flow) || !is_partial(stray.payload)) return false;
  const std::vector<int> ranks = ranks_in(stray.payload);
  if (ranks.empty()) return false;
  const GroupEpoch theirs{stray.flow, stray.epoch};
  int caller = -1;
  const SpentNumber* const spent = past_partials_.find_failed([&](const SpentNumber& past) {
    if (past.callers.empty() || past.number != stray.payload.counts_moment) return false;
    const auto called = std::find_first_of(past.callers.begin(), past.callers.end(), ranks.begin(), ranks.end());
    if (called == past.callers.end()) return false;
    caller = *called;
    return partial_group(past.parent.flow, past.parent.epoch, past.number, ranks.front()) == theirs;
  });
  if (spent == nullptr || !says_who_it_is(stray.engine, stray.payload)) return false;
  Verdict v;
  v.code = CANARY_MISMATCH;
  v.rank = caller;
  v.text = "rank " + std::to_string(stray.payload.world_rank) + " called " + describe_partial(stray.payload) +
           "; rank " + std::to_string(caller) + " called " + describe_partial(spent->number, spent->members) +
           ", which has failed";
  end_partial_of(stray, std::move(v));
  return true;
}

// One that is not called here and won't be.
void Engine::end_partial_of(const StraySignature& stray, Verdict v) {
  v.flow = stray.flow;
  v.epoch = stray.epoch;
  v.reporter = my_engine_;
  std::vector<std::uint32_t> engines;
  for (const int rank : ranks_in(stray.payload)) {
    if (static_cast<std::size_t>(rank) >= roster_->engine_of.size()) continue;
    engines.push_back(static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(rank)]));
  }
  spread(v, engines);
  ErrorDetail detail;
  detail.rank = v.rank;
  end_unknown_partial({v.flow, v.epoch}, Status(v.code, v.text, detail));
}

bool Engine::contradicts_any(const StraySignature& stray) {
  return contradicts_past(stray) ||
         std::any_of(partials_.begin(), partials_.end(), [&](Group* g) { return contradicts(stray, *g); });
}

bool Engine::over(const wire::Header& h) const {
  if (wire::is_partial(h.flow)) return past_partials_.find({h.flow, h.epoch}) != nullptr;
  return pending_groups_.empty();
}

// Those that an aborted group's ranks have under way in it.
void Engine::end_partials_of(const Group& parent, const Verdict& verdict) {
  for (Group* const g : partials_) {
    if (g->partial->parent == parent.flow && g->partial->parent_epoch == parent.epoch) kill(*g, verdict, false);
  }
}

// Whether a partial all-reduce of the member has to do with this tensor, whose residual is the member's.
bool Engine::exchanges_in_partial(const GroupMember& m, std::uint64_t tensor) const {
  return std::any_of(partials_.begin(), partials_.end(), [&](const Group* g) {
    return std::any_of(g->partial->calls.begin(), g->partial->calls.end(), [&](const auto& call) {
      using At = PartialCall::Step;
      return call->caller == m.id && call->step != At::kNone && call->step != At::kDone && tensor != 0 &&
             call->request.tensor == tensor;
    });
  });
}

// What a codec left out in a partial all-reduce stays with the member that called it.
ErrorFeedback& Engine::feedback_of(GroupMember& m) {
  if (!m.group->partial) return m.feedback;
  GroupMember* const caller = member(m.group->partial->calls[m.group->place_of(m)]->caller);
  return caller != nullptr ? caller->feedback : m.feedback;
}

bool Engine::partial_pending(const GroupMember& m) const {
  return std::any_of(partials_.begin(), partials_.end(), [&](const Group* g) {
    return std::any_of(g->partial->calls.begin(), g->partial->calls.end(), [&](const auto& call) {
      using At = PartialCall::Step;
      return call->caller == m.id && call->step != At::kNone && call->step != At::kDone;
    });
  });
}

void Engine::set_partial_deadline(port::TicketId ticket, Nanos deadline) {
  for (Group* const g : partials_) {
    for (auto& call : g->partial->calls) {
      if (call->ticket == nullptr || call->step == PartialCall::Step::kDone || call->ticket->id() != ticket) continue;
      call->deadline = deadline;
      for (Operation& op : call->member->operations) op.deadline = deadline;
    }
  }
}

}  // namespace canarynet
