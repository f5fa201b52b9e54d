// sync/baseline_workers.h -- policies that exchange after every iteration and decide no more than what.
//
// Sessions (canary, bsp, ssp, asp decide in session_rounds.h); the parameter server, in step or not; BML (Wang et al.,
// "BML: A High-performance, Low-cost Gradient Synchronization Algorithm for DML Training", NeurIPS 2018), an all-reduce
// on BCube; Ako (Watcharapichat et al., "Ako: Decentralised Deep Learning with Partial Gradient Exchange", SoCC 2016),
// where each worker sends one of P partitions of its accumulated gradient per iteration, in turn.
#pragma once

#include "sync/policy.h"

namespace canarynet::sync {

class EveryIterationWorker final : public WorkerPolicy {
 public:
  // `exchange` is what happens after each iteration; its number counts from 0. Where it has several partitions, worker
  // w begins with partition w, so that in every iteration all of them are under way.
  EveryIterationWorker(int worker, const Exchange& exchange) : worker_(worker), exchange_(exchange) {}

  Task next(Nanos) override {
    Task task;
    if (!trained_) return task;
    task.kind = Task::Kind::kExchange;
    task.exchange = exchange_;
    task.exchange.partition = static_cast<int>((exchange_.number + worker_) % exchange_.partitions);
    return task;
  }
  void trained(Nanos, Nanos) override { trained_ = true; }
  void exchanged(Nanos) override {
    trained_ = false;
    ++exchange_.number;
  }

 private:
  int worker_;
  Exchange exchange_;
  bool trained_ = false;
};

}  // namespace canarynet::sync
