#include "sync/esync.h"

#include <algorithm>
#include <utility>

namespace canarynet::sync {

StateServer::StateServer(int workers, bool silent_unless_ready, Nanos epsilon)
    : records_(static_cast<std::size_t>(workers)), silent_unless_ready_(silent_unless_ready), epsilon_(epsilon) {}

bool StateServer::query(Nanos now, int r, std::int64_t round, Iteration k, Nanos c, Nanos finished) {
  Record& mine = records_[static_cast<std::size_t>(r)];
  if (!mine.alive || round != mine.round) return false;  // sent before a pull that overtook it
  mine.capability = c;
  mine.finished = finished;
  if (mine.ready) return true;  // said before it knew
  if (k == 0) return false;
  Nanos latest;
  bool others = false;
  for (const Record& other : records_) {
    if (&other == &mine || !other.alive) continue;
    if (other.round < round) return false;  // it has not pulled yet, and will train at least once after that
    if (other.ready || other.round > round) continue;
    latest = others ? std::max(latest, other.finished + other.capability) : other.finished + other.capability;
    others = true;
  }
  mine.ready = !others || now + c + epsilon_ > latest;
  return mine.ready;
}

void StateServer::reset(int r, std::int64_t round, Nanos finished) {
  Record& mine = records_[static_cast<std::size_t>(r)];
  mine.round = round;
  mine.finished = finished;
  mine.ready = false;
}

void StateServer::died(int r) { records_[static_cast<std::size_t>(r)].alive = false; }

void StateServer::asked(Nanos now, const Question& q, Answers* answers) {
  Record& mine = records_[static_cast<std::size_t>(q.worker)];
  if (q.kind == Question::Kind::kPulled) {
    if (mine.capability == Nanos{}) mine.capability = q.capability;
    return reset(q.worker, q.number, now);
  }
  if (q.kind != Question::Kind::kIterated) return;
  const bool told = mine.ready && mine.round == q.number;
  const bool ready = query(now, q.worker, q.number, q.iterations, q.capability, now);
  if (silent_unless_ready_ && (!ready || told)) return;
  answers->push_back({ready ? Answer::Kind::kAggregate : Answer::Kind::kTrain, q.worker, q.number});
}

void StateServer::recall(Nanos now, const Recollection& r) {
  if (r.question == nullptr) return;
  Record& its = records_[static_cast<std::size_t>(r.worker)];
  its.round = r.question->number;
  its.capability = r.question->capability;
  its.finished = now - r.ago;
  its.ready = r.told != nullptr && r.told->kind == Answer::Kind::kAggregate && r.told->number == its.round;
  if (r.open && r.question->kind == Question::Kind::kIterated) its.open = *r.question;
}

void StateServer::recalled(Nanos now, Answers* answers) {
  for (Record& record : records_) {
    if (const auto open = std::exchange(record.open, std::nullopt)) asked(now, *open, answers);
  }
}

EsyncWorker::EsyncWorker(int worker, bool blocking, Nanos first_capability)
    : worker_(worker), blocking_(blocking), took_(first_capability) {}

Task EsyncWorker::next(Nanos now) {
  switch (state_) {
    case State::kPulled:
      state_ = State::kTraining;
      return {Task::Kind::kAsk, {Question::Kind::kPulled, worker_, round_, 0, took_}, {}};
    case State::kIterated:
      state_ = blocking_ ? State::kAsked : State::kTraining;
      asked_at_ = now;
      // The answer's way counts as work, where the worker waits for it.
      return {Task::Kind::kAsk, {Question::Kind::kIterated, worker_, round_, iterations_, took_ + round_trip_}, {}};
    case State::kAsked:
      return {Task::Kind::kWait, {}, {}};
    case State::kReady: {
      Exchange exchange;
      exchange.kind = Exchange::Kind::kAllReduce;
      exchange.what = Exchange::What::kDelta;
      exchange.number = round_;
      return {Task::Kind::kExchange, {}, exchange};
    }
    case State::kTraining:
      break;
  }
  return {Task::Kind::kTrain, {}, {}};
}

void EsyncWorker::trained(Nanos, Nanos took) {
  ++iterations_;
  took_ = took;
  if (state_ != State::kReady) state_ = State::kIterated;  // one that was not given up counts as well
}

void EsyncWorker::exchanged(Nanos) {
  ++round_;
  iterations_ = 0;
  state_ = State::kPulled;
}

WorkerPolicy::Reaction EsyncWorker::answered(Nanos now, const Answer& answer) {
  if (answer.number != round_ || state_ == State::kReady) return Reaction::kNone;
  const bool running = state_ == State::kTraining;
  if (blocking_) round_trip_ = now - asked_at_;
  if (answer.kind == Answer::Kind::kAggregate) {
    state_ = State::kReady;
    return running ? Reaction::kInterrupt : Reaction::kNone;
  }
  if (!running && state_ == State::kAsked) state_ = State::kTraining;
  return Reaction::kNone;
}

}  // namespace canarynet::sync
