// control/control_link.h -- one control lane with what waits to be sent on it.
//
// What: sends control messages whole and in order, whatever the lane's queue takes at a time; hands decoded ones to its
// owner.
// Memory: a message too large for the lane to copy is kept here until the lane has handed it over. Shared between links
// when it goes to many. Thread: the engine's owner.
// Failures: on_link_down, once, from within the factory's poll(); without a hang-up where the local end failed or the
// network gave up (ETIMEDOUT, EHOSTUNREACH), which proves nobody's death. A message that does not decode or is not
// intact makes the link `broken`: it is not read any further and not closed either, since its end would look like a
// death; its owner says so (Retract) and goes on without it. So with a deaf lane (transport/lane.h), which is
// on_link_down without a hang-up.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control/messages.h"
#include "transport/lane.h"

namespace canarynet::control {

class ControlLink;

using Bytestring = std::shared_ptr<const std::vector<std::byte>>;
inline Bytestring share(const Message& message) {
  return std::make_shared<const std::vector<std::byte>>(encode(message));
}

class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void on_link_up(ControlLink& link) = 0;
  virtual void on_link_hello(ControlLink& link, const wire::HelloPayload& hello) = 0;
  virtual void on_link_message(ControlLink& link, Message& message) = 0;
  virtual void on_link_down(ControlLink& link, const Status& reason, bool hangup) = 0;
  virtual void on_link_broken(ControlLink& link, const Status& reason) = 0;
  bool news = true;  // Something came over a link, or one ended, since the owner last looked.
};

class ControlLink final : public LaneSink {
 public:
  // Takes over an accepted lane, or awaits the one that dial() makes.
  // `now`: the owner's clock, read when something is sent.
  ControlLink(LinkOwner& owner, const Nanos& now) : owner_(&owner), now_(&now) {}
  void adopt(std::unique_ptr<Lane> lane) noexcept;
  Status dial(LaneFactory& factory, const Address& to);

  void send_hello(const wire::HelloPayload& hello);
  void send(Bytestring message);
  void send(const Message& message) { send(share(message)); }
  // From now on it is that owner's.
  void hand_to(LinkOwner& owner, const Nanos& now) {
    owner_ = &owner;
    now_ = &now;
  }
  // No callback comes any more. The lane stays open until the link is destroyed, outside of callbacks.
  void retire() noexcept { owner_ = nullptr; }

  bool up() const { return lane_ != nullptr && lane_->up(); }
  // The other end's machine has all that was sent, and can be believed: what is not answered waits for its process.
  bool delivers() const { return up() && !broken_ && !retracted && !lane_->backs_off(); }
  // Takes more. Not one that is broken: its other end is to notice by what does not come.
  bool idle() const { return !broken_ && waiting_.empty(); }
  Address remote() const { return lane_ ? lane_->remote() : Address{}; }
  std::string description() const { return lane_ ? lane_->description() : "no lane"; }
  const Address& address() const { return address_; }  // dialled

  bool heard = false;         // since the owner last looked
  int entry = -1;             // the owner's
  std::uint32_t attempt = 0;  // the owner's
  std::uint64_t token = 0;    // the owner's
  bool retracted = false;     // the owner's: the other end has given it up

  void on_up(Lane& lane) override;
  Landing landing_for(Lane& lane, const wire::Header& header) override;
  void on_frame(Lane& lane, const wire::Header& header, const Arrival& arrival) override;
  void on_writable(Lane& lane) override;
  void on_down(Lane& lane, const Status& reason, bool hangup) override;

 private:
  struct Waiting {
    wire::Header header;
    Bytestring bytes;
  };
  void push();
  void break_off(const Status& reason);

  friend class LinkGraveyard;
  std::unique_ptr<ControlLink> buried_before_;
  LinkOwner* owner_;
  const Nanos* now_;
  Address address_;
  std::deque<Waiting> waiting_;      // not yet taken by the lane
  std::deque<Bytestring> borrowed_;  // taken, not surely handed over
  bool broken_ = false;
  std::string refusal_;         // what the other end said instead of a hello
  std::unique_ptr<Lane> lane_;  // ends before the bytes it may have borrowed
};

// Links that nobody needs any more, until no callback of their lanes can run. It takes them without any memory of its
// own: one that is let go because memory has run out would end inside its callback.
class LinkGraveyard {
 public:
  LinkGraveyard() = default;
  LinkGraveyard(const LinkGraveyard&) = delete;
  LinkGraveyard& operator=(const LinkGraveyard&) = delete;
  ~LinkGraveyard() { clear(); }
  void add(std::unique_ptr<ControlLink> link) noexcept {
    if (link == nullptr) return;
    link->retire();
    link->buried_before_ = std::move(last_);
    last_ = std::move(link);
  }
  bool empty() const { return last_ == nullptr; }
  void clear() noexcept {
    while (last_ != nullptr) last_ = std::move(last_->buried_before_);
  }

 private:
  std::unique_ptr<ControlLink> last_;
};

}  // namespace canarynet::control
