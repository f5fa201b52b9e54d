#include "engine/greeter.h"

#include <cstring>
#include <string>

#include "base/log.h"

namespace canarynet {
namespace {

constexpr std::size_t kGreetedMax = 1024;  // lanes that have not said hello
constexpr Nanos kGreetingLimit = 5_s;
constexpr Nanos kQuiet = 10_s;  // between warnings

}  // namespace

Greeter::Greeter(GreeterHost& host) : host_(host) { waiting_.reserve(kGreetedMax); }

void Greeter::take(std::unique_ptr<Lane> lane, Nanos now) {
  now_ = now;
  if (waiting_.size() >= kGreetedMax) return;  // the lane closes
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
  if (now_ < quiet_until_) {
    ++untold_;
    return;
  }
  const std::string before = untold_ == 0 ? "" : ", as were " + std::to_string(untold_) + " before";
  log(LogLevel::kWarn, "%s: a stranger (%s) was turned away%s", lane.description().c_str(), why, before.c_str());
  quiet_until_ = now_ + kQuiet;
  untold_ = 0;
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
