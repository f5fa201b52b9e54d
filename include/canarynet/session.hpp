// canarynet/session.hpp -- C++20 over the sessions of canarynet.h: training with bounded staleness.
//
// What: Session (one worker's part), its Rule (Canary, BSP, SSP or ASP), and what a step hands out.
// Ownership: gradients are the caller's again when push() returns; sums are written before step(), pull() or finish()
//   returns. The destructor closes the session, which ends it for everybody unless all have finished.
// Threads and failures: as in canarynet.hpp, which includes this header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "canarynet/canarynet.hpp"

namespace canarynet {
inline namespace v0 {

// When a worker is too far behind, and what then happens; see canary_session_options.
struct Rule {
  canary_at_bound at_bound = CANARY_AT_BOUND_DROP;
  std::int64_t staleness = 18;
  int proportion = -1;  // colayers; -1: all
  std::optional<std::chrono::nanoseconds> linger = {};
  int quorum = 100;   // percent of the workers that are enough, once the others are unusually late
  int absences = 18;  // steps in a row that go on without the same worker

  static Rule canary(std::int64_t s, int p) { return {CANARY_AT_BOUND_DROP, s, p}; }
  static Rule bsp() { return {CANARY_AT_BOUND_WAIT, 0}; }
  static Rule ssp(std::int64_t s) { return {CANARY_AT_BOUND_WAIT, s}; }
  static Rule asp() { return {CANARY_AT_BOUND_DROP, CANARY_STALENESS_UNBOUNDED}; }
  // By its name, as "canary:s=18,p=6" or "bsp:quorum=75"; see canary_session_rule.
  static Rule parse(const std::string& name) {
    canary_session_options options = CANARY_SESSION_OPTIONS_INIT;
    check(canary_session_rule(name.c_str(), &options));
    Rule rule{static_cast<canary_at_bound>(options.at_bound), options.staleness, options.proportion};
    if (options.linger != CANARY_LINGER_USUAL) rule.linger = std::chrono::nanoseconds(options.linger);
    rule.quorum = options.quorum;
    rule.absences = options.absences;
    return rule;
  }
};

class Session {
 public:
  // Blocks until all members of the group have opened it; `counts` are the elements of each colayer, `codecs` one for
  // each (canarynet::codec), one for all, or none. `at_death`: what becomes of it when a member dies.
  Session(Group& group, std::uint64_t number, std::span<const std::size_t> counts, const Rule& rule,
          std::int64_t staleness_max = 0, int backlog = 2, std::span<const std::uint32_t> codecs = {},
          canary_at_death at_death = CANARY_AT_DEATH_END) {
    if (codecs.size() > 1 && codecs.size() != counts.size()) {
      throw Error(CANARY_INVALID_ARGUMENT,
                  std::to_string(codecs.size()) + " codecs for " + std::to_string(counts.size()) + " colayers");
    }
    canary_session_options options = raw(rule);
    options.number = number;
    options.counts = counts.data();
    options.colayers = static_cast<int>(counts.size());
    options.staleness_max = staleness_max;
    options.backlog = backlog;
    options.at_death = at_death;
    if (codecs.size() == 1) options.codec = codecs.front();
    if (codecs.size() > 1) options.codecs = codecs.data();
    check(canary_session_open(group.handle(), &options, &handle_));
  }
  Session(Session&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Session& operator=(Session&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Session() {
    if (handle_ != nullptr) (void)canary_session_close(handle_);
  }
  void close() { check(canary_session_close(std::exchange(handle_, nullptr))); }

  canary_session* handle() const { return handle_; }
  void push(int colayer, std::span<const float> gradient) {
    check(canary_session_push(handle_, colayer, gradient.data(), gradient.size()));
  }
  canary_session_result step(std::span<float> sums) { return ask(canary_session_step, sums); }
  // Sums and result are lent until it is done; past a deadline of it the session goes on, and the step is to be made
  // again.
  Operation step_async(std::span<float> sums, canary_session_result* result) {
    canary_op* op = nullptr;
    check(canary_session_step(handle_, sums.data(), sums.size(), result, &op));
    return Operation(op);
  }
  canary_session_result pull(std::span<float> sums) { return ask(canary_session_pull, sums); }
  canary_session_result finish(std::span<float> sums) { return ask(canary_session_finish, sums); }
  void set(const Rule& rule) {
    const canary_session_options options = raw(rule);
    check(canary_session_set(handle_, &options));
  }
  canary_session_state state() const {
    canary_session_state out{};
    out.struct_size = sizeof out;
    check(canary_session_read(handle_, &out));
    return out;
  }
  // Which tensors make a colayer, by the merge planner; collective, see canary_session_colayers. Returns for each
  // colayer the number of tensors in it and in those before it.
  static std::vector<std::size_t> colayers(Group& group, std::span<const std::size_t> counts,
                                           std::span<const double> ready) {
    if (counts.size() != ready.size()) {
      throw Error(CANARY_INVALID_ARGUMENT,
                  std::to_string(ready.size()) + " ready times for " + std::to_string(counts.size()) + " tensors");
    }
    std::vector<std::size_t> ends(counts.size());
    int found = 0;
    check(canary_session_colayers(group.handle(), counts.data(), ready.data(), counts.size(), ends.data(), &found));
    ends.resize(static_cast<std::size_t>(found));
    return ends;
  }
  // The members whose gradient of this iteration and colayer has been exchanged; rank r is bit r % 64 of word r / 64.
  std::vector<std::uint64_t> row(std::int64_t iteration, int colayer, int workers) const {
    std::vector<std::uint64_t> bits((static_cast<std::size_t>(workers) + 63) / 64);
    check(canary_session_row(handle_, iteration, colayer, bits.data(), bits.size()));
    return bits;
  }
  // The rows of these iterations, of all colayers each, as row() has them, one behind the other.
  std::vector<std::uint64_t> rows(std::int64_t first, std::int64_t last, int colayers, int workers) const {
    const auto iterations = static_cast<std::size_t>(std::max<std::int64_t>(0, last - first + 1));
    std::vector<std::uint64_t> bits(iterations * static_cast<std::size_t>(colayers) *
                                    ((static_cast<std::size_t>(workers) + 63) / 64));
    check(canary_session_rows(handle_, first, last, bits.data(), bits.size()));
    return bits;
  }

 private:
  static canary_session_options raw(const Rule& rule) {
    canary_session_options out = CANARY_SESSION_OPTIONS_INIT;
    out.at_bound = rule.at_bound;
    out.staleness = rule.staleness;
    out.proportion = rule.proportion;
    out.quorum = rule.quorum;
    out.absences = rule.absences;
    if (rule.linger) out.linger = rule.linger->count();
    return out;
  }
  template <typename Call>
  canary_session_result ask(Call call, std::span<float> sums) {
    canary_session_result result = CANARY_SESSION_RESULT_INIT;
    check(call(handle_, sums.data(), sums.size(), &result, nullptr));
    return result;
  }
  canary_session* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet
