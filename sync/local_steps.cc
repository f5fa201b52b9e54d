#include "sync/local_steps.h"

#include <algorithm>

namespace canarynet::sync {
namespace {

int steps_per_exchange(const LocalSteps& o) { return std::max(1, o.steps / o.fragments); }

}  // namespace

LocalStepsCoordinator::LocalStepsCoordinator(const LocalSteps& options, int workers)
    : options_(options), quorum_(workers, options.quorum_percent), capability_(static_cast<std::size_t>(workers)) {}

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

void LocalStepsCoordinator::asked(Nanos now, const Question& q, Answers* answers) {
  if (q.kind != Question::Kind::kArrived || !quorum_.members().has(q.worker)) return;
  capability_[static_cast<std::size_t>(q.worker)] = q.capability;
  if (!quorum_.arrive(now, q.worker, q.number)) {
    answers->push_back({Answer::Kind::kLate, q.worker, quorum_.round(), nullptr, true, steps_of(q.worker)});
    return;
  }
  settle(now, answers);
}

void LocalStepsCoordinator::died(Nanos now, int worker, Answers* answers) {
  quorum_.died(worker);
  settle(now, answers);
}

void LocalStepsCoordinator::settle(Nanos now, Answers* answers) {
  if (!quorum_.complete(now)) return;
  const std::int64_t round = quorum_.round();
  const WorkerSet& members = quorum_.close();
  for (int w = members.next(); w >= 0; w = members.next(w + 1)) {
    answers->push_back({Answer::Kind::kAggregate, w, round, &members, true, steps_of(w)});
  }
}

LocalStepsWorker::LocalStepsWorker(const LocalSteps& options, int worker)
    : options_(options), worker_(worker), planned_(steps_per_exchange(options)) {}

Task LocalStepsWorker::next(Nanos) {
  Task task;
  switch (state_) {
    case State::kTraining:
      break;
    case State::kArrived:
      state_ = State::kAsked;
      task.kind = Task::Kind::kAsk;
      task.question = {Question::Kind::kArrived, worker_, round_, done_, spent_ / done_};
      break;
    case State::kAsked:
      task.kind = Task::Kind::kWait;
      break;
    case State::kReady:
    case State::kLate:
      task.kind = Task::Kind::kExchange;
      task.exchange.kind = state_ == State::kReady ? Exchange::Kind::kAllReduce : Exchange::Kind::kAdopt;
      task.exchange.what = Exchange::What::kDelta;
      task.exchange.number = answer_.number;
      task.exchange.members = answer_.members;
      task.exchange.partition = static_cast<int>(answer_.number % options_.fragments);
      task.exchange.partitions = options_.fragments;
      break;
  }
  return task;
}

void LocalStepsWorker::trained(Nanos, Nanos took) {
  spent_ += took;
  if (++done_ >= planned_) state_ = State::kArrived;
}

void LocalStepsWorker::exchanged(Nanos) {
  round_ = state_ == State::kLate ? answer_.number : answer_.number + 1;
  planned_ = answer_.steps;
  done_ = 0;
  spent_ = {};
  state_ = State::kTraining;
}

WorkerPolicy::Reaction LocalStepsWorker::answered(Nanos, const Answer& answer) {
  if (state_ != State::kAsked) return Reaction::kNone;
  answer_ = answer;
  state_ = answer.kind == Answer::Kind::kLate ? State::kLate : State::kReady;
  return Reaction::kNone;
}

void OuterStep::apply(std::span<float> parameters, std::span<const float> mean_delta, std::size_t first) {
  CANARY_CHECK(parameters.size() == mean_delta.size() && first + parameters.size() <= velocity_.size(),
               "an outer step over other parameters");
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    float& velocity = velocity_[first + i];
    velocity = momentum_ * velocity + mean_delta[i];
    parameters[i] += rate_ * (mean_delta[i] + momentum_ * velocity);
  }
}

}  // namespace canarynet::sync
