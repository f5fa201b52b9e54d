#include "engine/greeter.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "transport/frames.h"
#include "transport/strangers.h"

namespace canarynet {
namespace {

constexpr Nanos kGreetingLimit = 5_s;

}  // namespace

Greeter::Greeter(std::size_t strangers_max) : strangers_max_(strangers_max) {
  CANARY_CHECK(strangers_max != 0, "members come as strangers, too");
  waiting_.reserve(strangers_max);
}

void Greeter::serve(GreeterHost& host) {
  GreeterHost** const place = std::find(hosts_.begin(), hosts_.end(), nullptr);
  CANARY_CHECK(place != hosts_.end(), "a process has one engine and one endpoint on the same rails");
  *place = &host;
}

void Greeter::leave(GreeterHost& host) noexcept {
  std::replace(hosts_.begin(), hosts_.end(), &host, static_cast<GreeterHost*>(nullptr));
}

void Greeter::on_accept(std::unique_ptr<Lane> lane) {
  if (waiting_.size() >= strangers_max_) {
    const auto gone = [](const Waiting& w) { return w.finished || !w.lane; };
    if (std::erase_if(waiting_, gone) == 0) {
      const std::size_t i = one_to_drop(waiting_, [](const Waiting& w) { return w.lane->remote(); });
      turn_away(*waiting_[i].lane, "too many say nothing");
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  lane->set_sink(this);
  waiting_.push_back({std::move(lane), now_, false});
}

void Greeter::sweep() {
  std::erase_if(waiting_, [&](const Waiting& w) { return w.finished || !w.lane || now_ - w.since > kGreetingLimit; });
}

Landing Greeter::landing_for(Lane&, const wire::Header& h) {
  const bool hello = h.kind == wire::Kind::kHello && wire::check(h) == nullptr;
  return {hello ? Landing::Kind::kSlot : Landing::Kind::kDiscard, nullptr, 0};
}

void Greeter::on_frame(Lane& lane, const wire::Header& h, const Arrival& arrival) {
  Waiting* w = find(lane);
  if (w == nullptr || w->finished) return;
  wire::HelloPayload hello;
  const bool damaged = h.kind != wire::Kind::kHello || !arrival.intact;
  if (const char* const why = damaged ? "no hello" : wire::read(h, arrival.payload, &hello); why != nullptr) {
    turn_away(lane, why);
    w->finished = true;
    return;
  }
  // The leader of a job tells its members itself (control/coordinator.h).
  if (hello.purpose != wire::kHelloControl && !wire::speaks_our_version(hello)) {
    refuse(*w->lane, hello);
    w->finished = true;
    return;
  }
  GreeterHost** const host = std::find_if(
      hosts_.begin(), hosts_.end(), [&](const GreeterHost* one) { return one != nullptr && one->expects(hello); });
  if (host == hosts_.end()) {
    turn_away(lane, "another process was meant");
  } else {
    (*host)->on_hello(w->lane, h, hello);
  }
  if (w->lane) w->finished = true;
}

// The peer speaks another version: both are named, here and to the peer.
void Greeter::refuse(Lane& lane, const wire::HelloPayload& hello) {
  turn_away(lane, wire::describe_versions(hello).c_str());
  const std::vector<std::byte> frame =
      refusal_frame("the peer speaks protocol version " + std::to_string(wire::kVersion) + ", this side " +
                    wire::version_text(hello));
  CANARY_CHECK(frame.size() <= sizeof(wire::Header) + kInlinePayloadBytes, "a refusal is copied by its lane");
  wire::Header h;
  std::memcpy(&h, frame.data(), sizeof h);
  lane.send(h, frame.data() + sizeof h, 0);
  lane.flush(now_);
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
