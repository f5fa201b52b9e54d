#include "engine/knocker.h"

#include <algorithm>

#include "transport/frames.h"

namespace canarynet {
namespace {

constexpr Nanos kKnockLimit = 2_s;  // the owner knocks again by then

}  // namespace

void Knocker::knock(const wire::HelloPayload& hello, const Address& at, Nanos now) {
  now_ = now;
  auto lane = factory_.dial(hello.rail, at, *this);
  if (lane.ok()) knocks_.push_back({lane.take(), hello, now});
}

void Knocker::sweep(Nanos now) {
  now_ = now;
  std::erase_if(knocks_, [&](const Knock& k) { return k.over || now - k.since > kKnockLimit; });
}

void Knocker::on_up(Lane& lane) {
  const Knock* const k = find(lane);
  if (k == nullptr) return;
  const wire::Header h = wire::greeting(wire::Kind::kHello, &k->hello, sizeof k->hello);
  lane.send(h, reinterpret_cast<const std::byte*>(&k->hello), 0);
  lane.flush(now_);
}

void Knocker::on_down(Lane& lane, const Status&, bool) {
  if (Knock* const k = find(lane)) k->over = true;
}

Knocker::Knock* Knocker::find(const Lane& lane) {
  const auto found =
      std::find_if(knocks_.begin(), knocks_.end(), [&](const Knock& k) { return k.lane.get() == &lane; });
  return found != knocks_.end() ? &*found : nullptr;
}

}  // namespace canarynet
