#include "tools/sim/train/sessions.h"

#include <algorithm>

#include "base/check.h"

namespace canarynet::sim {

using sync::Contributors;
using sync::Iteration;
using sync::SessionRounds;

Sessions::Sessions(const Options& options, Engines* engines, const std::vector<Slice>* slices,
                   std::function<std::vector<float>&(int)> parameters_of)
    : options_(options), engines_(engines), slices_(slices), parameters_of_(std::move(parameters_of)) {
  workers_.resize(static_cast<std::size_t>(options.workers));
  for (int w = 0; w < options.workers; ++w) {
    SessionRounds::Options rounds;
    rounds.worker = w;
    rounds.workers = options.workers;
    rounds.colayers = static_cast<int>(slices->size());
    rounds.thresholds = options.thresholds;
    rounds.linger = options.linger;
    const Status fits = SessionRounds::check(rounds);
    CANARY_CHECK(fits.ok(), fits.text().c_str());
    at(w).rounds = std::make_unique<SessionRounds>(rounds);
    at(w).colayers.resize(slices->size());
    for (std::size_t z = 0; z < slices->size(); ++z) at(w).colayers[z].accumulated.resize((*slices)[z].size);
  }
}

bool Sessions::push(int worker, int z, std::span<const float> gradient) {
  std::vector<float>& accumulated = at(worker, z).accumulated;
  switch (at(worker).rounds->push(engines_->now(), z)) {
    case SessionRounds::Push::kRepeated:
      CANARY_CHECK(false, "a colayer was pushed twice in one iteration");
    case SessionRounds::Push::kDropped:
      clear(worker);
      return false;
    case SessionRounds::Push::kReplaced:
      std::fill(accumulated.begin(), accumulated.end(), 0.0f);
      break;
    case SessionRounds::Push::kAdded:
      break;
  }
  for (std::size_t i = 0; i < accumulated.size(); ++i) accumulated[i] += gradient[i];
  start_due(worker);
  return true;
}

void Sessions::step(int worker, Engines::Done entered) {
  at(worker).entered = std::move(entered);
  try_step(worker);
}

void Sessions::try_step(int worker) {
  Worker& me = at(worker);
  switch (me.rounds->step(engines_->now())) {
    case SessionRounds::Step::kEntered:
      take_backlog(worker);
      return std::exchange(me.entered, {})();
    case SessionRounds::Step::kBlocked:
      return start_due(worker);
    case SessionRounds::Step::kOvertime:
      clear(worker);
      return pull(worker, std::exchange(me.entered, {}));
    case SessionRounds::Step::kUnpushed:
      CANARY_CHECK(false, "an iteration ended before all of its gradient was pushed");
  }
}

void Sessions::clear(int worker) {
  for (Colayer& colayer : at(worker).colayers) std::fill(colayer.accumulated.begin(), colayer.accumulated.end(), 0.0f);
}

void Sessions::take_backlog(int worker) {
  std::vector<float>& parameters = parameters_of_(worker);
  for (int z = 0; z < static_cast<int>(slices_->size()); ++z) {
    const auto mine = slice(z).of(std::span(parameters));
    for (const std::vector<float>& sum : at(worker, z).backlog) {
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] -= options_.scale * sum[i];
    }
    at(worker, z).backlog.clear();
    at(worker).rounds->clear_backlog(z);
  }
}

void Sessions::start_due(int worker) {
  Worker& me = at(worker);
  for (int z = me.rounds->due(engines_->now()); z >= 0; z = me.rounds->due(engines_->now())) start(worker, z);
  const Nanos deadline = me.rounds->next_deadline();
  if (deadline == Nanos::max() || deadline == me.deadline) return;
  me.deadline = deadline;
  engines_->after(std::max(deadline - engines_->now(), Nanos{}), [this, worker] {
    at(worker).deadline = Nanos::max();
    start_due(worker);
  });
}

// The first and the last iteration that a worker's part holds are exact in floats up to 2^24.
void Sessions::start(int worker, int z) {
  Worker& me = at(worker);
  Colayer& colayer = at(worker, z);
  const std::uint32_t round = me.rounds->next_round(z);
  const Iteration t = me.rounds->iteration();
  const SessionRounds::Input input = me.rounds->join(engines_->now(), z);
  if (input.discard_acc) std::fill(colayer.accumulated.begin(), colayer.accumulated.end(), 0.0f);
  const std::size_t size = colayer.accumulated.size();
  colayer.in = colayer.accumulated;
  colayer.in.resize(size + 2 * workers_.size());
  if (!input.tags.empty()) {
    colayer.in[size + 2 * static_cast<std::size_t>(worker)] = static_cast<float>(input.tags.first);
    colayer.in[size + 2 * static_cast<std::size_t>(worker) + 1] = static_cast<float>(input.tags.last);
  }
  std::fill(colayer.accumulated.begin(), colayer.accumulated.end(), 0.0f);
  if (input.opens) {
    engines_->after(options_.notice, [this, worker, z, round, t, newest = me.rounds->newest()] {
      for (int j = 0; j < options_.workers; ++j) {
        if (j == worker) continue;
        at(j).rounds->opened(z, 1, round, newest, worker, t);
        start_due(j);
      }
    });
  }
  engines_->sum(worker, {}, z + 1, colayer.in, [this, worker, z] { committed(worker, z); });
}

void Sessions::committed(int worker, int z) {
  Worker& me = at(worker);
  Colayer& colayer = at(worker, z);
  const std::size_t size = colayer.accumulated.size();
  Contributors set(options_.workers);
  for (int j = 0; j < options_.workers; ++j) {
    const auto first = static_cast<Iteration>(colayer.in[size + 2 * static_cast<std::size_t>(j)]);
    const auto last = static_cast<Iteration>(colayer.in[size + 2 * static_cast<std::size_t>(j) + 1]);
    if (last > 0) set.add(j, {first, last});
  }
  if (worker == 0) {
    ++rounds_;
    contributions_ += set.set().count();
  }
  colayer.in.resize(size);
  switch (me.rounds->commit(engines_->now(), z, set)) {
    case SessionRounds::Commit::kRefused:
      CANARY_CHECK(false, "a round lost its gradient");
    case SessionRounds::Commit::kSkipped:
      break;
    case SessionRounds::Commit::kMerged:
      for (std::size_t i = 0; i < size; ++i) colayer.backlog[0][i] += colayer.backlog[1][i];
      colayer.backlog.erase(colayer.backlog.begin() + 1);
      [[fallthrough]];
    case SessionRounds::Commit::kAppended:
      colayer.backlog.push_back(std::move(colayer.in));
  }
  if (me.entered) try_step(worker);
  start_due(worker);
}

void Sessions::pull(int worker, Engines::Done pulled) {
  ++pulls_;
  engines_->after(options_.notice, [this, worker, pulled = std::move(pulled)] {
    int owner = 0;
    for (int j = 0; j < options_.workers; ++j) {
      if (at(j).rounds->iteration() > at(owner).rounds->iteration()) owner = j;
    }
    hand_over(worker, owner, pulled);
  });
}

// A snapshot: the owner's parameters as they are now, with the rounds that are in them.
void Sessions::hand_over(int worker, int owner, Engines::Done pulled) {
  const Iteration t = at(owner).rounds->iteration();
  std::vector<std::uint32_t> applied;
  for (int z = 0; z < static_cast<int>(slices_->size()); ++z) applied.push_back(at(owner).rounds->applied_before(z));
  engines_->transfer(owner, worker, parameters_of_(owner),
                     [this, worker, t, applied, pulled = std::move(pulled)](std::span<const float> parameters) {
                       Worker& me = at(worker);
                       std::vector<std::vector<SessionRounds::Backlog>> before;
                       for (int z = 0; z < static_cast<int>(slices_->size()); ++z) {
                         const auto entries = me.rounds->backlog(z);
                         before.emplace_back(entries.begin(), entries.end());
                       }
                       if (!me.rounds->adopt(engines_->now(), t, applied)) return pull(worker, pulled);
                       clear(worker);
                       parameters_of_(worker).assign(parameters.begin(), parameters.end());
                       for (std::size_t z = 0; z < slices_->size(); ++z) {
                         std::vector<std::vector<float>>& backlog = me.colayers[z].backlog;
                         std::vector<std::vector<float>> kept;
                         for (std::size_t i = 0; i < backlog.size(); ++i) {
                           if (before[z][i].last_round >= applied[z]) kept.push_back(std::move(backlog[i]));
                         }
                         backlog = std::move(kept);
                       }
                       pulled();
                     });
}

std::uint64_t Sessions::dropped() const {
  std::uint64_t sum = 0;
  for (const Worker& worker : workers_) sum += worker.rounds->dropped();
  return sum;
}

}  // namespace canarynet::sim
