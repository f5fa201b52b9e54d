#include "sync/death_agreement.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet::sync {

DeathAgreement::DeathAgreement(int worker, int workers, int colayers)
    : worker_(worker), dead_(workers), reported_(workers), standings_(static_cast<std::size_t>(workers)) {
  for (Standing& s : standings_) s.next_rounds.resize(static_cast<std::size_t>(colayers));
}

void DeathAgreement::restart(const Standing& own) {
  CANARY_CHECK(own.next_rounds.size() == colayers(), "a standing of another session");
  active_ = true;
  reported_.clear();
  reported_.add(worker_);
  standings_[static_cast<std::size_t>(worker_)] = own;
}

bool DeathAgreement::died(int worker, const Standing& own) {
  if (worker == worker_ || dead_.has(worker)) return false;
  dead_.add(worker);
  restart(own);
  return true;
}

DeathAgreement::Heard DeathAgreement::heard(int from, const Report& report, const Standing& own) {
  const bool sound = from >= 0 && from < dead_.workers() && from != worker_ &&
                     report.dead.workers() == dead_.workers() && !report.dead.has(from) && !report.dead.empty() &&
                     report.standing.next_rounds.size() == colayers() && report.standing.iteration >= 0;
  if (!sound) return Heard::kImpossible;
  if (dead_.has(from)) return Heard::kIgnored;
  if (report.dead.has(worker_)) return Heard::kExpelled;
  WorkerSet all = dead_;
  all.unite(report.dead);
  const bool more = all != dead_;
  const bool same = report.dead == all;
  if (!more && (!same || !active_ || reported_.has(from))) return Heard::kIgnored;
  if (same) {
    // A round takes everybody, so nobody is two ahead of anybody.
    const auto apart = [&](const Standing& other) {
      for (std::size_t z = 0; z < colayers(); ++z) {
        const std::uint32_t a = report.standing.next_rounds[z], b = other.next_rounds[z];
        if (std::max(a, b) - std::min(a, b) > 1) return true;
      }
      return false;
    };
    bool wrong = apart(more ? own : standing(worker_));
    for (int w = more ? -1 : reported_.next(); w >= 0; w = reported_.next(w + 1)) wrong |= apart(standing(w));
    if (wrong) return Heard::kImpossible;
  }
  if (more) {
    dead_ = all;
    restart(own);
  }
  if (same) {
    reported_.add(from);
    standings_[static_cast<std::size_t>(from)] = report.standing;
  }
  return more ? Heard::kSay : Heard::kNoted;
}

DeathAgreement::Report DeathAgreement::report() const { return {dead_, standing(worker_)}; }

std::uint32_t DeathAgreement::next_round(int z) const {
  CANARY_CHECK(decided(), "asked before everybody has reported");
  std::uint32_t next = 0;
  for (int w = reported_.next(); w >= 0; w = reported_.next(w + 1))
    next = std::max(next, standing(w).next_rounds[static_cast<std::size_t>(z)]);
  return next;
}

Iteration DeathAgreement::newest() const {
  CANARY_CHECK(decided(), "asked before everybody has reported");
  Iteration newest = 0;
  for (int w = reported_.next(); w >= 0; w = reported_.next(w + 1)) newest = std::max(newest, standing(w).iteration);
  return newest;
}

int DeathAgreement::holder(int z) const {
  const std::uint32_t next = next_round(z);
  int holder = -1;
  bool all = true;
  for (int w = reported_.next(); w >= 0; w = reported_.next(w + 1)) {
    const bool has = standing(w).next_rounds[static_cast<std::size_t>(z)] == next;
    all &= has;
    if (has && holder < 0) holder = w;
  }
  return all ? -1 : holder;
}

WorkerSet DeathAgreement::lacking(int z) const {
  WorkerSet lacking(dead_.workers());
  if (holder(z) != worker_) return lacking;
  for (int w = reported_.next(); w >= 0; w = reported_.next(w + 1)) {
    if (standing(w).next_rounds[static_cast<std::size_t>(z)] != next_round(z)) lacking.add(w);
  }
  return lacking;
}

bool DeathAgreement::takes(int from, const WorkerSet& dead, int z, std::uint32_t round, std::uint32_t own) const {
  if (!active_ || from < 0 || from >= dead_.workers() || dead_.has(from) || dead != dead_) return false;
  if (z < 0 || static_cast<std::size_t>(z) >= colayers() || round != own) return false;
  // Only what this worker has said to lack.
  return standing(worker_).next_rounds[static_cast<std::size_t>(z)] == round;
}

}  // namespace canarynet::sync
