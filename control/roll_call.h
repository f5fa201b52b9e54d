// control/roll_call.h -- a new coordinator calls the engines that have not come to it.
//
// Some of them ended together with its predecessor, and nobody saw it. One whose machine answers and that refuses at
// all its addresses is no more; one that stands lives, and will come. A few are called at a time, in turns. It decides
// nothing: its owner hears whom it found ended. Thread: the engine's owner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "control/control_link.h"
#include "control/membership.h"

namespace canarynet::control {

class RollCall final : public LinkOwner {
 public:
  // Options and factory are the owner's, and outlive it.
  RollCall(const MembershipOptions& options, LaneFactory& factory) : options_(options), factory_(factory) {}

  void begin(Nanos at) { next_round_ = at; }
  // Calls those of `engines` that are absent, when it is time, and adds to `ended` whoever refused.
  void poll(Nanos now, std::span<const EngineInfo> engines, const std::function<bool(std::uint32_t)>& absent,
            std::vector<std::uint32_t>* ended);
  Nanos next_deadline() const { return graveyard_.empty() && !refused_ ? next_round_ : now_; }
  void abandon() noexcept;

 private:
  struct Call {
    std::uint32_t engine;
    std::vector<std::unique_ptr<ControlLink>> links;
    std::size_t refusals = 0;
    bool up = false;  // one stood
  };

  void on_link_up(ControlLink& link) override { on_answer(link, /*refused=*/false); }
  void on_link_hello(ControlLink&, const wire::HelloPayload&) override {}
  void on_link_message(ControlLink&, Message&) override {}
  void on_link_down(ControlLink& link, const Status&, bool hangup) override { on_answer(link, hangup); }
  void on_link_broken(ControlLink&, const Status&) override {}
  void on_answer(ControlLink& link, bool refused);

  const MembershipOptions& options_;
  LaneFactory& factory_;
  Nanos now_;
  Nanos next_round_ = Nanos::max();
  std::vector<Call> calls_;      // of this round
  bool refused_ = false;         // one at all its addresses, since the last poll
  std::uint32_t call_from_ = 0;  // engines take turns
  LinkGraveyard graveyard_;      // destroyed outside of callbacks
};

}  // namespace canarynet::control
