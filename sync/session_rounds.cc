#include "sync/session_rounds.h"

#include <algorithm>
#include <string>
#include <utility>

namespace canarynet::sync {
namespace {

// A worker that is late does not know who is there, so it gives up only when nine of ten of the last gradients were
// sooner. By their median equal workers would leave one another out every now and then.
constexpr int kUsualPercent = 90;
constexpr int kRowsMax = 1 << 20;
constexpr std::int64_t kIndexMax = 1 << 22;  // words of 64 bits, one for 64 workers, in all rows and colayers

Iteration rows_bound(const SessionRounds::Options& o) {
  return o.thresholds.staleness == Thresholds::kUnbounded ? o.staleness_max
                                                          : std::max(o.staleness_max, o.thresholds.staleness);
}

}  // namespace

Status SessionRounds::check(const Options& o) {
  const auto invalid = [](std::string text) { return Status(CANARY_INVALID_ARGUMENT, "session: " + std::move(text)); };
  if (o.workers < 1 || o.workers > 0xffff) return invalid(std::to_string(o.workers) + " workers (1 to 65535)");
  if (o.worker < 0 || o.worker >= o.workers) {
    return invalid("worker " + std::to_string(o.worker) + " of " + std::to_string(o.workers));
  }
  if (o.colayers < 1 || o.colayers > 0xffff) return invalid(std::to_string(o.colayers) + " colayers (1 to 65535)");
  if (o.thresholds.staleness < 0) return invalid("a negative staleness bound");
  if (o.thresholds.proportion < 0 || o.thresholds.proportion > o.colayers) {
    return invalid("proportion " + std::to_string(o.thresholds.proportion) + " of " + std::to_string(o.colayers) +
                   " colayers");
  }
  if (o.thresholds.at_bound == AtBound::kWait && o.thresholds.staleness == Thresholds::kUnbounded) {
    return invalid("mode wait needs a bound to wait at");
  }
  if (o.thresholds.quorum < 1 || o.thresholds.quorum > 100) {
    return invalid("a quorum of " + std::to_string(o.thresholds.quorum) + " percent");
  }
  if (o.thresholds.absences < 1 || o.thresholds.absences > Thresholds::kAbsencesMax) {
    return invalid("a worker that may be absent from " + std::to_string(o.thresholds.absences) +
                   " steps in a row (1 to 2^20)");
  }
  if (rows_bound(o) > kRowsMax) return invalid("staleness bound " + std::to_string(rows_bound(o)) + " (at most 2^20)");
  const std::int64_t words = std::int64_t{rows_bound(o) + 3} * o.colayers * ((o.workers + 63) / 64);
  if (words > kIndexMax) {
    return invalid("an index of " + std::to_string(rows_bound(o) + 3) + " rows, " + std::to_string(o.colayers) +
                   " colayers and " + std::to_string(o.workers) + " workers (at most 2^22 words of 64 workers)");
  }
  if (o.backlog_max < 2) return invalid("a backlog of less than 2 results");
  if (o.linger && *o.linger < Nanos{}) return invalid("a negative linger");
  return {};
}

SessionRounds::SessionRounds(const Options& options)
    : options_(options),
      thresholds_(options.thresholds),
      epoch_(options.epoch),
      members_(WorkerSet::all(options.workers)),
      index_(options.workers, options.colayers,
             std::max(gei_rows(rows_bound(options)),
                      options.thresholds.staleness == Thresholds::kUnbounded ? gei_rows(Thresholds::kUnbounded) : 0)),
      colayers_(static_cast<std::size_t>(options.colayers)),
      merged_(static_cast<std::size_t>(options.workers) * static_cast<std::size_t>(options.colayers)),
      seen_(static_cast<std::size_t>(options.workers)),
      complete_(static_cast<std::size_t>(options.workers)),
      absences_(static_cast<std::size_t>(options.workers)),
      history_(options.workers, kUsualPercent),
      first_(static_cast<std::size_t>(index_.rows())) {
  for (auto& c : colayers_) {
    c.last = Contributors(options.workers);
    c.backlog.reserve(static_cast<std::size_t>(options.backlog_max));
  }
  enter({}, 1);
}

Status SessionRounds::set_thresholds(const Thresholds& thresholds) {
  Options wanted = options_;
  wanted.thresholds = thresholds;
  if (Status status = check(wanted); !status.ok()) return status;
  if (thresholds.staleness != Thresholds::kUnbounded && gei_rows(thresholds.staleness) > index_.rows()) {
    return {CANARY_INVALID_ARGUMENT, "session: staleness bound " + std::to_string(thresholds.staleness) + " needs " +
                                         std::to_string(gei_rows(thresholds.staleness)) +
                                         " rows of the index, and this session was opened with " +
                                         std::to_string(index_.rows())};
  }
  thresholds_ = thresholds;
  return {};
}

void SessionRounds::observe(Iteration newest) {
  if (newest > index_.newest()) index_.enter(newest);
}

Nanos SessionRounds::linger() const {
  // Nobody's round can be ridden on where all join with data only.
  if (only_with_data()) return {};
  return options_.linger ? *options_.linger : iteration_time_.median() / 4;
}

// The rule, for a gradient of iteration t of this worker.
bool SessionRounds::beyond_bound(Iteration t) const {
  return thresholds_.at_bound == AtBound::kDrop && index_.overtime(options_.worker, t, thresholds_);
}

void SessionRounds::drop(IterationRange* range) {
  dropped_ += static_cast<std::uint64_t>(range->count());
  *range = {};
}

void SessionRounds::go_overtime() {
  overtime_ = true;
  for (auto& c : colayers_) drop(&c.acc);
}

void SessionRounds::hear(int j, Iteration iteration) {
  observe(iteration);
  Iteration& seen = seen_[static_cast<std::size_t>(j)];
  seen = std::max(seen, iteration);
}

void SessionRounds::enter(Nanos now, Iteration t) {
  iteration_ = t;
  entered_at_ = now;
  measured_ = false;
  blocked_ = awaits_itself_ = false;
  seen_[static_cast<std::size_t>(options_.worker)] = t;
  for (auto& c : colayers_) c.pushed = false;
  observe(t);
}

SessionRounds::Push SessionRounds::push(Nanos now, int z) {
  Colayer& c = colayer(z);
  if (c.pushed) return Push::kRepeated;
  c.pushed = true;
  if (z == options_.colayers - 1) {
    late_ = iteration_ > newest_first_ ? Nanos{} : now - first_of(iteration_);
    note_first(iteration_, now);
  }
  if (!overtime_ && beyond_bound(iteration_)) go_overtime();
  if (overtime_) {
    ++dropped_;
    return Push::kDropped;
  }
  if (c.acc.empty()) {
    c.acc = {iteration_, iteration_};
    c.acc_since = now;
    return Push::kAdded;
  }
  // A sum is let in or dropped as a whole, so its oldest gradient decides; and its tags have no holes.
  if (c.acc.last + 1 != iteration_ || beyond_bound(c.acc.first)) {
    drop(&c.acc);
    c.acc = {iteration_, iteration_};
    c.acc_since = now;
    return Push::kReplaced;
  }
  c.acc.last = iteration_;
  return Push::kAdded;
}

SessionRounds::Step SessionRounds::step(Nanos now) {
  if (overtime_) return Step::kOvertime;
  for (const auto& c : colayers_) {
    if (!c.pushed) return Step::kUnpushed;
  }
  if (!measured_) {
    iteration_time_.add(now - entered_at_);
    measured_ = true;
  }
  if (beyond_bound(iteration_)) {
    go_overtime();
    return Step::kOvertime;
  }
  if (waits()) {
    blocked_ = !may_enter(now);
    if (blocked_) return Step::kBlocked;
  }
  was_late_ += left_behind() ? 1 : 0;
  enter(now, left_behind() ? ahead() : iteration_ + 1);
  return Step::kEntered;
}

// Notes what it is that a step waits for, or without whom it goes on.
bool SessionRounds::may_enter(Nanos now) {
  waits_until_ = Nanos::max();
  // With s = 0 the own round must have come back, too. And a worker that goes on elsewhere leaves nothing behind: its
  // accumulators would have a hole.
  awaits_itself_ = (thresholds_.staleness == 0 || left_behind()) && complete(options_.worker) < iteration_;
  if (awaits_itself_) return false;
  const Iteration needed = iteration_ - thresholds_.staleness;
  int late = 0;
  bool awaits = !has_quorum();  // one of those who are late
  for (int j = members_.next(); j >= 0; j = members_.next(j + 1)) {
    if (j == options_.worker || complete(j) >= needed) continue;
    ++late;
    awaits |= absences_[static_cast<std::size_t>(j)] >= thresholds_.absences;
  }
  if (late == 0) return true;
  if (awaits || members_.count() - late < quorum_of(members_.count(), thresholds_.quorum)) return false;
  const Nanos patience = history_.patience(members_, thresholds_.quorum);
  if (patience == Nanos::max()) return false;
  waits_until_ = first_of(needed) + patience;
  if (now < waits_until_) return false;
  ++went_on_;
  for (int j = members_.next(); j >= 0; j = members_.next(j + 1)) {
    if (j != options_.worker && complete(j) < needed) ++absences_[static_cast<std::size_t>(j)];
  }
  return true;
}

bool SessionRounds::note_complete(int j) {
  Iteration complete = merged(j, 0);
  for (int z = 1; z < options_.colayers; ++z) complete = std::min(complete, merged(j, z));
  Iteration& known = complete_[static_cast<std::size_t>(j)];
  if (complete == known) return false;
  known = complete;
  if (complete != kNoMore) furthest_ = std::max(furthest_, complete);
  return true;
}

void SessionRounds::hear_settled(int j, int z, Iteration settled) {
  merged(j, z) = std::max(merged(j, z), settled);
  note_complete(j);
}

void SessionRounds::note_first(Iteration t, Nanos now) {
  const auto size = static_cast<Iteration>(first_.size());
  for (Iteration i = std::max(newest_first_ + 1, t - size + 1); i <= t; ++i)
    first_[static_cast<std::size_t>(i % size)] = now;
  newest_first_ = std::max(newest_first_, t);
}

// Of one that is not known any more: the oldest that is.
Nanos SessionRounds::first_of(Iteration t) const {
  const auto size = static_cast<Iteration>(first_.size());
  const Iteration known = std::max(t, newest_first_ - size + 1);
  return first_[static_cast<std::size_t>(known % size)];
}

// Of a round that is joined with data only. Its opener has a gradient of the iteration that it was last heard to be in,
// or of the one after those that have come from it. One that others wait for no longer is no reason to hurry.
void SessionRounds::note_opening(Nanos now, int z, int source) {
  if (!only_with_data()) return;
  Colayer& c = colayer(z);
  const Iteration t = std::max(std::min(merged(source, z), newest()) + 1, last_seen(source));
  if (t < iteration_ + (c.pushed ? 1 : 0)) return;
  c.awaited_since = std::min(c.awaited_since, now);
  if (z == options_.colayers - 1) note_first(t, now);
}

Nanos SessionRounds::cut_at(const Colayer& c) const {
  if (!c.wanted || !c.acc.empty() || c.awaited_since == Nanos::max() || !only_with_data() || !has_quorum())
    return Nanos::max();
  const Nanos patience = history_.patience(members_, thresholds_.quorum);
  return patience == Nanos::max() ? patience : c.awaited_since + patience;
}

// Entering t + 1 blocks while t + 1 - min t_j > s, where t_j is one more than the last iteration that worker j has
// finished, and finished means: all its colayers are in rounds committed here. Hearsay about t_j would let a worker go
// on without the values it waits for. One that was absent for too long is named before others, without whom the step
// might go on.
int SessionRounds::awaited(int z) const {
  const Iteration needed = iteration_ - thresholds_.staleness;
  int first = -1;
  for (int j = members_.next(); j >= 0; j = members_.next(j + 1)) {
    // With s = 0 the own round must have come back, too.
    if (j == options_.worker && thresholds_.staleness > 0) continue;
    if (merged(j, z) >= needed) continue;
    if (absences_[static_cast<std::size_t>(j)] >= thresholds_.absences) return j;
    if (first < 0) first = j;
  }
  return first;
}

Iteration SessionRounds::last_merged(int j) const {
  Iteration last = 0;
  for (int z = 0; z < options_.colayers; ++z) last = std::max(last, merged(j, z));
  return last;
}

int SessionRounds::awaited() const {
  for (int z = 0; blocked_ && z < options_.colayers; ++z) {
    if (colayer(z).joined) continue;  // who is missing in that round is for the round's own limits to say
    if (const int j = awaited(z); j >= 0) return j;
  }
  return -1;
}

std::uint32_t SessionRounds::applied_before(int z) const {
  const Colayer& c = colayer(z);
  return c.backlog.empty() ? std::max(c.round, c.apply_from) : c.backlog.front().first_round;
}

bool SessionRounds::adopt(Nanos now, Iteration t, std::span<const std::uint32_t> rounds) {
  if (rounds.size() != colayers_.size() || t <= iteration_) return false;
  observe(t);
  if (beyond_bound(t)) return false;
  for (std::size_t z = 0; z < colayers_.size(); ++z) {
    if (rounds[z] < applied_before(static_cast<int>(z))) return false;  // older than what this worker has applied
    if (rounds[z] > colayers_[z].round + 1) return false;               // nobody is more than one round ahead
    for (const Backlog& entry : colayers_[z].backlog) {
      if (entry.first_round < rounds[z] && rounds[z] <= entry.last_round) return false;
    }
  }
  for (std::size_t z = 0; z < colayers_.size(); ++z) {
    Colayer& c = colayers_[z];
    std::erase_if(c.backlog, [&](const Backlog& entry) { return entry.last_round < rounds[z]; });
    c.apply_from = rounds[z];
    drop(&c.acc);
  }
  overtime_ = false;
  enter(now, t);
  return true;
}

SessionRounds::Piece SessionRounds::arrive(Nanos now, int z, std::uint32_t epoch, std::uint32_t round, Iteration newest,
                                           int source, Iteration source_iteration) {
  Colayer& c = colayer(z);
  if (frozen_ || epoch != epoch_) return ++ignored_, Piece::kIgnore;
  observe(newest);
  hear(source, source_iteration);
  if (round == c.round) {
    if (c.joined) return Piece::kTake;
    c.wanted = true;
    note_opening(now, z, source);
    return Piece::kHold;
  }
  if (round == c.round + 1 && c.joined) {
    if (!c.boxed || last_seen(source) > last_seen(c.boxed_by)) c.boxed_by = source;
    if (!c.boxed) c.boxed_at = now;
    c.boxed = true;
    return Piece::kHold;
  }
  return ++ignored_, Piece::kIgnore;
}

int SessionRounds::due(Nanos now) const {
  if (frozen_) return -1;
  for (int z = 0; z < options_.colayers; ++z) {
    const Colayer& c = colayer(z);
    if (c.joined) continue;
    const bool lingered = !c.acc.empty() && (awaits_itself_ || now - c.acc_since >= linger());
    if (lingered || (c.wanted && !c.acc.empty())) return z;
    // In BSP a round waits for the worker's gradient, if there is one to come: not after the last one, nor before a
    // pull, nor while step() waits for another's gradient of this very colayer.
    const bool none_to_come = finished_ || overtime_ || (blocked_ && missing(z));
    if (c.wanted && (!only_with_data() || none_to_come)) return z;
    if (now >= cut_at(c) || !settled(z)) return z;
  }
  return -1;
}

Nanos SessionRounds::next_deadline() const {
  Nanos deadline = Nanos::max();
  if (frozen_) return deadline;
  for (const auto& c : colayers_) {
    if (!c.joined && !c.acc.empty()) deadline = std::min(deadline, c.acc_since + linger());
    if (!c.joined) deadline = std::min(deadline, cut_at(c));
  }
  return deadline;
}

SessionRounds::Input SessionRounds::join(Nanos, int z) {
  Colayer& c = colayer(z);
  CANARY_CHECK(!c.joined && !frozen_, "a round joined twice, or in a dead epoch");
  Input input;
  input.round = c.round;
  input.opens = !c.wanted;
  if (!c.acc.empty() && beyond_bound(c.acc.first)) {
    drop(&c.acc);
    input.discard_acc = true;
  }
  c.in = c.acc;
  c.acc = {};
  c.joined = true;
  c.wanted = false;
  c.awaited_since = Nanos::max();
  input.tags = c.in;
  if (!input.tags.empty() && z == options_.colayers - 1) input.late = late_;
  if (input.tags.empty()) input.settled = finished_ ? kNoMore : c.pushed ? iteration_ : iteration_ - 1;
  return input;
}

SessionRounds::Commit SessionRounds::commit(Nanos now, int z, const Contributors& set) {
  Colayer& c = colayer(z);
  CANARY_CHECK(c.joined, "the commit of a round that was not joined");
  if (!(set.of(options_.worker) == c.in)) return Commit::kRefused;
  index_.merge(z, set);
  for (int j = set.set().next(); j >= 0; j = set.set().next(j + 1)) {
    merged(j, z) = std::max(merged(j, z), set.of(j).last);
    // Its gradient is here in all colayers: what it has said of iterations without one does not count as its presence.
    if (note_complete(j) && complete(j) == set.of(j).last) absences_[static_cast<std::size_t>(j)] = 0;
    if (z == options_.colayers - 1) note_first(merged(j, z), now);
  }
  c.last = set;
  c.in = {};
  c.joined = false;
  c.wanted = c.boxed;
  if (std::exchange(c.boxed, false)) note_opening(c.boxed_at, z, c.boxed_by);
  const std::uint32_t round = c.round++;
  if (round < c.apply_from) return Commit::kSkipped;
  Commit outcome = Commit::kAppended;
  if (c.backlog.size() == static_cast<std::size_t>(options_.backlog_max)) {
    Backlog& first = c.backlog[0];
    const Backlog& second = c.backlog[1];
    first.last_round = second.last_round;
    first.gradients += second.gradients;
    if (first.oldest == 0 || (second.oldest != 0 && second.oldest < first.oldest)) first.oldest = second.oldest;
    c.backlog.erase(c.backlog.begin() + 1);
    outcome = Commit::kMerged;
  }
  c.backlog.push_back({round, round, set.gradients(), set.oldest()});
  return outcome;
}

SessionRounds::Recovery SessionRounds::recover(Nanos now, int z, std::uint32_t newest) {
  CANARY_CHECK(frozen_, "recovery of a living epoch");
  Colayer& c = colayer(z);
  c.wanted = false;
  c.boxed = false;
  // A commit needs every engine's input, so nobody is more than one round ahead, and only of a round that we joined.
  if (newest == c.round + 1 && c.joined) return Recovery::kFetchLast;
  if (newest != c.round) return Recovery::kInconsistent;
  if (!c.joined) return Recovery::kNothing;
  c.joined = false;
  const IterationRange in = c.in;
  c.in = {};
  if (in.empty()) return Recovery::kNothing;
  const bool gap = !c.acc.empty() && c.acc.first != in.last + 1;
  if (overtime_ || gap || beyond_bound(in.first)) {
    dropped_ += static_cast<std::uint64_t>(in.count());
    return Recovery::kDropInput;
  }
  c.acc = {in.first, std::max(in.last, c.acc.last)};
  c.acc_since = now;
  return Recovery::kReturnInput;
}

void SessionRounds::regroup(const WorkerSet& members, Iteration newest) {
  CANARY_CHECK(frozen_, "another membership while the epoch lives");
  members_ = members;
  index_.fall_back(std::max(newest, iteration_));
  newest_first_ = std::min(newest_first_, index_.newest());
  furthest_ = 0;
  for (int j = members.next(); j >= 0; j = members.next(j + 1)) {
    if (complete(j) != kNoMore) furthest_ = std::max(furthest_, complete(j));
  }
}

bool SessionRounds::resume(std::uint32_t epoch) {
  CANARY_CHECK(frozen_, "a new epoch while the old one lives");
  for (auto& c : colayers_) {
    CANARY_CHECK(!c.joined, "a new epoch before every round was settled");
    c.awaited_since = Nanos::max();
    c.wanted = false;
    c.boxed = false;
  }
  epoch_ = epoch;
  frozen_ = false;
  if (!overtime_ || beyond_bound(iteration_)) return false;
  overtime_ = false;
  for (auto& c : colayers_) c.pushed = true;  // the rest of the iteration was skipped
  return true;
}

}  // namespace canarynet::sync
