// control/succession.h -- the membership of an engine that may come to coordinate: a member, until the engines before
// it in the roster have died or left.
//
// See control/membership.h for the contract; everything goes to the part that is played now. Thread: the engine's
// owner.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "control/member.h"
#include "control/membership.h"

namespace canarynet::control {

class Succession final : public Membership {
 public:
  Succession(MembershipOptions options, LaneFactory& factory, MembershipListener& listener);

  Status start(Nanos now) override { return part_->start(now); }
  std::size_t poll(Nanos now) override;
  Nanos next_deadline() const override { return part_->next_deadline(); }
  Nanos last_heard(std::uint32_t engine) const override { return part_->last_heard(engine); }
  Nanos surely_heard(std::uint32_t engine) const override { return part_->surely_heard(engine); }
  bool joined() const override { return part_->joined(); }
  std::uint32_t coordinator() const override { return part_->coordinator(); }
  void request_group(Nanos now, int local_rank, std::vector<int> members, std::uint64_t cookie) override {
    part_->request_group(now, local_rank, std::move(members), cookie);
  }
  void flood(const Verdict& verdict) override { part_->flood(verdict); }
  void report_missed(Nanos now, std::vector<Missed> missed) override { part_->report_missed(now, std::move(missed)); }
  void ask_entered(Nanos now, GroupEpoch group) override { part_->ask_entered(now, group); }
  void tell_entered(Nanos now, const Entered& entered) override { part_->tell_entered(now, entered); }
  void ask_to_connect(Nanos now, std::uint32_t engine) override { part_->ask_to_connect(now, engine); }
  void say(Nanos now, PolicyWord word) override { part_->say(now, std::move(word)); }
  void give_up_workers(Nanos now, std::uint32_t engine) override { part_->give_up_workers(now, engine); }
  void leave(Nanos now, std::vector<LastWord> words) override { part_->leave(now, std::move(words)); }
  void abandon() noexcept override { part_->abandon(); }
  void adopt(std::unique_ptr<Lane>&& lane, const wire::Header& header, const wire::HelloPayload& hello) override {
    part_->adopt(std::move(lane), header, hello);
  }

 private:
  MembershipOptions options_;
  LaneFactory& factory_;
  MembershipListener& listener_;
  Member* member_;  // the part, while it is that
  std::unique_ptr<Membership> part_;
};

}  // namespace canarynet::control
