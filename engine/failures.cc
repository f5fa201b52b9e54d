// The engine's answer when something is wrong: limits, silence, verdicts and how they spread.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/duration_text.h"
#include "base/log.h"
#include "base/serial.h"
#include "base/text.h"
#include "control/text.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace canarynet {

std::string Engine::rank_name(int world_rank) const {
  std::string out = "rank " + std::to_string(world_rank);
  if (world_rank < 0 || static_cast<std::size_t>(world_rank) >= roster_->engine_of.size()) return out;
  const EngineInfo& e =
      roster_->engines[static_cast<std::size_t>(roster_->engine_of[static_cast<std::size_t>(world_rank)])];
  return out + " (host " + e.host_name + ", pid " + std::to_string(e.pid) + ")";
}

std::string Engine::ranks_text(std::uint32_t engine) const { return control::engine_text(roster_->engines[engine]); }

// Ends a group's epoch here; the first verdict wins. With `flood`, everybody else hears of it.
void Engine::kill(Group& g, const Verdict& verdict, bool flood) {
  user_.check();
  if (g.dead) return;
  g.dead = true;
  ErrorDetail detail;
  detail.rank = verdict.rank;
  if (verdict.rank >= 0 && static_cast<std::size_t>(verdict.rank) < roster_->engine_of.size()) {
    detail.host = roster_->engines[static_cast<std::size_t>(roster_->engine_of[static_cast<std::size_t>(verdict.rank)])]
                      .host_name;
    const auto engine = static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(verdict.rank)]);
    if (const Channel* c = channel_to(engine)) detail.device = c->describe_paths();
  }
  detail.group = g.flow;
  detail.epoch = g.epoch;
  detail.op = verdict.op;
  detail.phase = "exchange";
  detail.elapsed = verdict.elapsed;
  g.verdict = Status(verdict.code, verdict.text, detail);
  log(LogLevel::kWarn, "group %u ended: %s: %s", g.flow, name_of(verdict.code), verdict.text.c_str());

  // Nothing may read or write the callers' buffers once they hear of it.
  for (EnginePeer& p : peers_) {
    if (p.channel) p.channel->cancel_flow(g.flow);
    if (p.channel && g.decisions) p.channel->cancel_flow(g.decisions_number());
    if (p.eager) {
      p.eager->for_each([&](EagerStore::Entry& e) {
        if (e.header.flow == g.flow) p.eager->release(&e);
      });
      p.debts->erase_if([&](const EagerDebt& d) {
        if (d.flow == g.flow) p.eager_used -= d.bytes;
        return d.flow == g.flow;
      });
    }
    charge_less(p, 0);  // other groups may have waited for that room
  }
  if (g.decisions) g.decisions->abandon();
  end_messages(g);
  for (auto& m : g.local) {
    m->early.clear();
    while (!m->operations.empty()) {
      Operation& op = m->operations.front();
      ErrorDetail d = detail;
      d.op = op.number;
      d.op_name = std::string(op.name());
      d.elapsed = now_ - op.entered;
      finish(*m, op, Status(verdict.code, d.op_name + " #" + std::to_string(d.op) + ": " + verdict.text, d));
    }
    if (m->chains() && m->chain->due()) enter_phase(*m);
    end_waiting(*m);
  }
  partials_due_ |= g.partial != nullptr;
  sessions_due_ |= !sessions_.empty();
  if (verdict.code == CANARY_ABORTED) {
    end_partials_of(g, verdict);
    end_sessions_of(g, verdict);
    end_posts(g.verdict, &g);
  }
  if (!flood) return;
  Verdict v = verdict;
  v.flow = g.flow;
  v.epoch = g.epoch;
  v.reporter = my_engine_;
  spread(v, g.engine_of);
}

// To all by control, and to these engines by lanes as well: control may be slower, or gone.
void Engine::spread(const Verdict& v, std::span<const std::uint32_t> engines) {
  membership_->flood(v);
  struct {
    wire::AbortPayload fixed;
    char text[wire::kAbortTextMax];
  } abort{};
  abort.fixed.code = static_cast<std::uint32_t>(v.code);
  abort.fixed.rank = v.rank;
  abort.fixed.op = v.op;
  abort.fixed.elapsed_ns = static_cast<std::uint64_t>(v.elapsed.count);
  abort.fixed.reporter = v.reporter;
  abort.fixed.text_bytes = static_cast<std::uint32_t>(std::min<std::size_t>(v.text.size(), wire::kAbortTextMax));
  std::memcpy(abort.text, v.text.data(), abort.fixed.text_bytes);
  wire::Header h;
  h.kind = wire::Kind::kAbort;
  h.flow = v.flow;
  h.epoch = v.epoch;
  h.payload_bytes = static_cast<std::uint32_t>(sizeof abort.fixed) + abort.fixed.text_bytes;
  for (const std::uint32_t engine : engines) {
    if (engine == my_engine_) continue;
    if (Channel* c = channel_to(engine)) c->broadcast(h, &abort, now_);
  }
}

void Engine::on_abort(Mux&, const wire::Header& h, const wire::AbortFrame& abort) {
  const wire::AbortPayload& fixed = abort.verdict;
  Verdict v;
  v.code = fixed.code > CANARY_WOULD_BLOCK && fixed.code <= CANARY_INTERNAL ? static_cast<canary_status>(fixed.code)
                                                                            : CANARY_ABORTED;
  v.rank = fixed.rank;
  v.op = fixed.op;
  v.flow = h.flow;
  v.epoch = h.epoch;
  v.reporter = fixed.reporter;
  v.elapsed = Nanos{static_cast<std::int64_t>(fixed.elapsed_ns)};
  v.text = abort.text;
  make_printable(&v.text);
  on_verdict(v);
}

void Engine::on_verdict(const Verdict& verdict) {
  for (auto& g : groups_) {
    if (verdict.flow != 0 && g->flow != verdict.flow) continue;
    if (verdict.flow != 0 && g->epoch != verdict.epoch) continue;
    if (verdict.flow == 0 && std::find(g->members.begin(), g->members.end(), verdict.rank) == g->members.end())
      continue;
    kill(*g, verdict, true);  // passed on: some members may only be reachable through us
  }
  if (wire::is_partial(verdict.flow) && find_group(verdict.flow) == nullptr) {
    ErrorDetail d;
    d.rank = verdict.rank;
    end_unknown_partial({verdict.flow, verdict.epoch}, Status(verdict.code, verdict.text, d));
  }
  // The others go on without a rank served here: they won't form groups with it any more, nor bring it
  // anything. What is among ranks served here alone goes on.
  const std::vector<int>& mine = options_.local_ranks;
  const bool lost = verdict.code == CANARY_PEER_SILENT || verdict.code == CANARY_PEER_DIED;
  if (lost && std::find(mine.begin(), mine.end(), verdict.rank) != mine.end()) {
    const Status why = loss(my_engine_, verdict.code, verdict.text);
    give_up_groups(why);
    end_policies(why);
    for (const auto& s : sessions_) {
      const bool here = std::all_of(s->ranks.begin(), s->ranks.end(),
                                    [&](int rank) { return std::find(mine.begin(), mine.end(), rank) != mine.end(); });
      if (!here && s->state != Session::State::kFinished) end_session(*s, verdict);
    }
    for (Group* const g : partials_) {
      const bool here =
          std::all_of(g->engine_of.begin(), g->engine_of.end(), [&](std::uint32_t e) { return e == my_engine_; });
      if (!here) kill(*g, verdict, true);
    }
  }
}

// One that is made when an engine of it is gone already has the same end.
void Engine::kill_if_lost(Group& g, const char* when) {
  for (const std::uint32_t e : g.engine_of) {
    if (!peers_[e].gone) continue;
    const Status& loss = peers_[e].why_gone;
    Verdict v;
    v.code = loss.code();
    v.rank = loss.detail().rank;
    v.text = loss.text() + when;
    return kill(g, v, true);
  }
}

