// control/coordinator.h -- the membership of the engine that coordinates: that of world rank 0 gathers the others, and
// keeps everybody told. One that succeeds another begins with what it knew as a member, and with what others tell it.
//
// See control/membership.h for the contract. An engine's control connection that ends without LEAVE or RETRACT is a
// death, at once if it was in use, after a grace if it had been silent (its engine may be on its way back over
// another). Thread: the engine's owner.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/attention.h"
#include "base/sparse_warning.h"
#include "control/control_link.h"
#include "control/entry_desk.h"
#include "control/group_desk.h"
#include "control/inheritance.h"
#include "control/join_desk.h"
#include "control/membership.h"
#include "control/miss_desk.h"
#include "control/notices.h"
#include "control/policy_desk.h"
#include "control/roll_call.h"

namespace canarynet::control {

class Coordinator final : public Membership, public LinkOwner {
 public:
  Coordinator(MembershipOptions options, LaneFactory& factory, MembershipListener& listener);

  Status start(Nanos now) override;
  // Instead of start(): goes on from where another coordinator ended.
  void succeed(Nanos now, Inheritance inheritance);
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override;
  Nanos last_heard(std::uint32_t engine) const override;
  Nanos surely_heard(std::uint32_t engine) const override { return last_heard(engine); }
  bool joined() const override { return phase_ == Phase::kJoined; }
  std::uint32_t coordinator() const override { return me_; }
  void request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) override;
  void flood(const Verdict& verdict) override;
  void report_missed(Nanos now, std::vector<Missed> missed) override;
  void ask_entered(Nanos now, GroupEpoch group) override;
  void tell_entered(Nanos now, const Entered& entered) override;
  void ask_to_connect(Nanos now, std::uint32_t engine) override;
  void say(Nanos now, PolicyWord word) override;
  void give_up_workers(Nanos now, std::uint32_t engine) override;
  void leave(Nanos now, std::vector<LastWord> words) override;
  void abandon() noexcept override;
  void adopt(std::unique_ptr<Lane>&& lane, const wire::Header& header, const wire::HelloPayload& hello) override;

 private:
  enum class Phase { kIdle, kGathering, kJoined, kFailed };
  struct Peer {  // one of them is this engine itself, without a link
    EngineInfo info;
    std::unique_ptr<ControlLink> link;
    Nanos last_heard;
    bool heard_since_beat = false;
    bool left = false;
    std::vector<LastWord> words;  // with which it left
    bool dead = false;
    bool surely_dead = true;
    bool ended = false;                  // its link hung up; judged in poll(), when the time is known
    Nanos suspect_until = Nanos::max();  // ended after a silence: dead unless it is back by then
    std::string why_dead;
    bool testified = false;  // to a successor, all that it had to tell
    std::uint32_t last_request = 0;
    std::uint32_t last_attempt = 0;
    std::vector<GroupAnswer> answers;  // that may not have come: one lost with a connection is given again
  };
  struct OwnRequest {
    std::uint32_t request;
    std::uint64_t cookie;
  };
  struct Newcomer {
    std::unique_ptr<ControlLink> link;
    Nanos since;
  };

  void on_link_up(ControlLink&) override {}
  void on_link_hello(ControlLink&, const wire::HelloPayload&) override {}
  void on_link_message(ControlLink& link, Message& message) override;
  void on_link_down(ControlLink& link, const Status& reason, bool hangup) override;
  void on_link_broken(ControlLink& link, const Status& reason) override;

  void admit(ControlLink& link, Join& join);
  void turn_away(ControlLink& link, const std::vector<int>& ranks, const Status& why);
  void readmit(ControlLink& link, const Rejoin& rejoin);
  std::unique_ptr<ControlLink> take_newcomer(ControlLink& link);
  void drop_newcomer(std::size_t index);
  void complete();
  void mislay(const Peer& peer);
  void fail(const Status& why);
  void refuse(ControlLink& link, const Status& why) { link.send(to_message(why)); }
  static Message to_message(const Status& why);
  void take_testimony(std::uint32_t from, const Message& message);
  void take_leave(std::uint32_t engine, std::vector<LastWord> words);
  std::string my_name() const;
  bool succeeds() const { return me_ != 0; }  // of rank 0's engine nobody is the successor
  void judge_ended(Nanos now);
  void declare_dead(std::uint32_t engine, const std::string& why, bool sure = true);
  void call_absent(Nanos now);
  void found_ended(std::uint32_t engine);
  void tell_all(const Message& message, std::uint32_t except);
  void spread(const Verdict& verdict, std::uint32_t from);
  void pass_on(const ConnectRequest& request, std::uint32_t from);
  void answer(std::vector<GroupAnswer>& answers);
  void send_answer(const GroupAnswer& a);
  void send_replies(std::vector<PolicyReply>& replies);
  void ranks_gone(const std::vector<int>& ranks, const Status& why);
  void beat(Nanos now);
  void bury(std::unique_ptr<ControlLink> link) noexcept { graveyard_.add(std::move(link)); }
  Nanos grace() const;

  MembershipOptions options_;
  LaneFactory& factory_;
  MembershipListener& listener_;
  Attention attention_;
  Phase phase_ = Phase::kIdle;
  std::uint32_t me_ = 0;           // this engine, once the roster is known
  Nanos gathers_until_ = Nanos{};  // a successor: it judges nobody before all have told what they know
  Nanos now_;
  Nanos join_deadline_ = Nanos::max();
  Nanos next_beat_ = Nanos::max();
  Nanos next_judgement_ = Nanos::max();  // the earliest of the peers' suspect_until, as of the last look
  Status failure_;
  std::shared_ptr<Roster> roster_ = std::make_shared<Roster>();  // shared with the listener, once complete
  std::vector<Peer> peers_;                                      // in order of arrival, after the join in the roster's
  std::vector<Newcomer> newcomers_;                              // said hello, not yet who they are; the oldest first
  SparseWarning refused_warning_;
  LinkGraveyard graveyard_;  // destroyed outside of callbacks
  JoinDesk joining_;         // while gathering
  GroupDesk desk_;
  MissDesk missing_;
  EntryDesk entries_;
  PolicyDesk policies_;
  RollCall roll_call_;
  std::vector<OwnRequest> own_requests_;
  VerdictLog verdicts_;
  Notices notices_;
  bool leaving_ = false;
  bool abandoned_ = false;
};

}  // namespace canarynet::control
