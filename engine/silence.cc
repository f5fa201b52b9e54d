// Consequences of a rank's silence: operations that need it are held, and a verdict ends them late. The coordinator
// judges a rank that can't be reached though it lives. SilenceWatch says which ranks are silent.
#include <algorithm>

#include "base/duration_text.h"
#include "control/text.h"
#include "engine/engine.h"

namespace canarynet {

std::optional<SilenceHost::Word> Engine::word_over_control(const Peer& p) const {
  // Whom no lane joins to us, for want of a rail or of something to send, is known by the coordinator's word alone: its
  // silence comes to its own limit.
  const bool lanes = p.channel && p.channel->ever_up();
  const std::uint32_t coordinator = membership_->coordinator();
  return Word{membership_->last_heard(p.number), !lanes && p.number != coordinator && my_engine_ != coordinator};
}

SilenceHost::Names Engine::names_of(std::span<const Peer* const> peers) const {
  std::vector<int> ranks;
  for (const Peer* p : peers) {
    const std::vector<int>& its = roster_->engines[p->number].ranks;
    ranks.insert(ranks.end(), its.begin(), its.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return {control::ranks_text(ranks) + " (host " + roster_->engines[peers.front()->number].host_name + ")", ""};
}

bool Engine::held(const Group& g) const {
  return std::any_of(g.engine_of.begin(), g.engine_of.end(),
                     [&](std::uint32_t e) { return watch_.unheard(peers_[e], now_); });
}

// Peers that are heard neither on lanes nor over control are dead. One that lives by control but that no lane brings a
// word from is a matter for everybody: the coordinator is told early, and gives the verdict when some operation can't
// go on. See MissDesk.
void Engine::check_silence(Nanos now) {
  const Nanos limit = options_.settings.silence_limit, beat = options_.settings.heartbeat_interval;
  std::vector<Missed> missed;
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    EnginePeer& p = peers_[e];
    if (!SilenceWatch::should_speak(p)) continue;
    const bool deaf = hears_nothing(p, now);
    const Nanos control = std::max(membership_->last_heard(e), p.met);
    const Nanos lanes = p.channel ? p.channel->last_heard() : Nanos{};
    // The coordinator's own silence says nothing of a peer that no lane joins to us. Once it has ended nobody brings
    // word of that one any more, and a channel has as long to come up as a peer may be silent.
    if (word_over_control(p)->relayed && now - membership_->last_heard(membership_->coordinator()) > limit / 2) {
      if (!peers_[membership_->coordinator()].ended() || !p.channel || now - lanes <= limit + beat) continue;
    }
    if (watch_.judge(p, now) == SilenceWatch::Fate::kSilent) {
      const std::string via = p.channel ? " via " + p.channel->describe_paths() + everybody_.no_lane(p).why : "";
      // A channel that never was up has only been opened then.
      const Nanos heard = p.channel && p.channel->ever_up() ? std::max(control, lanes) : control;
      const std::string how = "silent" + via + " and over control, last heard " + milliseconds(now - heard) +
                              " ago, longer than " + watch_.limit_text();
      if (watch_.alone(now, /*by_lanes=*/false, limit)) {
        const std::string mine = "hears no rank of any other host: " + ranks_text(e) + " " + how;
        const Status why = loss(my_engine_, CANARY_PEER_SILENT, ranks_text(my_engine_) + " " + mine);
        end_policies(why);
        lose(e, why);
        kill_groups_of(e, my_engine_, CANARY_PEER_SILENT, mine);
        tell_given_up(e, my_engine_, mine);
      } else {
        lose(e, loss(e, CANARY_PEER_SILENT, ranks_text(e) + " " + how));
        kill_groups_of(e, e, CANARY_PEER_SILENT, how);
        tell_given_up(e, e, how);
      }
      continue;
    }
    // Nothing lies between two processes of one host that could be cut: one of them is slow, if no lane fails at once.
    const bool long_enough = ready_ && p.channel && now - p.met > limit && now - lanes > limit / 2;
    const Peers::NoLane no_lane = long_enough ? everybody_.no_lane(p) : Peers::NoLane{};
    if (!long_enough || (p.neighbour && no_lane.obstacle == Obstacle::kNone)) {
      std::vector<GroupEpoch> unheard;
      if (ready_ && deaf && !p.channel->drained()) unheard = groups_waiting_for(e);
      p.complained_at = unheard.empty() ? Nanos::max() : std::min(p.complained_at, now);
      if (!unheard.empty()) missed.push_back({e, std::move(unheard), Obstacle::kNone, {}, /*deaf=*/true});
      continue;
    }
    Missed m{e, {}, no_lane.obstacle, {}};
    if (no_lane.obstacle != Obstacle::kNone) m.why = no_lane.why;
    // Its word over control must be younger than a whole beat of the coordinator's: it had a turn, and every lane
    // should have carried a beat.
    const bool lives = now - std::max(membership_->surely_heard(e), p.met) <= limit / 2;
    if (now - lanes > limit + beat && lives) m.waiting = groups_waiting_for(e);
    p.complained_at = m.waiting.empty() ? Nanos::max() : std::min(p.complained_at, now);
    missed.push_back(std::move(m));
  }
  if (missed != missed_) {
    missed_ = std::move(missed);
    membership_->report_missed(now, missed_);
  }
  // No word from the coordinator, who may be cut off or gone itself: then what is seen from here has to do.
  for (const Missed& m : missed_) {
    const EnginePeer& p = peers_[m.engine];
    if (p.complained_at == Nanos::max() || now - p.complained_at <= beat * 2) continue;
    const std::string how = p.channel->describe_paths() +
                            (m.deaf ? " unheard there for " + milliseconds(now - p.channel->last_heard_by_peer())
                                    : " silent for " + milliseconds(now - p.channel->last_heard())) +
                            " while control is alive, longer than " + watch_.limit_text() + m.why;
    if (!m.deaf && watch_.alone(now, /*by_lanes=*/true, limit)) {
      kill_groups_of(m.engine, my_engine_, CANARY_NO_PATH, "reaches no rank of any other host: " + how);
    } else {
      // One end alone can't tell which of the two is at fault, so the text names both.
      kill_groups_of(m.engine, m.engine, CANARY_NO_PATH,
                     "can't be reached by " + ranks_text(my_engine_) + ": no lane works, " + how, &m.waiting);
    }
  }
}

// Whether the peer, though it is heard, has heard no frame of ours for longer than the limit. It may wait for nothing
// itself, and so not complain: the acknowledgement of its last piece was lost, and what is sent again does not arrive.
// One that waits has said so before, a beat after the limit. A channel whose lanes come back after a longer outage
// needs a round trip until it knows that it is heard again.
bool Engine::hears_nothing(EnginePeer& p, Nanos now) const {
  const Nanos limit = options_.settings.silence_limit, beat = options_.settings.heartbeat_interval;
  const bool heard = !p.neighbour && p.channel && p.channel->ever_up() && now - p.channel->last_heard() <= limit / 2;
  const bool unheard = heard && now - std::max(p.channel->last_heard_by_peer(), p.met) > limit + beat;
  p.unheard_since = unheard ? std::min(p.unheard_since, now) : Nanos::max();
  return unheard && now - p.unheard_since >= beat * 2;
}

// Groups whose operations or messages need a lane to that engine.
// A group that has ended here may owe the other end what was copied and is done since: that is all that one waits for,
// perhaps.
std::vector<GroupEpoch> Engine::groups_waiting_for(std::uint32_t engine) const {
  std::vector<GroupEpoch> out;
  for (const auto& g : groups_) {
    if (g->dead) continue;
    const bool waits = std::any_of(g->local.begin(), g->local.end(), [&](const auto& m) {
      return std::any_of(m->operations.begin(), m->operations.end(),
                         [&](const Operation& op) {
                           const auto& partners = op.run->partners;
                           return std::any_of(partners.begin(), partners.end(),
                                              [&](const RunPartner& partner) { return partner.engine == engine; });
                         }) ||
             std::any_of(m->messages.begin(), m->messages.end(), [&](const auto& end) {
               return end && end->peer == peers_[engine].messages.get() && !end->idle();
             });
    });
    // Operations that wait for the word which table decides them.
    const DecisionFlow* const decisions = g->decisions.get();
    const bool held = decisions != nullptr && decisions->waits_for() == engine &&
                      std::any_of(g->local.begin(), g->local.end(),
                                  [&](const auto& m) { return m->waiting.ready() && decisions->holds(*m); });
    if (waits || held) out.push_back({g->flow, g->epoch});
  }
  peers_[engine].channel->for_each_unacknowledged([&](const wire::Header& h) {
    if ((h.flow & wire::kConnectionFlow) == wire::kDecisionFlow) return;  // no operation waits for it by itself
    const GroupEpoch group{h.flow & ~wire::kMessageFlow, h.epoch};
    if (std::find(out.begin(), out.end(), group) == out.end()) out.push_back(group);
  });
  return out;
}

}  // namespace canarynet