// Every group that has `engine`, or those of the list. `culprit`: whose fault it is; this engine where it can't reach
// `engine` itself.
void Engine::kill_groups_of(std::uint32_t engine, std::uint32_t culprit, canary_status code, const std::string& why,
                            const std::vector<GroupEpoch>* only) {
  for (auto& g : groups_) {
    if (std::find(g->engine_of.begin(), g->engine_of.end(), engine) == g->engine_of.end()) continue;
    if (only != nullptr && std::find(only->begin(), only->end(), GroupEpoch{g->flow, g->epoch}) == only->end())
      continue;
    Verdict v;
    v.code = code;
    v.rank = roster_->engines[culprit].ranks.front();
    v.text = ranks_text(culprit) + " " + why;
    kill(*g, v, true);
  }
}

// A silent peer that is given up may speak again, and must not wait for what nobody brings it any more: also where no
// group of it is left here that could end, it hears of its end in that of all ranks.
void Engine::tell_given_up(std::uint32_t engine, std::uint32_t culprit, const std::string& why) {
  const Group& world = *groups_.front();
  Verdict v;
  v.code = CANARY_PEER_SILENT;
  v.rank = roster_->engines[culprit].ranks.front();
  v.flow = world.flow;
  v.epoch = world.epoch;
  v.reporter = my_engine_;
  v.text = ranks_text(culprit) + " " + why;
  spread(v, {&engine, 1});
}

// The error for a group that was to be formed.
Status Engine::loss(std::uint32_t engine, canary_status code, const std::string& text) const {
  ErrorDetail d;
  d.rank = roster_->engines[engine].ranks.front();
  d.host = roster_->engines[engine].host_name;
  d.phase = "entry";
  return Status(code, text, d);
}

// Dead, or silent for too long. Groups that wait for one of its ranks to ask, or, if it hands out groups, for its
// answer, wait in vain: of a silence the coordinator's desk for groups does not hear. The one for policies does.
void Engine::lose(std::uint32_t engine, const Status& why) {
  EnginePeer& peer = peers_[engine];
  peer.gone = true;
  peer.why_gone = why;
  if (peer.channel) peer.channel->peer_died();
  give_up_groups();
  membership_->give_up_workers(now_, engine);
  sessions_due_ |= !sessions_.empty();
  refuse_session_strays();
  if (engine == membership_->coordinator())
    end_posts(Status(CANARY_COORDINATOR_LOST,
                     name_of_coordinator() + ", which answers its questions, is gone: " + why.text()));
}

void Engine::on_engine_died(std::uint32_t engine, const std::string& why) {
  if (engine >= peers_.size() || peers_[engine].gone || peers_[engine].left) return;
  lose(engine, loss(engine, CANARY_PEER_DIED, ranks_text(engine) + " died: " + why));
  kill_groups_of(engine, engine, CANARY_PEER_DIED, "died: " + why);
}

bool Engine::stands(std::uint32_t engine) const {
  return engine < peers_.size() && peers_[engine].channel && peers_[engine].channel->stands();
}

void Engine::on_engine_ended(std::uint32_t engine, const std::string& why) {
  if (engine >= peers_.size() || take_ended(engine, why)) return;
  std::erase_if(doubtful_, [&](const Doubt& d) { return d.engine == engine; });
  doubtful_.push_back({engine, why});
}

// An engine that never had a lane to it, or has heard its farewell, misses nothing of it. Others name it, if they do.
// While a lane stands its process lives, whatever refused a connection to it: false, and it is asked again.
bool Engine::take_ended(std::uint32_t engine, const std::string& why) {
  if (peers_[engine].ended()) return true;
  const Channel* const c = peers_[engine].channel.get();
  if (c == nullptr || !c->ever_up() || c->peer_left()) {
    on_engine_left(engine, {});
  } else if (!c->stands()) {
    on_engine_died(engine, why);
  } else {
    return false;
  }
  return true;
}

void Engine::on_engine_left(std::uint32_t engine, const std::vector<LastWord>& words) {
  if (engine >= peers_.size()) return;
  for (const LastWord& word : words) {
    Group* const g = find_group(word.group.flow);
    if (g == nullptr || g->epoch != word.group.epoch || word.rank >= g->members.size()) continue;
    if (g->engine_of[word.rank] == engine) g->entered[word.rank] = later_of(g->entered[word.rank], word.op);
  }
  peers_[engine].left = true;
  if (peers_[engine].channel) peers_[engine].channel->peer_departed();
  for (auto& g : groups_) {
    for (std::size_t r = 0; r < g->engine_of.size(); ++r) {
      if (g->engine_of[r] == engine) g->left[r] = 1;
    }
    if (g->decisions) g->decisions->on_engine_left(engine);
  }
  refuse_session_strays();
}

// --- limits ----------------------------------------------------------------------------------------------------------

// Before ranks are named for not having called, everybody is asked. True: what is known of the group is no older than
// `since`, or nobody answered in time.
bool Engine::inquired(Group& g, Nanos since) {
  if (g.answered_at >= since) return true;
  if (g.asked_at < since) {
    g.asked_at = now_;
    g.answered.clear();
    membership_->ask_entered(now_, {g.flow, g.epoch});
    return false;
  }
  return now_ - g.asked_at > options_.settings.heartbeat_interval * 5;
}

void Engine::on_entry_question(GroupEpoch group) {
  Entered entered;
  entered.group = group;
  const Group* g = find_group(group.flow);
  if (g != nullptr && g->epoch == group.epoch) entered.by_rank = g->entered;
  for (const ClosedGroup& past : past_groups_) {
    if (past.entered.group == group) entered.by_rank = past.entered.by_rank;
  }
  membership_->tell_entered(now_, entered);
}

void Engine::on_entered(const Entered& entered) {
  Group* g = find_group(entered.group.flow);
  if (g == nullptr || g->epoch != entered.group.epoch) return;
  for (std::size_t r = 0; r < std::min(g->entered.size(), entered.by_rank.size()); ++r) {
    g->entered[r] = later_of(g->entered[r], entered.by_rank[r]);
  }
  g->answered = entered.heard;
  g->answered_at = now_;
}

void Engine::check_limits(Group& g, GroupMember& m, Nanos now) {
  const Settings& set = options_.settings;
  for (Operation& op : m.operations) {
    const std::uint32_t remaining = op.run->executor.remaining();
    if (remaining != op.remaining_seen) {
      op.remaining_seen = remaining;
      op.run->last_progress = now;
    }
    std::size_t missing = 0, departed = 0;
    for (std::size_t r = 0; r < g.members.size(); ++r) {
      if (later(op.number, g.entered[r])) ++(g.left[r] ? departed : missing);
    }
    // Lists are for verdicts only: while all is well nothing is allocated here.
    const auto not_entered = [&](bool left) {
      std::vector<int> out;
      for (std::size_t r = 0; r < g.members.size(); ++r) {
        if (later(op.number, g.entered[r]) && (g.left[r] != 0) == left) out.push_back(g.members[r]);
      }
      return out;
    };
    Verdict v;
    v.op = op.number;
    v.elapsed = now - op.entered;
    if (now >= op.deadline) {
      v.code = CANARY_DEADLINE;
      v.text = "the caller's deadline passed after " + milliseconds(v.elapsed);
      if (missing != 0) v.text += "; not entered by " + control::ranks_text(not_entered(false));
    } else if (departed != 0 && now - op.run->last_progress > departure_grace()) {
      if (!inquired(g, op.run->last_progress + departure_grace())) continue;
      v.code = CANARY_PEER_DIED;
      const std::vector<int> ranks = not_entered(true);
      v.rank = ranks.front();
      v.text = control::ranks_text(ranks) + " left the job (finalize) without calling operation #" +
               std::to_string(op.number);
    } else if (missing != 0) {
      if (now - op.entered <= set.entry_limit || !inquired(g, op.entered + set.entry_limit)) continue;
      std::vector<int> named = not_entered(false), unknown;
      // Ranks whose engines answered have not called. Nothing is known of the others, worth a word but no blame, if
      // anybody else is to blame.
      const auto silent = std::stable_partition(named.begin(), named.end(), [&](int rank) {
        const auto engine = static_cast<std::uint32_t>(roster_->engine_of[static_cast<std::size_t>(rank)]);
        return std::find(g.answered.begin(), g.answered.end(), engine) != g.answered.end();
      });
      if (silent != named.begin()) {
        unknown.assign(silent, named.end());
        named.erase(silent, named.end());
      }
      v.code = CANARY_ENTRY_TIMEOUT;
      v.rank = named.front();
      v.text = control::ranks_text(named) + " did not call operation #" + std::to_string(op.number) + " within " +
               milliseconds(set.entry_limit);
      if (!unknown.empty()) v.text += "; of " + control::ranks_text(unknown) + " nothing is known";
    } else {
      if (now - op.run->last_progress <= set.exchange_limit) continue;
      std::vector<int> slow;
      const Program& program = op.entry->program;
      for (std::uint32_t s = 0; s < program.peers.size(); ++s) {
        // Ranks served here get no signature.
        const bool unsigned_yet = op.run->partners[s].peer != nullptr && !op.run->partners[s].signature_sent;
        if (op.run->executor.waits_for(s) || op.run->executor.unsent_to(s) || unsigned_yet) {
          slow.push_back(g.members[static_cast<std::size_t>(program.peers[s].rank)]);
        }
      }
      v.code = CANARY_EXCHANGE_TIMEOUT;
      v.rank = slow.empty() ? -1 : slow.front();
      v.text = "no progress for " + milliseconds(now - op.run->last_progress) +
               " in which all were heard, longer than CANARY_EXCHANGE_LIMIT (" +
               control::duration_text(set.exchange_limit) + "), waiting for " +
               (slow.empty() ? "nobody" : control::ranks_text(slow));
    }
    kill(g, v, true);
    return;
  }
}

