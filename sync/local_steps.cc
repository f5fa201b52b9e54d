#include "sync/local_steps.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace canarynet::sync {
namespace {

int steps_per_exchange(const LocalSteps& o) { return std::max(1, o.steps / o.fragments); }

// What is not known of a worker may be anything: nobody is further.
constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

// Nobody gets there; numbers of workers' memories are foreign.
constexpr std::int64_t kRoundsMax = std::int64_t{1} << 62;

}  // namespace

LocalStepsCoordinator::LocalStepsCoordinator(const LocalSteps& options, int workers, Meetings meetings)
    : options_(options),
      quorum_(workers, options.quorum_percent),
      capability_(static_cast<std::size_t>(workers)),
      standings_(static_cast<std::size_t>(workers) * static_cast<std::size_t>(options.fragments)),
      was_late_(workers),
      expected_(workers),
      behind_{WorkerSet(workers), WorkerSet(workers)},
      handover_(workers, std::move(meetings)) {
  open_.reserve(static_cast<std::size_t>(workers));
}

LocalStepsCoordinator::Standing& LocalStepsCoordinator::standing(int worker, std::int64_t round) {
  return standings_[static_cast<std::size_t>(worker) * static_cast<std::size_t>(options_.fragments) +
                    static_cast<std::size_t>(round % options_.fragments)];
}

// The newest round with this one's fragment that a living worker has applied.
std::int64_t LocalStepsCoordinator::newest(std::int64_t round) const {
  std::int64_t newest = -1;
  for (int w = quorum_.members().next(); w >= 0; w = quorum_.members().next(w + 1))
    newest = std::max(newest, standing(w, round).applied);
  return newest;
}

int LocalStepsCoordinator::steps_of(int worker) const {
  const int steps = steps_per_exchange(options_);
  const Nanos mine = capability_[static_cast<std::size_t>(worker)];
  Nanos fastest = mine;
  for (int w = quorum_.members().next(); w >= 0; w = quorum_.members().next(w + 1)) {
    const Nanos theirs = capability_[static_cast<std::size_t>(w)];
    if (theirs > Nanos{}) fastest = std::min(fastest, theirs);
  }
  if (mine <= Nanos{}) return steps;
  return std::clamp(static_cast<int>(mul_div(steps, fastest.count, mine.count)), 1, steps);
}

void LocalStepsCoordinator::note(const Question& q) {
  capability_[static_cast<std::size_t>(q.worker)] = q.capability;
  Standing& its = standing(q.worker, q.number);
  its.applied = q.applied;
  if (its.doubted != q.doubted) its = {q.applied, q.doubted, false};
}

void LocalStepsCoordinator::asked(Nanos now, const Question& q, Answers* answers) {
  // What a worker says is foreign: one that is ahead of all rounds would be waited for.
  const bool sound = q.number >= 0 && q.number <= quorum_.round() && q.applied >= -1 && q.applied < q.number &&
                     q.doubted >= -1 && q.doubted < q.number;
  if (q.kind != Question::Kind::kArrived || !quorum_.members().has(q.worker) || !sound) return;
  note(q);
  stuck_ = false;
  expected_.remove(q.worker);
  if (quorum_.arrive(now, q.worker, q.number)) {
    was_late_.remove(q.worker);
  } else {
    come_late(now, q, answers);
  }
  settle(now, answers);
}

// Its delta is not lost: it goes with the current round. If that has just begun, the worker trains on until the others
// are about to come.
void LocalStepsCoordinator::come_late(Nanos now, const Question& q, Answers* answers) {
  int steps = 0;
  if (!was_late_.has(q.worker) && q.capability > Nanos{}) {
    const Nanos left = closed_ + period_.median() - now;
    steps = static_cast<int>(std::clamp<std::int64_t>(left.count / q.capability.count, 0, steps_of(q.worker)));
  }
  was_late_.add(q.worker);
  if (steps == 0 && !q.unsure && standing(q.worker, quorum_.round()).applied != kUnknown) {
    was_late_.remove(q.worker);
    return quorum_.join(q.worker);
  }
  if (steps == 0) expected_.add(q.worker);  // it has to say more
  answers->push_back({Answer::Kind::kLate, q.worker, quorum_.round(), nullptr, true, steps});
}

void LocalStepsCoordinator::died(Nanos now, int worker, Answers* answers) {
  quorum_.died(worker);
  stuck_ = false;
  expected_.remove(worker);
  settle(now, answers);
}

void LocalStepsCoordinator::settle(Nanos now, Answers* answers) {
  if (!quorum_.complete(now) || !expected_.empty()) return;
  const std::int64_t round = quorum_.round(), newest_round = newest(round);
  WorkerSet& behind = behind_[round % 2];
  behind.clear();
  for (int w = quorum_.here().next(); w >= 0; w = quorum_.here().next(w + 1)) {
    if (standing(w, round).applied < newest_round) behind.add(w);
  }
  int source = handover_.choose(quorum_.here(), behind);
  if (source < 0) {
    stuck_ = quorum_.here().count() < quorum_.members().count();
    if (stuck_) return;
    // Those who live can't exchange, whatever is tried; they will say so.
    source = quorum_.here().next();
    while (behind.has(source)) source = quorum_.here().next(source + 1);
  }
  for (int w = quorum_.members().next(); w >= 0; w = quorum_.members().next(w + 1)) {
    Standing& its = standing(w, round);
    if (its.doubted > newest_round) its.voided = true;
  }
  // They come to the next round at once, where those who are served now can serve them.
  const WorkerSet& left_out = handover_.left_out();
  for (int w = left_out.next(); w >= 0; w = left_out.next(w + 1)) {
    behind.remove(w);
    quorum_.leave(w);
    expected_.add(w);
    answers->push_back({Answer::Kind::kLate, w, round + 1, nullptr, true, 0});
  }
  const WorkerSet& members = quorum_.close();
  if (round > 0) period_.add(now - closed_);
  closed_ = now;
  for (int w = members.next(); w >= 0; w = members.next(w + 1)) {
    Standing& its = standing(w, round);
    Answer answer{Answer::Kind::kAggregate, w, round, &members, true, steps_of(w)};
    answer.counted = its.doubted >= 0 && !its.voided;
    if (!behind.empty()) {
      answer.source = source;
      answer.behind = &behind;
    }
    answers->push_back(answer);
    its = {round, -1, false};
  }
}

