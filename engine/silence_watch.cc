#include "engine/silence_watch.h"

#include <algorithm>
#include <utility>

#include "base/duration_text.h"
#include "base/log.h"
#include "control/text.h"

namespace canarynet {
namespace {

constexpr int kUnheardBeats = 3;  // as many heartbeats did not come

}  // namespace

void SilenceWatch::set_host(std::string name, PulseSource pulse_of) {
  my_host_ = std::move(name);
  pulse_of_ = std::move(pulse_of);
}

std::string SilenceWatch::limit_text() const {
  return "CANARY_SILENCE_LIMIT (" + control::duration_text(settings_.silence_limit) + ")";
}

Nanos SilenceWatch::last_word(const Peer& p) const {
  const auto word = host_.word_over_control(p);
  Nanos heard = p.met;
  if (word) heard = std::max(heard, word->heard);
  if (!p.channel) return heard;
  const Nanos lanes = std::max(p.channel->last_heard(), p.met);
  // Before a channel was up, that is when it was opened: it has had so long to come up, and no word was that.
  return word && !p.channel->ever_up() ? std::min(lanes, heard) : lanes;
}

bool SilenceWatch::should_speak(const Peer& p) {
  return p.speaks && !p.ended() && !(p.channel && p.channel->peer_left());
}

bool SilenceWatch::unheard(const Peer& p, Nanos now) const {
  const Nanos beat = settings_.heartbeat_interval, silent = now - last_word(p);
  return silent > beat * kUnheardBeats && silent <= settings_.silence_limit + beat * 5 && should_speak(p);
}

// --- warnings --------------------------------------------------------------------------------------------------------

// A silence of that length that nobody has been told of. A channel that does not come up has other reasons than a
// process's speed.
bool SilenceWatch::is_news(Peer& p, Nanos now, Nanos limit) const {
  if (!should_speak(p) || p.idle || p.silent_since != Nanos::max() || now - last_word(p) <= limit) return false;
  return !p.neighbour || peers_.no_lane(p).obstacle != Obstacle::kNone || !merely_starved(p, now);
}

// One whose silence was told.
bool SilenceWatch::is_back(const Peer& p, Nanos now) const {
  return p.silent_since != Nanos::max() && last_word(p) > p.silent_since &&
         now - last_word(p) <= settings_.heartbeat_interval * kUnheardBeats;
}

bool SilenceWatch::speaks_over_control(const Peer& p, Nanos now) const {
  const auto word = host_.word_over_control(p);
  return word && now - std::max(word->heard, p.met) <= settings_.heartbeat_interval * kUnheardBeats;
}

// Those from `first` on that are wanted; where its host is not known, itself alone.
template <typename Wanted>
std::vector<Peer*> SilenceWatch::of_its_host(std::size_t first, Wanted wanted) const {
  std::vector<Peer*> out;
  const std::span<Peer* const> all = peers_.all();
  for (std::size_t i = first; i < all.size(); ++i) {
    const bool same = i == first || (all[i]->host == all[first]->host && !all[first]->host.empty());
    if (same && wanted(*all[i])) out.push_back(all[i]);
  }
  return out;
}

void SilenceWatch::warn(Nanos now) {
  if (settings_.silence_warning.count == 0) return;
  const std::span<Peer* const> all = peers_.all();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Peer& p = *all[i];
    if (p.silent_since != Nanos::max()) {
      if (!should_speak(p)) {
        p.silent_since = Nanos::max();  // its end was told
      } else if (is_back(p, now)) {
        tell_return(i, now);
      }
    } else if (is_news(p, now, settings_.silence_warning)) {
      tell(i, now);
    }
  }
}

void SilenceWatch::tell(std::size_t first, Nanos now) {
  const Nanos limit = settings_.silence_warning, beat = settings_.heartbeat_interval;
  // Those of its host that will follow within a beat or two are told of with it.
  const Nanos soon = std::min(limit, std::max(limit - beat * 2, beat * kUnheardBeats));
  const auto silent = of_its_host(first, [&](Peer& o) { return is_news(o, now, soon); });
  const Peer& p = *peers_.all()[first];
  const bool has_control = host_.word_over_control(p).has_value();
  const bool lanes_only = p.channel && speaks_over_control(p, now);
  std::string text = "silent for " + milliseconds(now - last_word(p));
  if (p.channel) text += " via " + p.channel->describe_paths() + peers_.no_lane(p).why;
  if (lanes_only) {
    text += ", while control is alive";
  } else if (has_control) {
    text += " and over control";
  }
  if (alone(now, lanes_only, limit)) text += ", like every other host: this host's own NICs may be dark";
  const auto [who, where] = host_.names_of(std::vector<const Peer*>(silent.begin(), silent.end()));
  log(LogLevel::kWarn, "%s: %s; what waits for it goes on when it is heard, or ends after %s%s", who.c_str(),
      text.c_str(), limit_text().c_str(), where.c_str());
  for (Peer* o : silent) o->silent_since = last_word(*o);
}

