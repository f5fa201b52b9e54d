// What sessions of the engine do when a worker dies and the others go on.
//
// Every survivor stops, makes a group of those that it takes for living, whose number follows from who is dead, and
// adds up there how far each one got. So the sum comes about only among workers that know of the same deaths; another
// death ends the group, and they begin anew. Then the last rounds that somebody lacks are broadcast, one after the
// other, and rounds go on in groups of the new epoch. Rules and proof (sync/death_agreement.h):
// docs/decisions/0052-the-last-round-after-a-death.md.
// Who is dead: whoever a verdict on one of the session's groups names as dead, silent or out of reach, since verdicts
// come to all, and all workers of a process that is gone.
// A session that is closed stays for a while, without its buffers: a death may come when some workers have heard that
// all have finished and others have not, and those ask.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace canarynet {
namespace {

constexpr std::size_t kClosedMax = 16;  // sessions that are closed and kept, of a rank

}  // namespace

bool Engine::is_death(canary_status code) {
  return code == CANARY_PEER_DIED || code == CANARY_PEER_SILENT || code == CANARY_NO_PATH;
}

// The worker stops, and asks the other survivors how far they got. `why`: the end of one of its groups, which names a
// dead rank. False: it names nobody who was not known, or others take the ranks served here for dead, or the session
// has ended.
bool Engine::regroup_session(Session& s, const Status& why) {
  // What is complete here counts.
  for (int z = 0; z < static_cast<int>(s.colayers.size()); ++z) {
    const Session::Colayer& c = s.colayers[static_cast<std::size_t>(z)];
    if (!c.running || !c.done() || c.failed() != nullptr) continue;
    if (const Status wrong = s.commit(now_, z); !wrong.ok()) return end_session_here(s, wrong), false;
  }
  s.rounds.freeze();
  std::vector<int> named{why.detail().rank};
  const auto name = [&](const GroupMember* m) {
    if (m != nullptr && m->group->dead && is_death(m->group->verdict.code()))
      named.push_back(m->group->verdict.detail().rank);
  };
  name(s.control);
  for (const auto& c : s.colayers) name(c.member);
  if (!note_deaths(s, named)) return false;
  // Some of its groups may not have heard yet: nothing may use the session's buffers any more.
  Verdict v;
  v.code = why.code();
  v.rank = why.detail().rank;
  v.text = why.text();
  const auto leave = [&](GroupMember** place) {
    if (*place != nullptr) kill(*(*place)->group, v, false);
    release_session_group(place);
  };
  leave(&s.control);
  for (auto& c : s.colayers) {
    c.running = false;
    leave(&c.member);
  }
  s.recovery = Session::Recovery::kReporting;
  s.handing = -1;
  s.meetings = 0;
  for (;;) {
    s.live();
    const Status wrong = add_session_group(s, 0);
    if (wrong.ok()) break;
    // The survivors of these deaths have met another one, of which was heard here first.
    const int rank = wrong.detail().rank;
    if (!is_death(wrong.code()) || !note_deaths(s, {&rank, 1})) return end_session_here(s, wrong), false;
  }
  end_with_siblings(s);
  s.control_ticket.reset();
  const std::span<std::int64_t> report = s.report();
  const OpRequest request{.collective = Collective::kAllReduce,
                          .input = report.data(),
                          .output = report.data(),
                          .count = report.size(),
                          .type = CANARY_I64,
                          .redop = CANARY_SUM};
  enter(*s.control, {request, &s.control_ticket, now_, Nanos::max()});
  sessions_due_ = true;
  return true;
}

// False: nobody is dead who was not before, or the others go on without the ranks served here.
bool Engine::note_deaths(Session& s, std::span<const int> named) {
  const auto engine_of = [&](int rank) { return roster_->engine_of[static_cast<std::size_t>(rank)]; };
  const sync::DeathAgreement::Standing own = s.standing();
  bool news = false;
  for (std::size_t w = 0; w < s.ranks.size(); ++w) {
    const int engine = engine_of(s.ranks[w]);
    const bool dead =
        peers_[static_cast<std::size_t>(engine)].gone || std::any_of(named.begin(), named.end(), [&](int rank) {
          return rank >= 0 && static_cast<std::size_t>(rank) < roster_->engine_of.size() && engine_of(rank) == engine;
        });
    if (dead && static_cast<std::uint32_t>(engine) == my_engine_) return false;
    if (dead) news |= s.agreement.died(static_cast<int>(w), own);
  }
  return news;
}

