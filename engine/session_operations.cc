// Sessions of the engine: what callers ask of them, their rounds, and their ends.
//
// A session has a group of its own for each colayer and one more, where its workers meet when they open it and when
// they finish. They are made as those of partial all-reduces are, by every engine for itself. Round m of a colayer is
// operation m of its group: a signature that comes for one that is not entered here says that a round has been opened,
// and every engine joins it at once, with the worker's data or with zeros, while the worker computes.
#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/duration_text.h"
#include "base/hashed_bag.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace canarynet {
namespace {

constexpr std::size_t kSessionsMax = 64;  // of all ranks served here

std::span<const std::uint64_t> words_at(const port::Regions& regions, const port::MemoryRef& m) {
  return {reinterpret_cast<const std::uint64_t*>(regions.at(m)), m.bytes / sizeof(std::uint64_t)};
}

}  // namespace

Session* Engine::find_session(port::MemberId caller, std::uint64_t number) const {
  for (const auto& s : sessions_) {
    if (s->number == number && s->caller == caller && !s->closed) return s.get();
  }
  return nullptr;
}

bool Engine::has_session(const GroupMember& m) const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [&](const auto& s) { return s->caller == m.id && !s->closed; });
}

bool Engine::read_session(port::MemberId id, std::uint64_t number, SessionView* view) const {
  const Session* const s = find_session(id, number);
  if (s != nullptr) *view = s->view();
  return s != nullptr;
}

const sync::WorkerSet* Engine::session_row(port::MemberId id, std::uint64_t number, sync::Iteration iteration,
                                           int colayer) const {
  const Session* const s = find_session(id, number);
  if (s == nullptr || colayer < 0 || colayer >= static_cast<int>(s->colayers.size())) return nullptr;
  const sync::Gei& index = s->rounds.index();
  if (iteration < std::max<sync::Iteration>(1, index.oldest_row()) || iteration > index.newest()) return nullptr;
  return &index.row(iteration, colayer);
}

std::span<const float> Engine::session_left_out(port::MemberId id, std::uint64_t number, int colayer) const {
  const Session* const s = find_session(id, number);
  if (s == nullptr || colayer < 0 || colayer >= static_cast<int>(s->colayers.size())) return {};
  return s->colayers[static_cast<std::size_t>(colayer)].left_out;
}

std::span<const float> Engine::session_last(port::MemberId id, std::uint64_t number, int colayer,
                                            std::uint32_t* round) const {
  *round = 0;
  const Session* const s = find_session(id, number);
  if (s == nullptr || colayer < 0 || colayer >= static_cast<int>(s->colayers.size())) return {};
  const Session::Colayer& c = s->colayers[static_cast<std::size_t>(colayer)];
  if (c.last == Session::Colayer::kNone) return {};
  *round = s->rounds.next_round(colayer) - 1;
  return std::span(c.backlog[c.last]).first(c.count);
}

// --- calls -----------------------------------------------------------------------------------------------------------

