#include "sync/esync.h"

#include <algorithm>
#include <utility>

namespace canarynet::sync {

StateServer::StateServer(int workers, bool silent_unless_ready, Nanos epsilon, Meetings meetings)
    : records_(static_cast<std::size_t>(workers)),
      silent_unless_ready_(silent_unless_ready),
      epsilon_(epsilon),
      behind_(workers),
      handover_(workers, std::move(meetings)),
      alive_(WorkerSet::all(workers)) {}

bool StateServer::query(Nanos now, int r, std::int64_t round, Iteration k, Nanos c, Nanos finished) {
  Record& mine = records_[static_cast<std::size_t>(r)];
  if (!alive_.has(r) || round != mine.round) return false;  // sent before a pull that overtook it
  mine.capability = c;
  mine.finished = finished;
  if (mine.ready) return true;  // said before it knew
  if (k == 0) return false;
  Nanos latest;
  bool others = false;
  for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
    const Record& other = records_[static_cast<std::size_t>(w)];
    if (w == r) continue;
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

void StateServer::died(int r) { alive_.remove(r); }

// Who has an older state than another one that lives, when the first worker of a round is told. It stands for all of
// the round, whoever dies meanwhile.
void StateServer::decide(std::int64_t round) {
  if (round == decided_) return;
  decided_ = round;
  std::int64_t newest = -1;
  for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1))
    newest = std::max(newest, records_[static_cast<std::size_t>(w)].applied);
  newest_ = newest;
  behind_.clear();
  source_ = -1;
  int first = -1;  // who is not behind
  for (int w = alive_.next(); w >= 0; w = alive_.next(w + 1)) {
    if (records_[static_cast<std::size_t>(w)].applied < newest) {
      behind_.add(w);
    } else if (first < 0) {
      first = w;
    }
  }
  if (behind_.empty()) return;
  source_ = handover_.choose(alive_, behind_);
  // Those who live can't exchange, whatever is tried; they will say so.
  if (source_ < 0) source_ = first;
}

bool StateServer::counted(int worker) const {
  const Record& its = records_[static_cast<std::size_t>(worker)];
  if (its.doubted < 0) return false;
  if (newest_) return its.doubted <= *newest_;
  // Another coordinator has decided. A source that is gone takes the exchange with it, and what it knew.
  if (source_ < 0 || !behind_.has(worker)) return false;
  const Record& source = records_[static_cast<std::size_t>(source_)];
  return source.round != decided_ || its.doubted <= source.applied;
}

void StateServer::asked(Nanos now, const Question& q, Answers* answers) {
  Record& mine = records_[static_cast<std::size_t>(q.worker)];
  // What a worker says is foreign: a result of a round to come would leave all others behind.
  if (q.applied >= q.number || q.doubted >= q.number || q.applied < -1 || q.doubted < -1) return;
  mine.applied = q.applied;
  mine.doubted = q.doubted;
  if (q.kind == Question::Kind::kPulled) {
    if (mine.capability == Nanos{}) mine.capability = q.capability;
    return reset(q.worker, q.number, now);
  }
  if (q.kind != Question::Kind::kIterated) return;
  const bool told = mine.ready && mine.round == q.number;
  const bool ready = query(now, q.worker, q.number, q.iterations, q.capability, now);
  if (silent_unless_ready_ && (!ready || told)) return;
  Answer answer{ready ? Answer::Kind::kAggregate : Answer::Kind::kTrain, q.worker, q.number};
  if (ready) {
    decide(q.number);
    answer.source = source_;
    answer.counted = counted(q.worker);
    if (!behind_.empty()) answer.behind = &behind_;
  }
  answers->push_back(answer);
}

void StateServer::recall(Nanos now, const Recollection& r) {
  if (r.question == nullptr) return;
  Record& its = records_[static_cast<std::size_t>(r.worker)];
  its.round = r.question->number;
  its.capability = r.question->capability;
  its.finished = now - r.ago;
  its.ready = r.told != nullptr && r.told->kind == Answer::Kind::kAggregate && r.told->number == its.round;
  its.applied = r.question->applied;
  its.doubted = r.question->doubted;
  if (its.ready && its.round > decided_) {
    decided_ = its.round;
    newest_.reset();
    source_ = r.told->source;
    behind_.clear();
    for (const std::uint32_t w : r.told->behind) behind_.add(static_cast<int>(w));
  }
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
      return {Task::Kind::kAsk, question(Question::Kind::kPulled, took_), {}};
    case State::kIterated:
      state_ = blocking_ ? State::kAsked : State::kTraining;
      asked_at_ = now;
      // The answer's way counts as work, where the worker waits for it.
      return {Task::Kind::kAsk, question(Question::Kind::kIterated, took_ + round_trip_), {}};
    case State::kAsked:
      return {Task::Kind::kWait, {}, {}};
    case State::kReady: {
      Exchange exchange;
      exchange.kind = Exchange::Kind::kAllReduce;
      exchange.what = Exchange::What::kDelta;
      exchange.number = round_;
      exchange.source = answer_.source;
      exchange.behind = answer_.behind;
      exchange.counted = answer_.counted;
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

Question EsyncWorker::question(Question::Kind kind, Nanos capability) const {
  Question q{kind, worker_, round_, kind == Question::Kind::kPulled ? 0 : iterations_, capability};
  q.applied = applied_;
  q.doubted = doubted_;
  return q;
}

void EsyncWorker::end(bool well) {
  if (well) applied_ = round_;
  doubted_ = well ? -1 : round_;
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
    answer_ = answer;
    return running ? Reaction::kInterrupt : Reaction::kNone;
  }
  if (!running && state_ == State::kAsked) state_ = State::kTraining;
  return Reaction::kNone;
}

}  // namespace canarynet::sync
