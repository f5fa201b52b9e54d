// canarynet/policy.hpp -- C++20 over the policies of canarynet/policy.h: who averages parameters with whom, and when.
//
// What: Policy (one worker's part) says what to do next: train, or take the mean with some ranks.
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
    bool mean() const { return kind == CANARY_TASK_MEAN; }  // of the parameters over `ranks`, as exchange `number`
    bool done() const { return kind == CANARY_TASK_DONE; }  // after leave()
    std::span<const int> ranks = {};
    std::uint64_t number = 0;
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
            std::span<const int>(task.ranks, static_cast<std::size_t>(task.count)), task.number};
  }
  void trained(std::chrono::nanoseconds took) { check(canary_policy_trained(handle_, took.count())); }
  // Whether the iteration that runs is not wanted any more: its result may be dropped, and next() called at once.
  bool interrupted() const {
    int interrupted = 0;
    check(canary_policy_poll(handle_, &interrupted));
    return interrupted != 0;
  }
  // Trains no more; next() has the exchanges that others count on.
  void leave() { check(canary_policy_leave(handle_)); }
  // Also of an exchange that failed.
  void exchanged() { check(canary_policy_exchanged(handle_)); }

 private:
  canary_policy* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet
