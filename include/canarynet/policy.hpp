// canarynet/policy.hpp -- C++20 over the policies of canarynet/policy.h: who averages parameters with whom, and when.
//
// What: Policy (one worker's part) says what to do next: train, or take the mean with some ranks, which it does as well
//   for parameters that were lent.
// Ownership: Policy owns its handle, and closes it when it ends; the ranks of a task are the policy's until its next
//   call.
// Threads and failures: as in canarynet.hpp, which includes this header; one thread at a time calls a policy.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "canarynet/canarynet.hpp"

namespace canarynet {
inline namespace v0 {

class Policy {
 public:
  struct Task {
    canary_task_kind kind = CANARY_TASK_TRAIN;
    bool train() const { return kind == CANARY_TASK_TRAIN; }
    bool mean() const { return kind == CANARY_TASK_MEAN; }      // over `ranks`, as exchange `number`
    bool finish() const { return kind == CANARY_TASK_FINISH; }  // what runs beside iterations
    bool done() const { return kind == CANARY_TASK_DONE; }      // after leave()
    std::span<const int> ranks = {};
    std::uint64_t number = 0;
    canary_task raw = CANARY_TASK_INIT;
  };

  // Whether sessions run the policy of this name (Rule::parse) and not this class; throws where there is none.
  static bool by_session(const std::string& name) {
    int by_session = 0;
    check(canary_policy_check(name.c_str(), &by_session));
    return by_session != 0;
  }

  // `number`: below 2^32. `hosts`: of each rank of the group, or empty: as the library sees them. `iteration`: what one
  // takes, for esync.
  Policy(Group& group, std::uint64_t number, const std::string& name, std::span<const int> hosts = {},
         std::chrono::nanoseconds iteration = {}) {
    canary_policy_options options = CANARY_POLICY_OPTIONS_INIT;
    options.number = number;
    options.name = name.c_str();
    options.hosts = hosts.empty() ? nullptr : hosts.data();
    options.iteration = iteration.count();
    check(canary_policy_open(group.handle(), &options, &handle_));
  }
  Policy(Policy&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Policy& operator=(Policy&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Policy() {
    if (handle_ != nullptr) (void)canary_policy_close(handle_);
  }
  void close() { check(canary_policy_close(std::exchange(handle_, nullptr))); }

  canary_policy* handle() const { return handle_; }
  // May wait for an answer.
  Task next() {
    canary_task task = CANARY_TASK_INIT;
    check(canary_policy_next(handle_, &task));
    return {static_cast<canary_task_kind>(task.kind),
            std::span<const int>(task.ranks, static_cast<std::size_t>(task.count)), task.number, task};
  }
  void trained(std::chrono::nanoseconds took) { check(canary_policy_trained(handle_, took.count())); }
  // Whether the iteration that runs is not wanted any more: its result may be dropped, and next() called at once.
  // Begins what may run beside it; before the parameters change.
  bool interrupted() const {
    int interrupted = 0;
    check(canary_policy_poll(handle_, &interrupted));
    return interrupted != 0;
  }
  // Trains no more; next() has the exchanges that others count on.
  void leave() { check(canary_policy_leave(handle_)); }
  // The parameters that exchanges are of, equal on all ranks, and how those are made.
  void lend(std::span<float> parameters, const OpOptions& options = {}) {
    const canary_op_options how = detail::raw(options);
    check(canary_policy_lend(handle_, parameters.data(), parameters.size(), &how));
  }
  // Does what mean() or finish() says. Throws where it failed; the parameters are as they were, and the worker goes on.
  // `deadline`: from now on; 0: as the options have it.
  void exchange(std::chrono::nanoseconds deadline = {}) {
    check(canary_policy_exchange(handle_, static_cast<std::uint64_t>(deadline.count())));
  }
  // What the last exchanges made, without what was trained since.
  void common(std::span<float> parameters) const {
    check(canary_policy_common(handle_, parameters.data(), parameters.size()));
  }
  // For programs that lend none and make exchanges by themselves: also of one that failed, where it is of parameters.
  void exchanged() { check(canary_policy_exchanged(handle_)); }
  void exchange_failed() { check(canary_policy_exchange_failed(handle_)); }

 private:
  canary_policy* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet
