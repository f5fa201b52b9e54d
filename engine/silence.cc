// Who is not heard: what waits for it is held, a warning names it early, and a verdict ends it late.
//
// A process that ends proves its death by its connections' end. Silence proves nothing: a host whose NICs are dark, a
// paused virtual machine and a process in a debugger come back. So the limit is long, operations go on where they
// stopped, and the time of a silence counts for no exchange limit.
#include <algorithm>

#include "base/duration_text.h"
#include "base/log.h"
#include "control/text.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

constexpr int kUnheardBeats = 3;  // as many heartbeats did not come

std::string as_limit(Nanos limit) { return "CANARY_SILENCE_LIMIT (" + control::duration_text(limit) + ")"; }

}  // namespace

// When a word of it last came that an operation could have come with: over a lane, or where no NICs join the two, from
// the coordinator.
Nanos Engine::last_word(std::uint32_t engine) const {
  const Peer& p = peers_[engine];
  return std::max(p.channel ? p.channel->last_heard() : membership_->last_heard(engine), joined_at_);
}

// Whether silence says anything of it. One that runs only inside calls may compute for as long as it likes: what an
// operation waits for has its own limits.
bool Engine::should_speak(std::uint32_t engine) const {
  const Peer& p = peers_[engine];
  return engine != my_engine_ && !p.gone && !p.left && !roster_.engines[engine].caller_driven &&
         !(p.channel && p.channel->peer_left());
}

// Time in which a member of the group was not heard is no time without progress. A silence that outlasts its limit has
// a verdict of its own, or is of no importance to the group.
bool Engine::held(const Group& g) const {
  return std::any_of(g.engine_of.begin(), g.engine_of.end(), [&](std::uint32_t e) { return unheard(e); });
}

bool Engine::unheard(std::uint32_t engine) const {
  const Nanos beat = options_.settings.heartbeat_interval, silent = now_ - last_word(engine);
  return silent > beat * kUnheardBeats && silent <= options_.settings.silence_limit + beat * 5 && should_speak(engine);
}

// Once per silence, for all processes of a host together; and again when it is over.
void Engine::warn_of_silence(Nanos now) {
  const Nanos limit = options_.settings.silence_warning, beat = options_.settings.heartbeat_interval;
  if (limit.count == 0) return;
  const auto unheard = [&](std::uint32_t e, Nanos by) {
    return should_speak(e) && peers_[e].silent_since == Nanos::max() && now - last_word(e) > by &&
           !(is_neighbour(e) && merely_starved(e, now));
  };
  const auto same_host = [&](std::uint32_t first, auto wanted) {
    std::vector<int> ranks;
    for (std::uint32_t e = first; e < peers_.size(); ++e) {
      if (host_of_engine(e) != host_of_engine(first) || !wanted(e)) continue;
      const std::vector<int>& its = roster_.engines[e].ranks;
      ranks.insert(ranks.end(), its.begin(), its.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return control::ranks_text(ranks) + " (host " + roster_.engines[first].host_name + ")";
  };
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    Peer& p = peers_[e];
    if (p.silent_since != Nanos::max()) {
      if (!should_speak(e)) {
        p.silent_since = Nanos::max();  // its end was told
      } else if (now - last_word(e) <= beat * kUnheardBeats) {
        const Nanos since = p.silent_since;
        const auto back = [&](std::uint32_t o) {
          return peers_[o].silent_since != Nanos::max() && now - last_word(o) <= beat * kUnheardBeats;
        };
        log(LogLevel::kWarn, "%s: heard again after %s", same_host(e, back).c_str(),
            milliseconds(last_word(e) - since).c_str());
        for (std::uint32_t o = e; o < peers_.size(); ++o) {
          if (host_of_engine(o) == host_of_engine(e) && back(o)) peers_[o].silent_since = Nanos::max();
        }
      }
      continue;
    }
    if (!unheard(e, limit)) continue;
    // Those of its host that will follow within a beat or two are told of with it.
    const auto with_it = [&](std::uint32_t o) { return unheard(o, std::max(limit - beat * 2, beat * kUnheardBeats)); };
    std::string who = same_host(e, with_it);
    const bool by_control = now - std::max(membership_->last_heard(e), joined_at_) <= beat * kUnheardBeats;
    std::string text = "silent for " + milliseconds(now - last_word(e));
    if (p.channel) text += " via " + p.channel->describe_paths();
    text += p.channel && by_control ? ", while control is alive" : " and over control";
    if (alone(now, p.channel && by_control, limit)) text += ", like every other host: this host's own NICs may be dark";
    log(LogLevel::kWarn, "%s: %s; what waits for it goes on when it is heard, or ends after %s", who.c_str(),
        text.c_str(), as_limit(options_.settings.silence_limit).c_str());
    std::vector<std::uint32_t> told;
    for (std::uint32_t o = e; o < peers_.size(); ++o) {
      if (host_of_engine(o) == host_of_engine(e) && with_it(o)) told.push_back(o);
    }
    for (const std::uint32_t o : told) peers_[o].silent_since = last_word(o);
  }
}

// Peers that are heard neither on lanes nor over control are dead. One that lives by control but that no lane brings a
// word from is a matter for everybody: the coordinator is told early, and gives the verdict when some operation can't
// go on. See MissDesk.
void Engine::check_silence(Nanos now) {
  const Nanos limit = options_.settings.silence_limit, beat = options_.settings.heartbeat_interval;
  std::vector<Missed> missed;
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    Peer& p = peers_[e];
    if (!should_speak(e)) continue;
    const Nanos control = std::max(membership_->last_heard(e), joined_at_);
    const Nanos lanes = p.channel ? p.channel->last_heard() : Nanos{};
    // Who shares no rail with us is known by the coordinator's word alone: its silence says nothing of them, and comes
    // to its own limit.
    const bool hearsay = !p.channel && e != 0 && my_engine_ != 0;
    if (hearsay && now - membership_->last_heard(0) > limit / 2) continue;
    const Nanos heard = std::max(control, lanes);
    const bool neighbours = is_neighbour(e);
    const Nanos warned = options_.settings.silence_warning;
    const bool suspicious = now - heard > (warned.count != 0 ? std::min(limit, warned) : limit) * 3 / 4;
    const bool starved = suspicious && neighbours && merely_starved(e, now);
    if (!suspicious) p.looked = false;
    // Silent for as long as the limit: the beats that were due have not come. Hearsay is older by another beat.
    if (now - heard > limit + beat * (hearsay ? 2 : 1)) {
      if (starved) continue;
      const std::string via = p.channel ? " via " + p.channel->describe_paths() : "";
      const std::string how = "silent" + via + " and over control, last heard " + milliseconds(now - heard) +
                              " ago, longer than " + as_limit(limit);
      if (alone(now, /*by_lanes=*/false, limit)) {
        const std::string mine = "hears no rank of any other host: " + ranks_text(e) + " " + how;
        lose(e, loss(my_engine_, CANARY_PEER_SILENT, ranks_text(my_engine_) + " " + mine));
        kill_groups_of(e, my_engine_, CANARY_PEER_SILENT, mine);
      } else {
        lose(e, loss(e, CANARY_PEER_SILENT, ranks_text(e) + " " + how));
        kill_groups_of(e, e, CANARY_PEER_SILENT, how);
      }
      continue;
    }
    // Nothing lies between two processes of one host that could be cut: one of them is slow.
    if (!ready_ || !p.channel || neighbours || now - joined_at_ <= limit || now - lanes <= limit / 2) {
      p.complained_at = Nanos::max();
      continue;
    }
    Missed m{e, {}};
    // Its word over control must be younger than a whole beat of the coordinator's: it had a turn, and every lane
    // should have carried a beat.
    const bool lives = now - std::max(membership_->surely_heard(e), joined_at_) <= limit / 2;
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
    const Peer& p = peers_[m.engine];
    if (p.complained_at == Nanos::max() || now - p.complained_at <= beat * 2) continue;
    const std::string how = p.channel->describe_paths() + " silent for " + milliseconds(now - p.channel->last_heard()) +
                            " while control is alive, longer than " + as_limit(limit);
    if (alone(now, /*by_lanes=*/true, limit)) {
      kill_groups_of(m.engine, my_engine_, CANARY_NO_PATH, "reaches no rank of any other host: " + how);
    } else {
      kill_groups_of(m.engine, m.engine, CANARY_NO_PATH, "can't be reached: no lane works, " + how, &m.waiting);
    }
  }
}

