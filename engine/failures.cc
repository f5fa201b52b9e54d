// What the engine does when something is wrong: limits, silence, verdicts and how they spread.
#include <algorithm>
#include <cstring>

#include "base/duration_text.h"
#include "base/log.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

std::string list(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i != 0 ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

}  // namespace

std::string Engine::rank_name(int world_rank) const {
  std::string out = "rank " + std::to_string(world_rank);
  if (world_rank < 0 || static_cast<std::size_t>(world_rank) >= roster_.engine_of.size()) return out;
  const EngineInfo& e =
      roster_.engines[static_cast<std::size_t>(roster_.engine_of[static_cast<std::size_t>(world_rank)])];
  return out + " (host " + e.host_name + ", pid " + std::to_string(e.pid) + ")";
}

std::string Engine::ranks_text(std::uint32_t engine) const {
  const EngineInfo& e = roster_.engines[engine];
  return list(e.ranks) + " (host " + e.host_name + ", pid " + std::to_string(e.pid) + ")";
}

// Ends a group's epoch here; the first verdict wins. With `flood`, everybody else hears of it.
void Engine::kill(Group& g, const Verdict& verdict, bool flood) {
  if (g.dead) return;
  g.dead = true;
  ErrorDetail detail;
  detail.rank = verdict.rank;
  if (verdict.rank >= 0 && static_cast<std::size_t>(verdict.rank) < roster_.engine_of.size()) {
    detail.host =
        roster_.engines[static_cast<std::size_t>(roster_.engine_of[static_cast<std::size_t>(verdict.rank)])].host_name;
    const auto engine = static_cast<std::uint32_t>(roster_.engine_of[static_cast<std::size_t>(verdict.rank)]);
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
  for (Peer& p : peers_) {
    if (p.channel) p.channel->cancel_flow(g.flow);
    if (p.eager) {
      p.eager->for_each([&](EagerStore::Entry& e) {
        if (e.header.flow == g.flow) p.eager->release(&e);
      });
    }
    std::erase_if(p.debts, [&](const EagerDebt& d) {
      if (d.flow == g.flow) p.eager_used -= d.bytes;
      return d.flow == g.flow;
    });
    if (p.channel) p.channel->wake();  // other groups may have waited for that room
  }
  end_messages(g);
  for (auto& m : g.local) {
    m->early.clear();
    while (!m->operations.empty()) {
      Operation& op = m->operations.back();
      ErrorDetail d = detail;
      d.op = op.number;
      d.op_name = std::string(name_of(op.request.collective));
      d.elapsed = now_ - op.entered;
      finish(*m, op, Status(verdict.code, d.op_name + " #" + std::to_string(d.op) + ": " + verdict.text, d));
    }
  }
  if (!flood) return;
  Verdict v = verdict;
  v.flow = g.flow;
  v.epoch = g.epoch;
  v.reporter = my_engine_;
  membership_->flood(v);

  // Lanes carry it as well: control may be slower, or gone.
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
  h.flow = g.flow;
  h.epoch = g.epoch;
  h.payload_bytes = static_cast<std::uint32_t>(sizeof abort.fixed) + abort.fixed.text_bytes;
  for (const std::uint32_t engine : g.engine_of) {
    if (engine == my_engine_) continue;
    if (Channel* c = channel_to(engine)) c->broadcast(h, &abort, now_);
  }
}

void Engine::on_abort(Channel&, const wire::Header& h, std::span<const std::byte> payload) {
  wire::AbortPayload fixed;
  if (payload.size() < sizeof fixed) return;
  std::memcpy(&fixed, payload.data(), sizeof fixed);
  if (fixed.text_bytes != payload.size() - sizeof fixed || fixed.text_bytes > wire::kAbortTextMax) return;
  Verdict v;
  v.code = fixed.code > CANARY_WOULD_BLOCK && fixed.code <= CANARY_INTERNAL ? static_cast<canary_status>(fixed.code)
                                                                            : CANARY_ABORTED;
  v.rank = fixed.rank;
  v.op = fixed.op;
  v.flow = h.flow;
  v.epoch = h.epoch;
  v.reporter = fixed.reporter;
  v.elapsed = Nanos{static_cast<std::int64_t>(fixed.elapsed_ns)};
  v.text.assign(reinterpret_cast<const char*>(payload.data()) + sizeof fixed, fixed.text_bytes);
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
}

void Engine::kill_groups_of(std::uint32_t engine, canary_status code, const std::string& why) {
  for (auto& g : groups_) {
    if (std::find(g->engine_of.begin(), g->engine_of.end(), engine) == g->engine_of.end()) continue;
    Verdict v;
    v.code = code;
    v.rank = roster_.engines[engine].ranks.front();
    v.text = ranks_text(engine) + " " + why;
    kill(*g, v, true);
  }
}

void Engine::on_engine_died(std::uint32_t engine, const std::string& why) {
  if (engine >= peers_.size() || peers_[engine].gone || peers_[engine].left) return;
  peers_[engine].gone = true;
  kill_groups_of(engine, CANARY_PEER_DIED, "died: " + why);
}

void Engine::on_engine_left(std::uint32_t engine) {
  if (engine >= peers_.size()) return;
  peers_[engine].left = true;
  if (peers_[engine].channel) peers_[engine].channel->peer_departed();
  for (auto& g : groups_) {
    for (std::size_t r = 0; r < g->engine_of.size(); ++r) {
      if (g->engine_of[r] == engine) g->left[r] = 1;
    }
  }
}

// --- limits --------------------------------------------------------------------------------------------------------------

void Engine::check_limits(Group& g, GroupMember& m, Nanos now) {
  const Settings& set = options_.settings;
  for (Operation& op : m.operations) {
    const std::uint32_t remaining = op.run->executor.remaining();
    if (remaining != op.remaining_seen) {
      op.remaining_seen = remaining;
      op.last_progress = now;
    }
    std::size_t missing = 0, departed = 0;
    for (std::size_t r = 0; r < g.members.size(); ++r) {
      if (g.entered[r] < op.number) ++(g.left[r] ? departed : missing);
    }
    // Lists are for verdicts only: while all is well nothing is allocated here.
    const auto not_entered = [&](bool left) {
      std::vector<int> out;
      for (std::size_t r = 0; r < g.members.size(); ++r) {
        if (g.entered[r] < op.number && (g.left[r] != 0) == left) out.push_back(g.members[r]);
      }
      return out;
    };
    Verdict v;
    v.op = op.number;
    v.elapsed = now - op.entered;
    if (now >= op.deadline) {
      v.code = CANARY_DEADLINE;
      v.text = "the caller's deadline passed after " + milliseconds(v.elapsed);
      if (missing != 0) v.text += "; not entered by " + list(not_entered(false));
    } else if (departed != 0 && now - op.last_progress > set.silence_limit) {
      v.code = CANARY_PEER_DIED;
      const std::vector<int> ranks = not_entered(true);
      v.rank = ranks.front();
      v.text = list(ranks) + " left the job (finalize) without calling operation #" + std::to_string(op.number);
    } else if (missing != 0) {
      if (now - op.entered <= set.entry_limit) continue;
      v.code = CANARY_ENTRY_TIMEOUT;
      const std::vector<int> ranks = not_entered(false);
      v.rank = ranks.front();
      v.text = list(ranks) + " did not call operation #" + std::to_string(op.number) + " within " +
               milliseconds(set.entry_limit);
    } else {
      if (now - op.last_progress <= set.exchange_limit) continue;
      std::vector<int> slow;
      const Program& program = op.entry->program;
      for (std::uint32_t s = 0; s < program.peers.size(); ++s) {
        if (op.run->executor.waits_for(s) || op.run->executor.unsent_to(s)) {
          slow.push_back(g.members[static_cast<std::size_t>(program.peers[s].rank)]);
        }
      }
      v.code = CANARY_EXCHANGE_TIMEOUT;
      v.rank = slow.empty() ? -1 : slow.front();
      v.text = "no progress for " + milliseconds(now - op.last_progress) + ", waiting for " +
               (slow.empty() ? "nobody" : list(slow));
    }
    kill(g, v, true);
    return;
  }
}

void Engine::check_silence(Nanos now) {
  const Nanos limit = options_.settings.silence_limit;
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    Peer& p = peers_[e];
    if (e == my_engine_ || p.gone || p.left) continue;
    // One that runs only inside calls may compute for as long as it likes: what an operation waits for has its own limits.
    if (roster_.engines[e].caller_driven) continue;
    const Nanos control = std::max(membership_->last_heard(e), joined_at_);
    const Nanos lanes = p.channel ? p.channel->last_heard() : Nanos{};
    if (p.channel && p.channel->peer_left()) continue;
    // Who shares no rail with us is known by the coordinator's word alone: its silence says nothing of them, and comes to its own limit.
    const bool hearsay = !p.channel && e != 0 && my_engine_ != 0;
    if (hearsay && now - membership_->last_heard(0) > limit / 2) continue;
    const Nanos heard = std::max(control, lanes);
    if (now - heard > limit) {
      p.gone = true;
      const std::string via = p.channel ? " via " + p.channel->describe_paths() : "";
      kill_groups_of(e, CANARY_PEER_SILENT,
                     "silent" + via + " and over control, last heard " + milliseconds(now - heard) + " ago");
      continue;
    }
    if (!p.channel || now - lanes <= limit || now - joined_at_ <= limit || now - control > limit / 2) continue;
    // Alive by control, and lately, but no lane reaches it: only an operation that needs it is lost.
    for (auto& g : groups_) {
      if (g->dead) continue;
      for (auto& m : g->local) {
        const bool needs = std::any_of(m->operations.begin(), m->operations.end(), [&](const Operation& op) {
          return std::find(op.run->peer_engine.begin(), op.run->peer_engine.end(), e) != op.run->peer_engine.end();
        });
        const bool messages = std::any_of(m->messages.begin(), m->messages.end(), [&](const auto& flow) {
          return flow && flow->peer == p.messages.get() && !flow->idle();
        });
        if (!needs && !messages) continue;
        Verdict v;
        v.code = CANARY_NO_PATH;
        v.rank = roster_.engines[e].ranks.front();
        v.text = "no lane to " + ranks_text(e) + " works: " + p.channel->describe_paths() + " silent for " +
                 milliseconds(now - lanes) + " while control is alive";
        kill(*g, v, true);
        break;
      }
    }
  }
}

void Engine::housekeeping(Nanos now) {
  check_ready();
  if (!joined_) return;
  if (!leaving_ && options_.settings.progress_thread) check_silence(now);
  for (auto& g : groups_) {
    if (g->dead) continue;
    for (auto& m : g->local) {
      if (!m->operations.empty()) check_limits(*g, *m, now);
      if (!g->dead && !m->messages.empty()) check_messages(*g, *m, now);
      if (g->dead) break;
    }
  }
}

}  // namespace canarynet
