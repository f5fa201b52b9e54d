// control/notices.h -- what the listener is to hear, collected where it happened (perhaps inside a lane's callback),
// told from poll().
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "control/membership.h"

namespace canarynet::control {

class Notices {
 public:
  void joined() { list_.push_back({Kind::kJoined}); }
  void join_failed(const Status& why) { add(Kind::kJoinFailed).status = why; }
  void group(int rank, std::uint64_t cookie, std::uint32_t flow) {
    Notice& n = add(Kind::kGroup);
    n.rank = rank;
    n.cookie = cookie;
    n.number = flow;
  }
  void group_failed(int rank, std::uint64_t cookie, const Status& why) {
    Notice& n = add(Kind::kGroupFailed);
    n.rank = rank;
    n.cookie = cookie;
    n.status = why;
  }
  void died(std::uint32_t engine, const std::string& why, bool sure) {
    Notice& n = add(sure ? Kind::kDied : Kind::kEnded);
    n.number = engine;
    n.text = why;
  }
  void left(std::uint32_t engine, std::vector<LastWord> words) {
    Notice& n = add(Kind::kLeft);
    n.number = engine;
    n.words = std::move(words);
  }
  void connect_wanted(std::uint32_t engine) { add(Kind::kConnectWanted).number = engine; }
  void entry_question(GroupEpoch group) { add(Kind::kEntryQuestion).entered.group = group; }
  void entered(Entered entered) { add(Kind::kEntered).entered = std::move(entered); }
  void policy_reply(PolicyReply reply) { add(Kind::kPolicyReply).policy_reply = std::move(reply); }
  void coordinator(std::uint32_t engine) { add(Kind::kCoordinator).number = engine; }
  void coordinator_lost(const Status& why) { add(Kind::kCoordinatorLost).status = why; }
  void verdict(const Verdict& verdict) { add(Kind::kVerdict).verdict = verdict; }

  bool empty() const { return list_.empty(); }
  // The listener may cause new notices: they wait for the next call.
  std::size_t tell(MembershipListener& listener, const std::shared_ptr<const Roster>& roster) {
    std::vector<Notice> now;
    now.swap(list_);
    for (const Notice& n : now) {
      switch (n.kind) {
        case Kind::kJoined:
          listener.on_joined(roster);
          break;
        case Kind::kJoinFailed:
          listener.on_join_failed(n.status);
          break;
        case Kind::kGroup:
          listener.on_group(n.rank, n.cookie, n.number);
          break;
        case Kind::kGroupFailed:
          listener.on_group_failed(n.rank, n.cookie, n.status);
          break;
        case Kind::kDied:
          listener.on_engine_died(n.number, n.text);
          break;
        case Kind::kEnded:
          listener.on_engine_ended(n.number, n.text);
          break;
        case Kind::kLeft:
          listener.on_engine_left(n.number, n.words);
          break;
        case Kind::kConnectWanted:
          listener.on_connect_wanted(n.number);
          break;
        case Kind::kEntryQuestion:
          listener.on_entry_question(n.entered.group);
          break;
        case Kind::kEntered:
          listener.on_entered(n.entered);
          break;
        case Kind::kVerdict:
          listener.on_verdict(n.verdict);
          break;
        case Kind::kPolicyReply:
          listener.on_policy_reply(n.policy_reply);
          break;
        case Kind::kCoordinator:
          listener.on_coordinator(n.number);
          break;
        case Kind::kCoordinatorLost:
          listener.on_coordinator_lost(n.status);
          break;
      }
    }
    return now.size();
  }

 private:
  enum class Kind {
    kJoined,
    kJoinFailed,
    kGroup,
    kGroupFailed,
    kDied,
    kEnded,
    kLeft,
    kConnectWanted,
    kEntryQuestion,
    kEntered,
    kVerdict,
    kPolicyReply,
    kCoordinator,
    kCoordinatorLost
  };
  struct Notice {
    Kind kind;
    int rank = 0;
    std::uint64_t cookie = 0;
    std::uint32_t number = 0;
    Status status = {};
    std::string text = {};
    Verdict verdict = {};
    Entered entered = {};
    std::vector<LastWord> words = {};
    PolicyReply policy_reply = {};
  };
  Notice& add(Kind kind) { return list_.emplace_back(Notice{kind}); }
  std::vector<Notice> list_;
};

// Verdicts already seen, the latest of them: the same one may come over control and over lanes, from several survivors,
// and again after a rejoin.
class VerdictLog {
 public:
  static constexpr std::size_t kKept = 1024;  // a member that was away hears of no more
  // False when it is known.
  bool add(const Verdict& v) {
    for (const Verdict& known : all_) {
      if (known.flow == v.flow && known.epoch == v.epoch && known.code == v.code && known.rank == v.rank) return false;
    }
    if (all_.size() < kKept) {
      all_.push_back(v);
    } else {
      all_[oldest_++ % kKept] = v;
    }
    return true;
  }
  const std::vector<Verdict>& all() const { return all_; }

 private:
  std::vector<Verdict> all_;
  std::size_t oldest_ = 0;
};

}  // namespace canarynet::control
