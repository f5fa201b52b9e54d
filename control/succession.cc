#include "control/succession.h"

#include "control/coordinator.h"

namespace canarynet::control {

Succession::Succession(MembershipOptions options, LaneFactory& factory, MembershipListener& listener)
    : options_(std::move(options)), factory_(factory), listener_(listener) {
  auto member = std::make_unique<Member>(options_, factory, listener);
  member_ = member.get();
  part_ = std::move(member);
}

std::size_t Succession::poll(Nanos now) {
  std::size_t work = part_->poll(now);
  if (member_ == nullptr || !member_->succeeds()) return work;
  auto coordinator = std::make_unique<Coordinator>(options_, factory_, listener_);
  coordinator->succeed(now, member_->bequeath());
  member_ = nullptr;
  part_ = std::move(coordinator);
  return work + part_->poll(now);
}

}  // namespace canarynet::control