void Engine::obey_session(GroupMember* caller, const port::Command& c) {
  using Kind = port::Command::Kind;
  OpTicket* const ticket = tickets_->at(c.ticket.place);
  CANARY_CHECK(ticket != nullptr, "a ticket ended before its session's call");
  if (caller == nullptr)
    return ticket->finish(
        Status(CANARY_INVALID_ARGUMENT, Session::name_of(c.count) + ": its group has been destroyed"));
  if (c.kind == Kind::kOpenSession) {
    open_session(*caller, c, ticket);
    sessions_due_ = true;  // the workers' meeting may have failed at once
    return;
  }
  Session* const s = find_session(caller->id, c.count);
  if (s == nullptr)
    return ticket->finish(Status(CANARY_INVALID_ARGUMENT, Session::name_of(c.count) + " has been closed"));
  const auto answer = [&](const Status& status) {
    ticket->finish(status.ok() ? status : status.wrap(Session::name_of(s->number)));
  };
  const bool closes = c.kind == Kind::kCloseSession;
  if (s->state == Session::State::kEnded && !closes) return answer(s->verdict);
  if (s->state == Session::State::kOpening && !closes)
    return answer(Status(CANARY_INVALID_ARGUMENT, "it is being opened"));
  switch (c.kind) {
    case Kind::kPush:
      if (s->state != Session::State::kOpen)
        return answer(Status(CANARY_INVALID_ARGUMENT, "a push after the worker has finished"));
      if (s->asked.ticket != nullptr)
        return answer(Status(CANARY_INVALID_ARGUMENT, "a push while a step of this worker is under way"));
      answer(
          s->push(now_, c.rank, {reinterpret_cast<const float*>(regions_.at(c.input)), c.input.bytes / sizeof(float)}));
      break;
    case Kind::kThresholds: {
      const auto numbers = words_at(regions_, c.numbers);
      const Status wrong = s->rounds.set_thresholds(
          Session::thresholds_of(numbers, s->rounds.index().colayers(s->rounds.index().newest())));
      if (wrong.ok()) s->rounds.set_linger(Session::linger_of(numbers));
      answer(wrong);
      break;
    }
    case Kind::kStep: {
      const auto what = static_cast<port::SessionStep>(c.rank);
      std::size_t elements = 0;
      for (const auto& colayer : s->colayers) elements += colayer.count;
      if (c.output.bytes != elements * sizeof(float)) {
        return answer(Status(CANARY_INVALID_ARGUMENT, "sums have room for " +
                                                          std::to_string(c.output.bytes / sizeof(float)) +
                                                          " elements, its colayers have " + std::to_string(elements)));
      }
      if (s->asked.ticket != nullptr)
        return answer(Status(CANARY_INVALID_ARGUMENT, "a step of this worker is under way"));
      const bool finishes = what == port::SessionStep::kFinish;
      if (!finishes && s->state != Session::State::kOpen)
        return answer(Status(CANARY_INVALID_ARGUMENT, "a step after the worker has finished"));
      s->asked = {
          ticket, what, {reinterpret_cast<float*>(regions_.at(c.output)), elements}, regions_.at(c.numbers), now_};
      if (finishes && s->state == Session::State::kOpen) {
        s->state = Session::State::kFinishing;
        s->rounds.finish();
      }
      break;
    }
    default:
      close_session(*s);  // it is gone
      return ticket->finish(Status());
  }
  sessions_due_ = true;
}

void Engine::open_session(const GroupMember& caller, const port::Command& c, OpTicket* ticket) {
  const std::string name = Session::name_of(c.count);
  const auto refuse = [&](const Status& why) { ticket->finish(why.wrap(name)); };
  const Group& parent = *caller.group;
  if (parent.dead && parent.verdict.code() == CANARY_ABORTED) return refuse(parent.verdict);
  if (find_session(caller.id, c.count) != nullptr)
    return refuse(Status(CANARY_INVALID_ARGUMENT, "this rank has opened it"));
  const auto open = std::count_if(sessions_.begin(), sessions_.end(), [](const auto& s) { return !s->closed; });
  if (static_cast<std::size_t>(open) >= kSessionsMax) {
    return refuse(
        Status(CANARY_LIMIT, "this process has " + std::to_string(kSessionsMax) + " sessions: there is no room"));
  }
  const auto numbers = words_at(regions_, c.numbers);
  sync::SessionRounds::Options options;
  if (Status wrong = Session::read(numbers, caller.rank, static_cast<int>(parent.members.size()), &options);
      !wrong.ok())
    return refuse(wrong);
  try {
    sessions_.push_back(std::make_unique<Session>(caller.id, c.count, options, numbers, parent.members));
  } catch (const std::bad_alloc&) {
    return refuse(Status(CANARY_LIMIT, "there is no memory for its index"));
  }
  Session& s = *sessions_.back();
  Status wrong = check_session_codecs(s, parent);
  if (wrong.ok()) wrong = add_session_groups(s);
  // The others of this process have met a death before it was opened here.
  const bool regroups = s.goes_on && is_death(wrong.code());
  if (!wrong.ok() && !regroups) {
    close_session(s);
    return refuse(wrong);
  }
  s.opening = ticket;
  try {
    s.allocate();
  } catch (const std::bad_alloc&) {
    Verdict v;
    v.code = CANARY_LIMIT;
    v.rank = caller.world_rank;
    v.text = "rank " + std::to_string(caller.world_rank) + " has no memory for it";
    return end_session(s, v);
  }
  if (regroups) {
    if (!regroup_session(s, wrong) && s.state != Session::State::kEnded) end_session_here(s, wrong);
    return;
  }
  meet_in_session(s, &s.control_ticket);
}