void SilenceWatch::tell_return(std::size_t first, Nanos now) {
  const auto back = of_its_host(first, [&](const Peer& o) { return is_back(o, now); });
  const Peer& p = *peers_.all()[first];
  const std::string who = host_.names_of(std::vector<const Peer*>(back.begin(), back.end())).who;
  log(LogLevel::kWarn, "%s: heard again after %s", who.c_str(), milliseconds(last_word(p) - p.silent_since).c_str());
  for (Peer* o : back) o->silent_since = Nanos::max();
}

// --- judgement -------------------------------------------------------------------------------------------------------

SilenceWatch::Fate SilenceWatch::judge(Peer& p, Nanos now) {
  const Nanos limit = settings_.silence_limit, warned = settings_.silence_warning;
  const auto word = host_.word_over_control(p);
  if (!word) {
    if (const Fate proved = judge_by_lanes(p, now); proved != Fate::kLives) return proved;
  }
  if (!should_speak(p)) return Fate::kLives;
  Nanos heard = p.met;
  if (word) heard = std::max(heard, word->heard);
  // A channel that was opened to somebody silent has heard nothing of it: a word over control counts instead.
  if (p.channel && (!word || p.channel->ever_up())) heard = std::max(heard, p.channel->last_heard());
  const bool suspicious = now - heard > (warned.count != 0 ? std::min(limit, warned) : limit) * 3 / 4;
  if (!suspicious) p.looked = false;
  const bool starved = suspicious && p.neighbour && merely_starved(p, now);
  // Silent for as long as the limit: the beats that were due have not come. Hearsay is older by another beat.
  const int beats = word && word->relayed ? 2 : 1;
  return !starved && now - heard > limit + settings_.heartbeat_interval * beats ? Fate::kSilent : Fate::kLives;
}

// Judges a peer that nothing else joins to this process.
SilenceWatch::Fate SilenceWatch::judge_by_lanes(Peer& p, Nanos now) const {
  if (!p.channel) return Fate::kLives;
  const Channel& channel = *p.channel;
  if (channel.peer_left()) return Fate::kLeft;
  const Nanos refused = channel.refused_since();
  if (refused != Nanos::max() && now - refused > std::min(settings_.silence_limit, 1_s)) return Fate::kRefuses;
  if (!channel.ever_up()) return now - p.met > settings_.join_timeout ? Fate::kNotMet : Fate::kLives;
  if (!channel.hung_up()) p.hung_up_since = Nanos::max();
  if (channel.hung_up() && p.hung_up_since == Nanos::max()) p.hung_up_since = now;
  // A reset on the way is answered by a new connection within that time; a process that is gone answers nothing.
  const bool over =
      p.hung_up_since != Nanos::max() && now - p.hung_up_since > std::min(settings_.silence_limit / 2, 300_ms);
  return over ? Fate::kHungUp : Fate::kLives;
}

// A silent process of this host that gets no core, or few, has merely not had its turn to speak, and its end would show
// as a hang-up. One that was stopped does not run and does not want to. Sleeping ones run every kLooksEvery: two looks
// with more than that between them tell.
bool SilenceWatch::merely_starved(Peer& p, Nanos now) const {
  if (!p.looked) {
    p.pulse = pulse_of_(p.pid);
    p.looked = true;
    p.still = false;
    p.looked_by = Nanos::max();
    return true;
  }
  // This process may have lost its core between the beginning of a cycle and the look in it: the next cycle's beginning
  // is surely later.
  if (p.looked_by == Nanos::max()) p.looked_by = now;
  if (now - p.looked_by >= kLooksEvery * 2) {
    const ProcessPulse pulse = pulse_of_(p.pid);
    p.still = !pulse.wants_core && pulse.ran_ns == p.pulse.ran_ns;
    p.pulse = pulse;
    p.looked_by = Nanos::max();
  }
  return !p.still;
}

bool SilenceWatch::alone(Nanos now, bool by_lanes, Nanos limit) const {
  const std::string* first = nullptr;
  bool several = false;
  for (const Peer* p : peers_.all()) {
    if (p->host == my_host_ || p->left || !p->speaks || (by_lanes && !p->channel)) continue;
    const auto word = host_.word_over_control(*p);
    if (!p->channel && !word) continue;  // its end was told
    const bool opens = p->channel && word && !p->channel->ever_up();
    Nanos heard = p->channel && !opens ? p->channel->last_heard() : Nanos{};
    if (word && !by_lanes) heard = std::max(heard, word->heard);
    const auto lately = [&](Nanos then) { return now - then <= limit - settings_.heartbeat_interval; };
    if (lately(heard)) return false;
    if (by_lanes && opens && lately(p->channel->last_heard())) continue;  // it may come up yet
    several |= first != nullptr && p->host != *first;
    first = &p->host;
  }
  return several;
}

}  // namespace canarynet