// Another rank of this process has no such session any more, for another reason: all who count on it hear that.
void Engine::end_with_siblings(const Session& s) {
  const GroupMember* const caller = member(s.caller);
  for (const auto& other : sessions_) {
    const GroupMember* const theirs = member(other->caller);
    const bool ended = other->goes_on && other->state == Session::State::kEnded && other->number == s.number;
    if (!ended || theirs == nullptr || theirs->group != caller->group) continue;
    kill(*s.control->group, reason_of(*other, theirs->world_rank), true);
    return;
  }
}

// Why a session has ended, for those that still count on the rank.
Verdict Engine::reason_of(const Session& s, int world_rank) {
  Verdict v;
  v.code = is_death(s.verdict.code()) ? CANARY_ABORTED : s.verdict.code();
  v.rank = world_rank;
  v.text = s.verdict.text();
  return v;
}

// A worker that has left the job is dead to the others, also where it left in the midst of an operation.
void Engine::check_who_left(const Session& s, Nanos now) {
  for (std::size_t place = 0; place <= s.colayers.size(); ++place) {
    const GroupMember* const m = place == 0 ? s.control : s.colayers[place - 1].member;
    if (m == nullptr || m->group->dead || m->operations.empty()) continue;
    Group& g = *m->group;
    const auto left = std::find(g.left.begin(), g.left.end(), std::uint8_t{1});
    const Nanos waits = now - m->operations.front().run->last_progress;
    if (left == g.left.end() || waits <= departure_grace()) continue;
    Verdict v;
    v.code = CANARY_PEER_DIED;
    v.rank = g.members[static_cast<std::size_t>(left - g.left.begin())];
    v.elapsed = waits;
    v.text = rank_name(v.rank) + " left the job (finalize) in the midst of the session";
    kill(g, v, true);
  }
}

// True: the survivors have agreed, and rounds go on.
bool Engine::recover_session(Session& s) {
  while (s.control_ticket.done()) {
    if (s.control_ticket.code != CANARY_OK) return end_session_here(s, s.control_ticket.status), false;
    if (std::exchange(s.recovery, Session::Recovery::kHanding) == Session::Recovery::kReporting && !s.hear_reports())
      return end_session_here(s, Status(CANARY_INTERNAL, "the survivors' reports contradict each other")), false;
    do ++s.handing;
    while (s.handing < static_cast<int>(s.colayers.size()) && s.agreement.holder(s.handing) < 0);
    if (s.handing == static_cast<int>(s.colayers.size())) return resume_session(s);
    const std::span<float> last = s.hand_out(s.handing);
    const auto root = std::find(s.living.begin(), s.living.end(), s.agreement.holder(s.handing));
    const OpRequest request{.collective = Collective::kBroadcast,
                            .input = last.data(),
                            .output = last.data(),
                            .count = last.size(),
                            .type = CANARY_F32,
                            .redop = CANARY_SUM,
                            .root = static_cast<int>(root - s.living.begin())};
    s.control_ticket.reset();
    enter(*s.control, {request, &s.control_ticket, now_, Nanos::max()});
  }
  return false;
}

bool Engine::resume_session(Session& s) {
  if (const Status wrong = s.resume(now_); !wrong.ok()) return end_session_here(s, wrong), false;
  if (s.state == Session::State::kFinished) return true;
  for (std::size_t place = 1; place <= s.colayers.size(); ++place) {
    if (const Status wrong = add_session_group(s, place); !wrong.ok()) return end_session_here(s, wrong), false;
  }
  return true;
}

// An end that begins at this rank.
void Engine::end_session_here(Session& s, const Status& why) {
  Verdict v;
  v.code = why.code();
  v.rank = s.ranks[static_cast<std::size_t>(s.rounds.worker())];
  v.text = why.text();
  end_session(s, v);
}

// --- sessions that are over here -------------------------------------------------------------------------------------

// Whether it stays when it is closed.
bool Engine::keeps_answering(const Session& s) const {
  const bool over = s.state == Session::State::kFinished || s.state == Session::State::kEnded;
  return s.goes_on && over && s.living.size() > 1;
}