// Until each worker has said what it has of a fragment, no round of that is closed.
void LocalStepsCoordinator::recall(Nanos now, const Recollection& r) {
  for (int f = 0; f < options_.fragments; ++f) standing(r.worker, f) = {kUnknown, -1, false};
  if (r.told != nullptr && r.told->kind == Answer::Kind::kAggregate && r.told->number >= quorum_.round() &&
      r.told->number < kRoundsMax) {
    told_ = &quorum_.closed(r.told->number, r.told->members);
    told_round_ = r.told->number;
    closed_ = now;
    WorkerSet& behind = behind_[r.told->number % 2];
    behind.clear();
    for (const std::uint32_t w : r.told->behind) behind.add(static_cast<int>(w));
    source_ = r.told->source;
  }
  if (r.question == nullptr || r.question->kind != Question::Kind::kArrived) return;
  capability_[static_cast<std::size_t>(r.worker)] = r.question->capability;
  if (r.open) open_.push_back(*r.question);
}

// A round that some were told of is told to its other members as well.
void LocalStepsCoordinator::recalled(Nanos now, Answers* answers) {
  stuck_ = false;
  const std::int64_t last = quorum_.round() - 1;
  for (const Question& q : std::exchange(open_, {})) {
    if (told_ == nullptr || told_round_ != last || q.number > last || !told_->has(q.worker)) {
      asked(now, q, answers);
      continue;
    }
    const WorkerSet& behind = behind_[last % 2];
    Answer answer{Answer::Kind::kAggregate, q.worker, last, told_, true, steps_of(q.worker)};
    answer.counted = q.doubted >= 0 && behind.has(q.worker);
    if (source_ >= 0) {
      answer.source = source_;
      answer.behind = &behind;
    }
    answers->push_back(answer);
  }
}

LocalStepsWorker::LocalStepsWorker(const LocalSteps& options, int worker)
    : options_(options),
      worker_(worker),
      planned_(steps_per_exchange(options)),
      applied_(static_cast<std::size_t>(options.fragments), -1),
      doubted_(applied_) {}

Task LocalStepsWorker::exchange() const {
  Task task;
  task.kind = Task::Kind::kExchange;
  Exchange& e = task.exchange;
  e.kind = Exchange::Kind::kAllReduce;
  e.what = Exchange::What::kDelta;
  e.number = answer_.number;
  e.members = answer_.members;
  e.partition = static_cast<int>(fragment_of(answer_.number));
  e.partitions = options_.fragments;
  e.beside = options_.overlap > 0;
  e.counted = answer_.counted;
  e.source = answer_.source;
  e.behind = answer_.behind;
  return task;
}

Task LocalStepsWorker::next(Nanos) {
  Task task;
  switch (state_) {
    case State::kTraining:
      if (done_ < planned_) break;
      state_ = State::kAsked;
      beside_ = 0;
      task.kind = Task::Kind::kAsk;
      task.question = {Question::Kind::kArrived, worker_, round_, done_, spent_ / done_};
      task.question.applied = applied_[fragment_of(round_)];
      task.question.doubted = doubted_[fragment_of(round_)];
      task.question.unsure = std::any_of(doubted_.begin(), doubted_.end(), [](auto round) { return round >= 0; });
      break;
    case State::kAsked:
      if (beside_ >= options_.overlap) task.kind = Task::Kind::kWait;
      break;
    case State::kReady:
      task = exchange();
      if (options_.overlap > 0) begin();
      break;
    case State::kExchanging:
      if (beside_ >= options_.overlap || done_ >= planned_) task.kind = Task::Kind::kWait;
      break;
  }
  return task;
}

// Steps from here on are the next round's.
void LocalStepsWorker::begin() {
  state_ = State::kExchanging;
  round_ = answer_.number + 1;
  planned_ = answer_.steps;
  done_ = beside_ = 0;
  spent_ = {};
}

void LocalStepsWorker::end(bool well) {
  if (state_ == State::kReady) begin();
  const std::size_t fragment = fragment_of(answer_.number);
  if (well) applied_[fragment] = answer_.number;
  doubted_[fragment] = well ? -1 : answer_.number;
  state_ = State::kTraining;
}

void LocalStepsWorker::trained(Nanos, Nanos took) {
  spent_ += took;
  ++done_;
  ++beside_;
}

WorkerPolicy::Reaction LocalStepsWorker::answered(Nanos, const Answer& answer) {
  if (state_ != State::kAsked) return Reaction::kNone;
  if (answer.kind == Answer::Kind::kLate) {
    round_ = answer.number;
    planned_ = done_ + answer.steps;
    state_ = State::kTraining;
    return Reaction::kNone;
  }
  answer_ = answer;
  state_ = State::kReady;
  return options_.overlap > 0 ? Reaction::kBeside : Reaction::kNone;
}

}  // namespace canarynet::sync