// Its members in the groups of this epoch.
Status Engine::add_session_groups(Session& s) {
  for (std::size_t place = 0; place <= s.colayers.size(); ++place) {
    if (Status wrong = add_session_group(s, place); !wrong.ok()) return wrong;
  }
  return {};
}

// The member in one of its groups, which another local rank may have made.
Status Engine::add_session_group(Session& s, std::size_t place) {
  const GroupMember* const caller = member(s.caller);
  CANARY_CHECK(caller != nullptr, "a session whose group has gone");
  const int world_rank = caller->world_rank;
  const GroupEpoch of{caller->group->flow, caller->group->epoch};
  std::vector<int> members;
  for (const int w : s.living) members.push_back(s.ranks[static_cast<std::size_t>(w)]);
  const std::uint64_t number = s.group_number(place, s.agreement.dead());
  const GroupEpoch name = partial_group(of.flow, of.epoch, number, members.front());
  Group* g = find_group(name.flow);
  if (g == nullptr) {
    if (const Status* const past = past_partials_.find(name))
      return past->ok() ? Status(CANARY_INVALID_ARGUMENT, "its number has been used, each one takes one of its own")
                        : *past;
    g = &add_group(name.flow, members, of, number, /*of_session=*/true);
    kill_if_lost(*g);
  } else if (g->epoch != name.epoch || g->members != members) {
    return Status(CANARY_LIMIT, "another group has the same number by chance, take the next");
  }
  GroupMember* const m = g->member_of_world(world_rank);
  if (m == nullptr || m->session != nullptr)
    return Status(CANARY_INVALID_ARGUMENT, "its number has been used, each one takes one of its own");
  m->session = &s;
  m->colayer = static_cast<int>(place) - 1;
  (place == 0 ? s.control : s.colayers[place - 1].member) = m;
  if (!g->dead) admit_strays(*g);
  drop_early(*g);
  // After a death others may have gone on sooner, ranks of this process among them, which have made the group.
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (later(g->entered[r], m->entered)) hear_of_round(*m, static_cast<int>(r), m->entered + 1);
  }
  return {};
}

// Refused here what every round would be refused for, alike on all ranks: where no plan takes codecs.
Status Engine::check_session_codecs(const Session& s, const Group& parent) const {
  for (std::size_t z = 0; z < s.colayers.size(); ++z) {
    const Session::Colayer& c = s.colayers[z];
    if (c.codec == 0 || parent.members.size() == 1) continue;
    PlanRequest request = plan_request(parent);
    request.collective = Collective::kAllReduce;
    request.count = c.count;
    request.element_bytes = sizeof(float);
    const auto planner = select_coded_planner(request, decisions_);
    if (!planner.ok()) return planner.status().wrap("colayer " + std::to_string(z));
  }
  return {};
}

// An all-reduce of one number, whose signature says the layout: all have called when it is done.
void Engine::meet_in_session(Session& s, OpTicket* ticket) {
  ticket->reset();
  s.token = 0;
  const OpRequest request{.collective = Collective::kAllReduce,
                          .input = &s.token,
                          .output = &s.token,
                          .count = 1,
                          .type = CANARY_F32,
                          .redop = CANARY_SUM};
  enter(*s.control, {request, ticket, now_, Nanos::max()});
}

// --- rounds ----------------------------------------------------------------------------------------------------------

// A peer, or another rank of this process, has entered a round that this member has not.
void Engine::hear_of_round(const GroupMember& m, int source, std::uint32_t operation) {
  if (m.colayer < 0) return;
  sync::SessionRounds& rounds = m.session->rounds;
  const Session::Colayer& c = m.session->colayers[static_cast<std::size_t>(m.colayer)];
  const std::uint32_t next = rounds.next_round(m.colayer) + (rounds.joined(m.colayer) ? 1 : 0);  // to be entered here
  const std::uint32_t round = next + (operation - m.entered - 1) / c.operations();
  const int worker = m.session->worker_at(static_cast<std::size_t>(source));
  rounds.opened(now_, m.colayer, rounds.epoch(), round, rounds.newest(), worker, rounds.last_seen(worker));
  sessions_due_ = true;
}

void Engine::open_rounds(Session& s) {
  if (s.state == Session::State::kOpening || s.state == Session::State::kEnded) return;
  for (int z = s.due(now_); z >= 0; z = s.due(now_)) {
    Session::Colayer& c = s.colayers[static_cast<std::size_t>(z)];
    const std::span<float> in = s.join(now_, z);
    const auto add_up = [&](std::size_t from, std::size_t count, std::uint32_t codec, std::span<float> left_out,
                            OpTicket* ticket) {
      const OpRequest request{.collective = Collective::kAllReduce,
                              .input = in.data() + from,
                              .output = c.result().data() + from,
                              .count = count,
                              .type = CANARY_F32,
                              .redop = CANARY_SUM,
                              .codec = codec};
      ticket->reset();
      enter(*c.member, {request, ticket, now_, Nanos::max(), false, left_out, /*null_pieces=*/true});
      sessions_due_ |= ticket->done();  // it could not be entered
    };
    if (c.codec == 0) {
      add_up(0, in.size(), 0, {}, &c.ticket);
    } else {
      add_up(0, c.count, c.codec, c.left(), &c.ticket);
      add_up(c.count, in.size() - c.count, 0, {}, &c.words_ticket);  // exact
    }
  }
}

void Engine::settle_sessions() {
  while (std::exchange(sessions_due_, false)) {
    for (std::size_t i = 0; i < sessions_.size();) {
      Session& s = *sessions_[i];
      while (settle_session(s)) {
      }
      // One that never was open has no handle that anybody could close.
      if (s.state == Session::State::kEnded && !s.opened && !s.closed) {
        close_session(s);
      } else {
        ++i;
      }
    }
    if (local_dirty_) settle_local();  // rounds among local ranks, or of one rank alone
  }
  sessions_deadline_ = Nanos::max();
  for (const auto& s : sessions_) {
    if (s->state == Session::State::kEnded || s->state == Session::State::kOpening) continue;
    sessions_deadline_ = std::min({sessions_deadline_, s->rounds.next_deadline(), s->asked.deadline});
    if (s->asked.ticket != nullptr) sessions_deadline_ = std::min(sessions_deadline_, s->rounds.step_deadline());
  }
}

// True: something has changed that may lead to more.
bool Engine::settle_session(Session& s) {
  using At = Session::State;
  if (s.state == At::kEnded) return false;
  const auto fails = [&](const Group& g, const OpTicket& ticket, int colayer = -1) {
    Verdict v;
    const Status& why = g.dead ? g.verdict : ticket.status;
    v.code = why.code();
    v.rank = why.detail().rank;
    v.text = (g.dead || colayer < 0 ? "" : "colayer " + std::to_string(colayer) + ": ") + why.text();
    end_session(s, v);
    return false;
  };
  const Group* ended = nullptr;
  for (std::size_t place = 0; place <= s.colayers.size(); ++place) {
    const GroupMember* const m = place == 0 ? s.control : s.colayers[place - 1].member;
    if (m == nullptr || !m->group->dead) continue;
    ended = m->group;
    if (!s.goes_on || !is_death(ended->verdict.code())) return fails(*ended, s.control_ticket);
  }
  if (ended != nullptr) {
    const Status why = ended->verdict;
    if (regroup_session(s, why)) return true;
    return s.state == At::kEnded ? false : fails(*ended, s.control_ticket);
  }
  if (s.recovery != Session::Recovery::kNone && !recover_session(s)) {
    if (s.state != At::kEnded) check_step_deadline(s);
    return false;
  }
  for (std::size_t z = 0; z < s.colayers.size(); ++z) {
    Session::Colayer& c = s.colayers[z];
    if (!c.running) continue;
    if (const OpTicket* const failed = c.failed()) return fails(*c.member->group, *failed, static_cast<int>(z));
    if (!c.done()) continue;
    if (const Status wrong = s.commit(now_, static_cast<int>(z)); !wrong.ok()) {
      end_session_here(s, wrong);
      return false;
    }
  }
  const bool meets = s.control_ticket.done();
  if (meets && s.control_ticket.code != CANARY_OK) return fails(*s.control->group, s.control_ticket);
  if (s.state == At::kOpening) {
    if (!meets) return false;
    s.state = At::kOpen;
    s.opened = true;
    s.rounds.begin(now_);
    std::exchange(s.opening, nullptr)->finish(Status());
  }
  open_rounds(s);
  if (s.state == At::kFinishing && s.drained()) {
    // Once all have met nobody opens a round, but some may lack one that is under way: where deaths are to be survived
    // they meet again when that is done, so that who has heard of it knows that all have all.
    const int needed = s.goes_on ? 2 : 1;
    if (s.meetings == 0 || (meets && s.meetings < needed)) {
      ++s.meetings;
      meet_in_session(s, &s.control_ticket);
      return true;
    }
    if (meets) s.state = At::kFinished;
  }
  if (s.asked.ticket == nullptr) return false;
  Status status;
  if (!s.answer(now_, &status)) {
    check_step_deadline(s);
    open_rounds(s);  // a worker that waits joins what it kept its data for
    return false;
  }
  std::exchange(s.asked, {}).ticket->finish(status.ok() ? status : status.wrap(Session::name_of(s.number)));
  return false;
}

void Engine::check_step_deadline(Session& s) {
  if (s.asked.ticket == nullptr || now_ < s.asked.deadline) return;
  std::exchange(s.asked, {})
      .ticket->finish(Status(CANARY_DEADLINE, "the caller's deadline passed").wrap(Session::name_of(s.number)));
}

// --- ends ------------------------------------------------------------------------------------------------------------

// All its groups end, here and everywhere; callers hear of it. Others end those of the colayers themselves when the one
// where workers meet has ended.
void Engine::end_session(Session& s, const Verdict& verdict) {
  if (s.state == Session::State::kEnded) return;
  s.state = Session::State::kEnded;
  s.recovery = Session::Recovery::kNone;
  if (s.control != nullptr) kill(*s.control->group, verdict, true);
  for (auto& c : s.colayers) {
    if (c.member != nullptr) kill(*c.member->group, verdict, false);
  }
  ErrorDetail detail;
  detail.rank = verdict.rank;
  detail.phase = "exchange";
  s.verdict = s.control != nullptr ? s.control->group->verdict : Status(verdict.code, verdict.text, detail);
  const Status told = s.verdict.wrap(Session::name_of(s.number));
  if (OpTicket* const opening = std::exchange(s.opening, nullptr)) opening->finish(told);
  if (OpTicket* const asked = std::exchange(s.asked, {}).ticket) asked->finish(told);
  if (s.goes_on) refuse_session_strays();
}

// Without a word to others where all have finished; else it ends for them, too.
void Engine::close_session(Session& s) {
  const bool silent = s.state == Session::State::kFinished || s.state == Session::State::kEnded ||
                      (s.state == Session::State::kOpening && s.opening == nullptr);
  if (!silent) {
    Verdict v;
    v.code = CANARY_ABORTED;
    v.rank = s.control->world_rank;
    v.text = rank_name(v.rank) + " closed it before all had finished";
    end_session(s, v);
  }
  if (OpTicket* const asked = std::exchange(s.asked, {}).ticket)
    asked->finish(Status(CANARY_INVALID_ARGUMENT, Session::name_of(s.number) + " has been closed"));
  if (keeps_answering(s)) {
    if (s.state == Session::State::kEnded) release_session_group(&s.control);
    for (auto& c : s.colayers) release_session_group(&c.member);
    return keep_closed_session(s);
  }
  drop_session(s);
}

// The session has no use for it any more.
void Engine::release_session_group(GroupMember** place) {
  GroupMember* const m = std::exchange(*place, nullptr);
  if (m == nullptr) return;
  CANARY_CHECK(m->operations.empty(), "a session leaves a group with its buffers");
  Group& g = *m->group;
  m->session = nullptr;
  dismiss(*m);
  // Local ranks that have not opened it hear of its end when they do; they would keep a dead group for ever.
  const bool opened =
      std::any_of(g.local.begin(), g.local.end(), [](const auto& local) { return local->session != nullptr; });
  while (g.dead && !opened && !g.local.empty()) dismiss(*g.local.back());
  if (!g.local.empty()) return;
  past_partials_.add({g.flow, g.epoch}, g.dead ? g.verdict : Status());
  close_group(g);
}

// A step that waits for a worker which left, or has pushed nothing for too long.
void Engine::check_sessions(Nanos now) {
  drop_old_sessions(now);
  for (const auto& one : sessions_) {
    Session& s = *one;
    if (s.goes_on && s.state != Session::State::kEnded) check_who_left(s, now);
    const bool steps = s.asked.ticket != nullptr && s.state == Session::State::kOpen;
    const int j = steps && s.recovery == Session::Recovery::kNone ? s.rounds.awaited() : -1;
    if (j < 0) continue;
    // One that is far behind may have to take many steps until it has caught up.
    if (const Session::Awaited seen{j, s.rounds.last_merged(j)}; s.asked.awaited != seen) {
      s.asked.awaited = seen;
      s.asked.since = now;
    }
    Group& g = *s.control->group;
    // Its place in the group.
    const auto at = static_cast<std::size_t>(std::find(s.living.begin(), s.living.end(), j) - s.living.begin());
    const Nanos waits = now - s.asked.since;
    const bool left = g.left[at] != 0 && now - std::max(s.asked.since, s.committed_at) > departure_grace();
    if (!left && waits <= options_.settings.entry_limit) continue;
    Verdict v;
    v.code = left ? CANARY_PEER_DIED : CANARY_ENTRY_TIMEOUT;
    v.rank = g.members[at];
    v.elapsed = waits;
    v.text = rank_name(v.rank) +
             (left ? " left the job (finalize)" : " pushed nothing more for " + milliseconds(waits)) +
             ", while a step waited for its gradient";
    if (s.goes_on && left) {
      kill(g, v, true);  // whoever leaves is dead to the others
    } else {
      end_session(s, v);
    }
  }
}

// Those that an aborted group's ranks have in it.
void Engine::end_sessions_of(const Group& parent, const Verdict& verdict) {
  for (const auto& s : sessions_) {
    const GroupMember* const m = member(s->caller);
    if (m != nullptr && m->group == &parent) end_session(*s, verdict);
  }
}

void Engine::set_session_deadline(port::TicketId ticket, Nanos deadline) {
  for (const auto& s : sessions_) {
    if (s->asked.ticket == nullptr || s->asked.ticket->id() != ticket) continue;
    s->asked.deadline = deadline;
    sessions_due_ = true;
  }
}

}  // namespace canarynet
