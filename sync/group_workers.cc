#include "sync/group_workers.h"

namespace canarynet::sync {

Task GroupWorker::next(Nanos) {
  Task task;
  if (done_) {
    done_ = false;
    task.kind = Task::Kind::kAsk;
    task.question.kind = Question::Kind::kDone;
    task.question.worker = worker_;
    task.question.number = answer_.number;
    return task;
  }
  if (ask_) {
    ask_ = false;
    open_ = true;
    task.kind = Task::Kind::kAsk;
    task.question.kind = Question::Kind::kGroup;
    task.question.worker = worker_;
    return task;
  }
  if (group_ && (open_ || answer_.requested || passive_)) {
    task.kind = Task::Kind::kExchange;
    task.exchange.kind = Exchange::Kind::kGroup;
    task.exchange.number = answer_.number;
    task.exchange.members = answer_.members;
    return task;
  }
  task.kind = open_ ? Task::Kind::kWait : Task::Kind::kTrain;
  return task;
}

void GroupWorker::trained(Nanos, Nanos) {
  if (passive_ || ++trained_ < section_) return;
  trained_ = 0;
  ask_ = true;
}

void GroupWorker::exchanged(Nanos) {
  group_ = false;
  done_ = true;
}

WorkerPolicy::Reaction GroupWorker::answered(Nanos, const Answer& answer) {
  if (answer.kind == Answer::Kind::kAlone) open_ = false;
  if (answer.kind != Answer::Kind::kGroup) return Reaction::kNone;
  CANARY_CHECK(!group_, "two running groups with one worker");
  group_ = true;
  answer_ = answer;
  if (answer.requested) open_ = false;
  return passive_ ? Reaction::kBeside : Reaction::kNone;
}

Task StaticGroupWorker::next(Nanos) {
  Task task;
  if (!averages_) return task;
  task.kind = Task::Kind::kExchange;
  task.exchange.kind = Exchange::Kind::kGroup;
  task.exchange.number = iterations_ / section_ - 1;
  task.exchange.members = &members_;
  return task;
}

void StaticGroupWorker::trained(Nanos, Nanos) {
  ++iterations_;
  if (iterations_ % section_ != 0) return;
  groups_.group_of(worker_, iterations_ / section_ - 1, &members_);
  averages_ = members_.count() > 1;
}

void StaticGroupWorker::exchanged(Nanos) { averages_ = false; }

NeighbourWorker::NeighbourWorker(int worker, int workers) : members_(workers) {
  members_.add(worker);
  members_.add((worker + 1) % workers);
  members_.add((worker + workers - 1) % workers);
}

Task NeighbourWorker::next(Nanos) {
  Task task;
  if (!averages_ || members_.count() < 2) return task;
  task.kind = Task::Kind::kExchange;
  task.exchange.kind = Exchange::Kind::kNeighbours;
  task.exchange.number = iterations_;
  task.exchange.members = &members_;
  return task;
}

}  // namespace canarynet::sync