// A silent process of this host that gets no core, or few, has merely not had its turn to speak, and its end would show
// as a hang-up. One that was stopped does not run and does not want to. Sleeping ones run every kLooksEvery: two looks
// with more than that between them tell.
bool Engine::merely_starved(std::uint32_t engine, Nanos now) {
  Peer& p = peers_[engine];
  const std::int64_t pid = roster_.engines[engine].pid;
  if (!p.looked) {
    p.pulse = options_.pulse_of(pid);
    p.looked = true;
    p.still = false;
    p.looked_by = Nanos::max();
    return true;
  }
  // This engine may have lost its core between the beginning of a cycle and the look in it: the next cycle's beginning
  // is surely later.
  if (p.looked_by == Nanos::max()) p.looked_by = now;
  if (now - p.looked_by >= kLooksEvery * 2) {
    const ProcessPulse pulse = options_.pulse_of(pid);
    p.still = !pulse.wants_core && pulse.ran_ns == p.pulse.ran_ns;
    p.pulse = pulse;
    p.looked_by = Nanos::max();
  }
  return !p.still;
}

// Whether no engine of any other host was heard lately, of two or more hosts: then it is this one that is cut off, not
// they.
bool Engine::alone(Nanos now, bool by_lanes, Nanos limit) const {
  int first = -1;
  bool several = false;
  for (std::uint32_t e = 0; e < peers_.size(); ++e) {
    const Peer& p = peers_[e];
    if (host_of_engine(e) == host_of_engine(my_engine_) || p.left || roster_.engines[e].caller_driven ||
        (by_lanes && !p.channel))
      continue;
    Nanos heard = p.channel ? p.channel->last_heard() : Nanos{};
    if (!by_lanes) heard = std::max(heard, membership_->last_heard(e));
    if (now - heard <= limit - options_.settings.heartbeat_interval) return false;
    several |= first != -1 && host_of_engine(e) != first;
    first = host_of_engine(e);
  }
  return several;
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
                           const auto& slots = op.run->slots;
                           return std::any_of(slots.begin(), slots.end(),
                                              [&](const RunSlot& slot) { return slot.engine == engine; });
                         }) ||
             std::any_of(m->messages.begin(), m->messages.end(), [&](const auto& flow) {
               return flow && flow->peer == peers_[engine].messages.get() && !flow->idle();
             });
    });
    if (waits) out.push_back({g->flow, g->epoch});
  }
  peers_[engine].channel->for_each_unacknowledged([&](const wire::Header& h) {
    const GroupEpoch group{h.flow & ~wire::kMessageFlow, h.epoch};
    if (std::find(out.begin(), out.end(), group) == out.end()) out.push_back(group);
  });
  return out;
}

}  // namespace canarynet
