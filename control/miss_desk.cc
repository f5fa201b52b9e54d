#include "control/miss_desk.h"

#include <algorithm>
#include <map>

#include "control/text.h"

namespace canarynet::control {

void MissDesk::open(const Roster& roster) {
  roster_ = &roster;
  reports_.resize(roster.engines.size());
  gone_.resize(roster.engines.size());
}

void MissDesk::report(Nanos now, std::uint32_t engine, std::vector<Missed> missed) {
  if (engine >= reports_.size() || gone_[engine]) return;
  std::erase_if(missed,
                [&](const Missed& m) { return m.engine >= gone_.size() || m.engine == engine || gone_[m.engine]; });
  for (const Missed& m : missed) {
    for (const GroupEpoch& group : m.waiting) {
      if (complained_.insert(group).second) complaints_.push_back({group, now});
    }
  }
  reports_[engine] = std::move(missed);
}

void MissDesk::forget(std::uint32_t engine) {
  if (engine >= gone_.size()) return;
  gone_[engine] = true;
  reports_[engine].clear();
  for (auto& report : reports_) std::erase_if(report, [&](const Missed& m) { return m.engine == engine; });
}

std::vector<MissDesk::Standing> MissDesk::standings() const {
  std::vector<Standing> out(reports_.size());
  for (std::uint32_t e = 0; e < out.size(); ++e) {
    for (const Missed& m : reports_[e]) {
      // What one end says of the other's hearing, that one says itself once it has seen it.
      const bool said = m.deaf && std::any_of(reports_[m.engine].begin(), reports_[m.engine].end(),
                                              [&](const Missed& its) { return its.engine == e && !its.deaf; });
      if (!said) ++out[m.deaf ? e : m.engine].missed_by;
      out[m.engine].cut_off_from.push_back(e);
      out[e].cut_off_from.push_back(m.engine);
    }
  }
  for_each_obstacle([&](std::uint32_t, const Missed&, std::uint32_t at) { ++out[at].obstacles; });
  for (Standing& s : out) {
    std::sort(s.cut_off_from.begin(), s.cut_off_from.end());
    s.cut_off_from.erase(std::unique(s.cut_off_from.begin(), s.cut_off_from.end()), s.cut_off_from.end());
  }
  return out;
}

// fn(reporter, what it misses, the end where the obstacle lies).
template <typename Fn>
void MissDesk::for_each_obstacle(Fn fn) const {
  for (std::uint32_t e = 0; e < reports_.size(); ++e) {
    for (const Missed& m : reports_[e]) {
      if (m.obstacle != Obstacle::kNone) fn(e, m, m.obstacle == Obstacle::kHere ? e : m.engine);
    }
  }
}

std::string MissDesk::obstacle_text(std::uint32_t engine) const {
  std::string out;
  bool own = false;
  for_each_obstacle([&](std::uint32_t reporter, const Missed& m, std::uint32_t at) {
    if ((reporter != engine && m.engine != engine) || own || (!out.empty() && at != engine)) return;
    own = at == engine;
    out = "; " + ranks_text(roster_->engines[reporter].ranks) + " says" + m.why;
  });
  return out;
}

std::vector<Verdict> MissDesk::poll(Nanos now) {
  std::map<GroupEpoch, std::set<std::uint32_t>> due;  // the ends, by group
  for (; now >= next_deadline(); complaints_.pop_front()) {
    due[complaints_.front().group];
    complained_.erase(complaints_.front().group);
  }
  if (due.empty()) return {};
  for (std::uint32_t e = 0; e < reports_.size(); ++e) {
    for (const Missed& m : reports_[e]) {
      for (const GroupEpoch& group : m.waiting) {
        if (const auto found = due.find(group); found != due.end()) found->second.insert({e, m.engine});
      }
    }
  }
  const std::vector<Standing> all = standings();
  std::vector<Verdict> verdicts;
  for (const auto& [group, ends] : due) {
    // If no end is left, the complaint was taken back.
    if (!ends.empty()) verdicts.push_back(judge(group, ends, all));
  }
  return verdicts;
}

Nanos MissDesk::next_deadline() const {
  return complaints_.empty() ? Nanos::max() : complaints_.front().since + window_;
}

// `ends`: of the edges that the group's operations need. The one where most of the known obstacles lie is the culprit;
// where none is known, the one in most of the missing pairs. Among equals it is the one that most engines do not hear
// (it may hear them, as where one direction is cut), else the last: nothing tells them apart, and the text says so.
Verdict MissDesk::judge(const GroupEpoch& group, const std::set<std::uint32_t>& ends,
                        const std::vector<Standing>& standings) const {
  const auto weight = [&](std::uint32_t e) { return std::make_pair(standings[e].weight(), e); };
  const std::uint32_t culprit = *std::max_element(
      ends.begin(), ends.end(), [&](std::uint32_t a, std::uint32_t b) { return weight(a) < weight(b); });
  const std::vector<std::uint32_t>& others = standings[culprit].cut_off_from;
  const auto ranks_of = [&](const std::vector<std::uint32_t>& engines) {
    std::vector<int> ranks;
    for (const std::uint32_t e : engines) {
      const std::vector<int>& its = roster_->engines[e].ranks;
      ranks.insert(ranks.end(), its.begin(), its.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  };
  std::vector<std::uint32_t> equals;
  for (const std::uint32_t e : ends) {
    if (e != culprit && standings[e].weight() == standings[culprit].weight()) equals.push_back(e);
  }
  const EngineInfo& info = roster_->engines[culprit];
  Verdict v;
  v.code = CANARY_NO_PATH;
  v.rank = info.ranks.front();
  v.flow = group.flow;
  v.epoch = group.epoch;
  v.reporter = 0;
  if (others.size() == 1) {
    v.text = engine_text(roster_->engines[others.front()]) + " and " + engine_text(info) +
             " can't reach each other: no lane works over " + nics(others.front(), culprit);
  } else {
    v.text = "no lane to " + engine_text(info) + " works: " + ranks_text(ranks_of(others)) +
             " can't reach it, the first of them over " + nics(others.front(), culprit);
    if (!equals.empty()) v.text += "; as many others can't reach " + ranks_text(ranks_of(equals));
  }
  v.text += " while control is alive" + obstacle_text(culprit);
  return v;
}

// The pairs of NICs that should join them, as `a` sees it.
std::string MissDesk::nics(std::uint32_t a, std::uint32_t b) const {
  const std::vector<Rail>&mine = roster_->engines[a].rails, &theirs = roster_->engines[b].rails;
  std::string out;
  for (const RailPair& pair : pair_rails(mine, theirs, roster_->pairing)) {
    out += (out.empty() ? "" : ", ") + mine[static_cast<std::size_t>(pair.local)].device + ">" +
           theirs[static_cast<std::size_t>(pair.remote)].device;
  }
  return out;
}

}  // namespace canarynet::control