// Nobody drove this engine for so long: it was stopped, or got no core, or its caller computed. Nobody is to blame for
// what did not come meanwhile. The entry limit and the caller's deadlines go on: they are promises about time itself.
void Engine::move_clocks(Nanos missed) {
  for (EnginePeer& p : peers_) {
    for (Nanos* since : {&p.complained_at, &p.unheard_since}) {
      if (*since != Nanos::max()) *since += missed;
    }
  }
  for (auto& g : groups_) hold(*g, missed);
}

// The limits on progress don't count this time.
void Engine::hold(Group& g, Nanos span) {
  for (auto& m : g.local) {
    for (Operation& op : m->operations) op.run->last_progress += span;
    for (auto& end : m->messages) {
      if (end && !end->idle()) end->hold(span);
    }
  }
}

void Engine::housekeeping(Nanos now) {
  unlist_idle();
  check_ready();
  if (!joined_) return;
  ask_to_be_dialled(now);
  if (!leaving_) std::erase_if(doubtful_, [&](const Doubt& d) { return take_ended(d.engine, d.why); });
  if (!leaving_ && options_.settings.progress_thread) {
    watch_.warn(now);
    check_silence(now);
  }
  decide(now);
  if (!strays_.empty()) expire_strays(now);
  if (!sessions_.empty()) check_sessions(now);
  if (!posts_.empty()) check_posts(now);
  const Nanos looked = std::exchange(looked_at_, now);
  for (auto& g : groups_) {
    if (g->dead) continue;
    const bool waits = std::any_of(g->local.begin(), g->local.end(),
                                   [](const auto& m) { return !m->operations.empty() || !m->messages.empty(); });
    if (waits && held(*g)) hold(*g, std::clamp(now - looked, Nanos{}, kLooksEvery * 2));
    for (auto& m : g->local) {
      announce(*m);
      if (!m->operations.empty()) check_limits(*g, *m, now);
      if (!g->dead && !check_waiting(*g, *m, now)) break;
      if (!g->dead && !m->messages.empty()) check_messages(*g, *m, now);
      if (g->dead) break;
    }
  }
}

}  // namespace canarynet
