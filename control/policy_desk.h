// control/policy_desk.h -- the coordinator's desk for policies that ask: the state server of ESync, the group generator
// of Ripples.
//
// What: the members of a group open a policy under one number and with equal words; the first one makes its coordinator
// (sync/), which answers questions and hears of deaths. Gradients and parameters never pass here.
// An answer that means everybody (ESync's aggregate) names those who live when the first worker of that round is told,
// and the others of the round are told the same: all of them average over one list, and who has died meanwhile fails
// that exchange for all. A worker that leaves is told first of exchanges that others count on it for.
// The desk of an engine that succeeds another begins with what the workers remember (kResume). It answers nobody before
// all have told it, or a moment has passed.
// Pure bookkeeping: replies are returned, not sent. What members say is foreign: it is judged.
// Units: world ranks; Nanos handed in. Memory: of open policies, kPoliciesMax at most; replies until their worker has
// said that it has seen them. Thread: the engine's owner. Failures: as replies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "control/policy_word.h"
#include "sync/policy_name.h"

namespace canarynet {
struct Roster;
}

namespace canarynet::control {

class PolicyDesk {
 public:
  static constexpr std::size_t kPoliciesMax = 256;
  static constexpr std::size_t kRepliesMax = 1024;  // that one worker has not seen

  // Draws of the group generators follow from the seed.
  explicit PolicyDesk(int world_size, std::uint64_t seed)
      : seed_(seed), gone_(static_cast<std::size_t>(world_size), false) {}

  // The job whose ranks open policies: who of them meet. Before that, all do.
  void know(std::shared_ptr<const Roster> roster) { roster_ = std::move(roster); }
  // Replies that follow are appended to *replies.
  void hear(Nanos now, const PolicyWord& word, std::vector<PolicyReply>* replies);
  // The state of another desk is to come from its workers: by testified(), or until then.
  void succeed(Nanos until);
  // What these ranks had to tell has come.
  void testified(Nanos now, const std::vector<int>& ranks, std::vector<PolicyReply>* replies);
  // These ranks ask no more.
  void ranks_gone(Nanos now, const std::vector<int>& ranks, std::vector<PolicyReply>* replies);
  // What these ranks may not have seen: their connection is a new one.
  void repeat(const std::vector<int>& ranks, std::vector<PolicyReply>* replies) const;
  void poll(Nanos now, std::vector<PolicyReply>* replies);
  Nanos next_deadline() const;
  bool gathers() const { return gathers_until_ != Nanos::max(); }

  std::size_t open() const { return policies_.size(); }  // for tests

 private:
  struct Worker {
    bool opened = false;
    bool gone = false;        // dead, or has left
    std::int64_t round = -1;  // the last one that it was told to aggregate
    std::uint32_t heard = 0;
    std::uint32_t told = 0;            // the last reply's serial
    std::vector<PolicyReply> replies;  // not seen yet
  };
  struct Policy {
    PolicyId id;
    std::string name;
    std::vector<int> members;
    std::vector<std::uint32_t> hosts;
    std::unique_ptr<Random> random;
    std::unique_ptr<sync::Coordinator> coordinator;
    std::vector<Worker> workers;
    std::int64_t round = -1;                 // of which everybody's list is known
    std::vector<std::uint32_t> round_lists;  // it, and what it was told of who is behind (sync::Answer)
    std::int32_t round_source = -1;
    std::vector<std::uint32_t> round_behind;
    // While memories are gathered: what was asked (nullopt: the worker leaves), and who is gone.
    std::vector<std::pair<int, std::optional<sync::Question>>> held;
    std::vector<int> mourned;
  };
  using At = std::vector<std::unique_ptr<Policy>>::iterator;

  At find(const PolicyId& id);
  // nullptr: the word opens nothing, and *why says what is wrong.
  Policy* open(const PolicyWord& word, Status* why);
  void resume(Nanos now, Policy& policy, int worker, const PolicyWord& word, std::vector<PolicyReply>* replies);
  void go_on(Nanos now, std::vector<PolicyReply>* replies);
  void depart(Nanos now, Policy& policy, int worker, std::vector<PolicyReply>* replies);
  void leave(Nanos now, Policy& policy, int worker, std::vector<PolicyReply>* replies);
  void pass_on(Policy& policy, const sync::Answers& answers, std::vector<PolicyReply>* replies);
  void reply(Policy& policy, int worker, PolicyReply reply, std::vector<PolicyReply>* replies);
  void drop_if_over(At at);

  std::uint64_t seed_;
  std::shared_ptr<const Roster> roster_;
  Nanos gathers_until_ = Nanos::max();  // the workers' memories are gathered; max: not
  std::vector<bool> testified_;
  std::vector<bool> gone_;
  std::vector<std::unique_ptr<Policy>> policies_;
  sync::Answers answers_;
};

}  // namespace canarynet::control