// The newest ones of each rank stay.
void Engine::keep_closed_session(Session& s) {
  s.closed = true;
  s.closed_at = now_;
  s.free_memory();
  const auto at = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& one) { return one.get() == &s; });
  std::rotate(at, at + 1, sessions_.end());  // in the order in which they were closed
  const auto closed = [&](const auto& one) { return one->closed && one->caller == s.caller; };
  if (static_cast<std::size_t>(std::count_if(sessions_.begin(), sessions_.end(), closed)) > kClosedMax)
    drop_session(**std::find_if(sessions_.begin(), sessions_.end(), closed));
}

// Whoever asks waits no longer than that for an answer.
void Engine::drop_old_sessions(Nanos now) {
  const auto old = [&](const auto& s) { return s->closed && now - s->closed_at > options_.settings.entry_limit; };
  for (auto at = std::find_if(sessions_.begin(), sessions_.end(), old); at != sessions_.end();
       at = std::find_if(sessions_.begin(), sessions_.end(), old))
    drop_session(**at);
}

void Engine::drop_session(Session& s) {
  if (s.control != nullptr && !s.control->operations.empty()) {
    Verdict v;
    v.code = CANARY_ABORTED;
    v.rank = s.control->world_rank;
    v.text = rank_name(v.rank) + " has closed the session, or its group, in the midst of an agreement";
    kill(*s.control->group, v, true);
  }
  release_session_group(&s.control);
  for (auto& c : s.colayers) release_session_group(&c.member);
  std::erase_if(sessions_, [&](const auto& one) { return one.get() == &s; });
  sessions_due_ = true;  // others have other places now
}

// Of a rank that gives its group back.
void Engine::drop_sessions_of(port::MemberId caller) {
  for (std::size_t i = 0; i < sessions_.size();) {
    if (sessions_[i]->caller == caller) {
      drop_session(*sessions_[i]);
      i = 0;
    } else {
      ++i;
    }
  }
}

// Survivors of a death count on a rank served here, whose session had ended for another reason before it heard of the
// death. They are told that reason: on the groups of before the death nobody hears any more.
void Engine::refuse_session_strays() {
  for (std::size_t i = 0; i < strays_.size();) i = refuse_session_stray(StraySignature(strays_[i])) ? 0 : i + 1;
}

bool Engine::refuse_session_stray(const StraySignature& stray) {
  const std::optional<std::uint64_t> number = session_in(stray.payload);
  if (!number) return false;
  for (const auto& s : sessions_) {
    const GroupMember* const caller = member(s->caller);
    if (!s->goes_on || s->state != Session::State::kEnded || s->number != *number || caller == nullptr) continue;
    // Which deaths they know of is told by the group's number alone. Three sets are tried: what the session knew, with
    // all processes that are gone, and with those that have left. Others wait until the entry limit.
    sync::WorkerSet dead = s->agreement.dead();
    const auto named = [&] {
      std::size_t first = 0;
      while (first < s->ranks.size() && dead.has(static_cast<int>(first))) ++first;
      if (first == s->ranks.size()) return false;
      const std::uint64_t hash = s->group_number(0, dead);
      const GroupEpoch name = partial_group(caller->group->flow, caller->group->epoch, hash, s->ranks[first]);
      return name == GroupEpoch{stray.flow, stray.epoch};
    };
    bool is = !dead.empty() && named();
    for (const bool left : {false, true}) {
      for (std::size_t w = 0; w < s->ranks.size(); ++w) {
        const EnginePeer& p =
            peers_[static_cast<std::size_t>(roster_->engine_of[static_cast<std::size_t>(s->ranks[w])])];
        if (left ? p.left : p.gone) dead.add(static_cast<int>(w));
      }
      is |= named();
    }
    if (!is) continue;
    Verdict v = reason_of(*s, caller->world_rank);
    v.flow = stray.flow;
    v.epoch = stray.epoch;
    v.reporter = my_engine_;
    std::vector<std::uint32_t> engines;
    for (const int rank : s->ranks)
      engines.push_back(static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(rank)]));
    spread(v, engines);
    ErrorDetail detail;
    detail.rank = v.rank;
    end_unknown_partial({v.flow, v.epoch}, Status(v.code, v.text, detail));
    return true;
  }
  return false;
}

}  // namespace canarynet
