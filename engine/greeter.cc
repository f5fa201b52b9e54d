#include "engine/greeter.h"

#include <cstring>
#include <string>

#include "base/check.h"
#include "transport/strangers.h"

namespace canarynet {
namespace {

constexpr Nanos kGreetingLimit = 5_s;

}  // namespace

Greeter::Greeter(GreeterHost& host, std::size_t strangers_max) : host_(host), strangers_max_(strangers_max) {
  CANARY_CHECK(strangers_max != 0, "members come as strangers, too");
  waiting_.reserve(strangers_max);
}

void Greeter::take(std::unique_ptr<Lane> lane, Nanos now) {
  now_ = now;
  if (waiting_.size() >= strangers_max_) {
    const auto gone = [](const Waiting& w) { return w.finished || !w.lane; };
    if (std::erase_if(waiting_, gone) == 0) {
      const std::size_t i = one_to_drop(waiting_, [](const Waiting& w) { return w.lane->remote(); });
      turn_away(*waiting_[i].lane, "too many say nothing");
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  lane->set_sink(this);
  waiting_.push_back({std::move(lane), now, false});
}

void Greeter::sweep(Nanos now) {
  now_ = now;
  std::erase_if(waiting_, [&](const Waiting& w) { return w.finished || !w.lane || now - w.since > kGreetingLimit; });
}

Landing Greeter::landing_for(Lane&, const wire::Header& h) {
  const bool hello = h.kind == wire::Kind::kHello && h.payload_bytes == sizeof(wire::HelloPayload);
  return {hello ? Landing::Kind::kSlot : Landing::Kind::kDiscard, nullptr, 0};
}

void Greeter::on_frame(Lane& lane, const wire::Header& h, const Arrival& arrival) {
  Waiting* w = find(lane);
  if (w == nullptr || w->finished) return;
  wire::HelloPayload hello;
  if (h.kind != wire::Kind::kHello || !arrival.intact || arrival.payload.size() != sizeof hello) {
    turn_away(lane, "no hello");
    w->finished = true;
    return;
  }
  std::memcpy(&hello, arrival.payload.data(), sizeof hello);
  host_.on_hello(w->lane, h, hello);
  if (w->lane) w->finished = true;
}

void Greeter::turn_away(const Lane& lane, const char* why) {
  warning_.say(now_, lane.description() + ": a stranger (" + why + ") was turned away");
}

void Greeter::on_down(Lane& lane, const Status&, bool) {
  if (Waiting* w = find(lane)) w->finished = true;
}

Greeter::Waiting* Greeter::find(const Lane& lane) {
  for (Waiting& w : waiting_) {
    if (w.lane.get() == &lane) return &w;
  }
  return nullptr;
}

}  // namespace canarynet
