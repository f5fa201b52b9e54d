// control/member.h -- the membership of an engine that does not coordinate: joins through the coordinator and keeps
// the way to it open.
//
// See control/membership.h for the contract. Joining: dials until the coordinator answers or the join time-out passed.
// After it: when nothing was heard for three heartbeat intervals, all addresses of the coordinator are dialled at once
// and the first that stands carries a REJOIN, also when the old connection speaks again meanwhile: what it lost is said
// again. So at once when either end can't read the connection any more. The old connection, and those of attempts that
// were not answered, stay open until one was: closing one that the coordinator holds for ours would look like our
// death.
// Once the coordinator has died or left, the next engine that lives takes its place. This one dials it and says again
// what has no answer yet, and what a coordinator has to know; or it succeeds itself (control/succession.h).
// Thread: the engine's owner.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/attention.h"
#include "base/sparse_warning.h"
#include "control/control_link.h"
#include "control/inheritance.h"
#include "control/membership.h"
#include "control/notices.h"

namespace canarynet::control {

class Member final : public Membership, public LinkOwner {
 public:
  Member(MembershipOptions options, LaneFactory& factory, MembershipListener& listener);

  Status start(Nanos now) override;
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override;
  Nanos last_heard(std::uint32_t engine) const override;
  Nanos surely_heard(std::uint32_t engine) const override;
  bool joined() const override { return phase_ == Phase::kJoined; }
  std::uint32_t coordinator() const override { return coordinator_; }
  void request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) override;
  void flood(const Verdict& verdict) override;
  void report_missed(Nanos now, std::vector<Missed> missed) override;
  void ask_entered(Nanos now, GroupEpoch group) override;
  void tell_entered(Nanos now, const Entered& entered) override;
  void ask_to_connect(Nanos now, std::uint32_t engine) override;
  void say(Nanos now, PolicyWord word) override;
  void give_up_workers(Nanos, std::uint32_t engine) override { given_up_.push_back(engine); }
  void leave(Nanos now, std::vector<LastWord> words) override;
  void abandon() noexcept override;
  void adopt(std::unique_ptr<Lane>&& lane, const wire::Header& header, const wire::HelloPayload& hello) override;

  // It is this engine's turn to coordinate, and the listener has heard of it.
  bool succeeds() const { return phase_ == Phase::kJoined && coordinator_ == me_ && !leaving_ && notices_.empty(); }
  // What it takes there. Nothing but its destruction follows.
  Inheritance bequeath();

 private:
  enum class Phase { kIdle, kJoining, kJoined, kFailed };
  // The coordinator, after the join.
  enum class Way { kOpen, kLost, kLeft, kDied, kEvicted };  // kLost: being dialled again
  struct Pending : OpenRequest {
    Nanos deadline;
  };

  void on_link_up(ControlLink& link) override;
  void on_link_hello(ControlLink& link, const wire::HelloPayload& hello) override;
  void on_link_message(ControlLink& link, Message& message) override;
  void on_link_down(ControlLink& link, const Status& reason, bool hangup) override;
  void on_link_broken(ControlLink& link, const Status& reason) override;

  void dial_to_join(Nanos now);
  void join_again(const std::string& why);
  void take_next_address();
  void welcome(Welcome& part);
  void fail(const Status& why);
  void lose_way();
  void dial_again(Nanos now);
  void settle(ControlLink& link, std::uint32_t attempt);
  void lose_coordinator(Way way, const Status& why);
  void on_refused();
  void pass_over(const std::string& why);
  void remember(int rank, std::uint32_t flow, std::vector<int> members);
  void seek();
  void end_way(Way way, const Status& why);
  EarlyMember* find_early(const ControlLink& link);
  void drop_early(std::size_t index);
  void on_refuse(const Refuse& refuse);
  void send_request(const Pending& pending);
  void answer(std::uint32_t request, std::uint32_t flow, const Status& why);
  void bury(std::unique_ptr<ControlLink> link) noexcept { graveyard_.add(std::move(link)); }
  void move_clocks(Nanos missed);
  void bury_all(std::vector<std::unique_ptr<ControlLink>>* links);
  std::string coordinator_text() const;
  bool silence_counts() const;
  bool gone() const { return way_ == Way::kLeft || way_ == Way::kDied || way_ == Way::kEvicted; }

  MembershipOptions options_;
  LaneFactory& factory_;
  MembershipListener& listener_;
  Attention attention_;
  Phase phase_ = Phase::kIdle;
  Way way_ = Way::kOpen;
  Nanos now_;

  // joining
  Nanos started_;
  Nanos next_dial_ = Nanos::max();
  Nanos backoff_;
  Nanos join_deadline_ = Nanos::max();
  bool answered_ = false;  // the coordinator said hello on this connection
  std::string last_error_;

  // joined
  std::shared_ptr<Roster> roster_ = std::make_shared<Roster>();  // shared with the listener, once complete
  std::uint32_t me_ = 0;
  std::uint16_t control_port_ = 0;  // where this engine listens for the others, should it coordinate
  std::uint32_t coordinator_ = 0;   // the engine that does, or is to
  SparseWarning refused_warning_;
  Nanos sought_at_;                                     // when it came to that
  bool settled_ = true;                                 // it has taken up a connection of ours
  std::vector<bool> passed_over_;                       // [engine]: refused us before it coordinated
  std::vector<EarlyMember> early_;                      // take this engine for the coordinator; it may know soon why
  std::unique_ptr<ControlLink> link_;                   // the coordinator's and ours
  std::vector<std::unique_ptr<ControlLink>> dialling_;  // of this round
  std::size_t ways_ = 0;                                // that it began with, and how many of them were refused
  std::size_t refusals_ = 0;
  Nanos partly_refused_at_;                             // the last round before some of them were
  std::vector<std::unique_ptr<ControlLink>> attempts_;  // sent REJOIN, not answered yet; the last is the current one
  LinkGraveyard graveyard_;                             // destroyed outside of callbacks
  std::uint32_t attempt_ = 0;                           // last REJOIN sent
  Nanos round_ends_ = Nanos::max();
  Nanos dialled_at_;
  bool redialled_ = false;  // since the way was lost
  bool just_heard_ = false;
  bool ended_ = false;               // link_ hung up; judged in poll(), when the time is known
  Nanos last_heard_;                 // the coordinator
  std::vector<Nanos> heard_;         // [engine]: by the coordinator, when it told so
  std::vector<Nanos> surely_heard_;  // [engine]: when it had told the time before
  Nanos told_at_;                    // its last word of whom it hears
  std::vector<std::uint64_t> heard_bits_;
  Nanos next_beat_ = Nanos::max();
  std::vector<Ended> ended_engines_;  // [engine]
  std::vector<Pending> pending_;
  std::uint32_t last_request_ = 0;
  VerdictLog verdicts_;
  VerdictLog own_verdicts_;              // said again after a rejoin
  std::vector<Missed> missed_;           // last reported, likewise
  std::vector<GroupEpoch> questions_;    // without an answer, likewise
  std::vector<std::uint32_t> given_up_;  // for their silence; the coordinator sees by itself, as long as there is one
  std::vector<PolicyWord> words_;        // of which it is not known that they came, likewise
  std::deque<OwnGroup> groups_;          // the last ones that ranks served here were told of
  std::uint32_t forgotten_ = 0;          // the flow of the last one that is no longer in it
  Notices notices_;
  bool leaving_ = false;
  bool abandoned_ = false;
};

}  // namespace canarynet::control
