#include "control/control_link.h"

#include <cstring>

#include "base/log.h"
#include "transport/frames.h"
#include "transport/strangers.h"

namespace canarynet::control {

namespace {
constexpr std::size_t kWaitingMax =
    8192;  // messages on a link that takes none: verdicts and deaths, one each, never get there
}

void ControlLink::adopt(std::unique_ptr<Lane> lane) noexcept {
  lane_ = std::move(lane);
  lane_->set_sink(this);
}

Status ControlLink::dial(LaneFactory& factory, const Address& to) {
  address_ = to;
  Result<std::unique_ptr<Lane>> lane = factory.dial(kControlRail, to, *this);
  if (!lane.ok()) return lane.status();
  lane_ = lane.take();
  return {};
}

void ControlLink::send_hello(const wire::HelloPayload& hello) {
  const auto* data = reinterpret_cast<const std::byte*>(&hello);
  const wire::Header header = wire::greeting(wire::Kind::kHello, data, sizeof hello);
  waiting_.push_back({header, std::make_shared<const std::vector<std::byte>>(data, data + sizeof hello)});
  push();
}

void ControlLink::send(Bytestring message) {
  if (lane_ == nullptr) return;
  if (message->size() > wire::kPayloadMax || waiting_.size() >= kWaitingMax) {
    return break_off(Status(CANARY_LIMIT, "a control message that does not fit"));
  }
  wire::Header header;
  header.kind = wire::Kind::kControl;
  header.payload_bytes = static_cast<std::uint32_t>(message->size());
  header.payload_crc32 = wire::payload_crc(message->data(), message->size());
  wire::seal(header);
  waiting_.push_back({header, std::move(message)});
  push();
}

void ControlLink::push() {
  if (lane_ == nullptr) return;
  // Handed over means copied: nobody reads these bytes again.
  if (!borrowed_.empty() && lane_->queued_bytes() == 0) borrowed_.clear();
  while (!waiting_.empty()) {
    const Waiting& next = waiting_.front();
    if (!lane_->send(next.header, next.bytes->data(), 1)) break;
    if (next.header.payload_bytes > kInlinePayloadBytes) borrowed_.push_back(next.bytes);
    waiting_.pop_front();
  }
  lane_->flush(*now_);
}

void ControlLink::on_up(Lane&) {
  if (owner_ != nullptr) owner_->on_link_up(*this);
}

Landing ControlLink::landing_for(Lane&, const wire::Header& header) {
  const bool wanted =
      owner_ != nullptr && !broken_ && wire::check(header) == nullptr &&
      (header.kind == wire::Kind::kControl || header.kind == wire::Kind::kHello || header.kind == wire::Kind::kAbort);
  return {wanted ? Landing::Kind::kSlot : Landing::Kind::kDiscard, nullptr, 0};
}

void ControlLink::on_frame(Lane&, const wire::Header& header, const Arrival& arrival) {
  if (owner_ == nullptr || broken_) return;
  heard = owner_->news = true;
  if (arrival.discarded) return;
  if (!arrival.intact) return break_off(Status(CANARY_SYSTEM, "a control message came damaged"));
  if (header.kind == wire::Kind::kAbort) {
    refusal_ = refusal_text(header, arrival.payload);
    return;
  }
  if (header.kind == wire::Kind::kHello) {
    wire::HelloPayload hello;
    if (const char* const why = wire::read(header, arrival.payload, &hello); why != nullptr)
      return break_off(Status(CANARY_SYSTEM, std::string("a hello with ") + why));
    return owner_->on_link_hello(*this, hello);
  }
  Result<Message> message = decode(arrival.payload);
  if (!message.ok()) return break_off(message.status());
  owner_->on_link_message(*this, message.value());
}

void ControlLink::on_writable(Lane&) { push(); }

void ControlLink::on_down(Lane&, const Status& reason, bool hangup) {
  if (owner_ == nullptr) return;
  LinkOwner* owner = owner_;
  owner_ = nullptr;
  owner->news = true;
  const Status why = refusal_.empty() ? reason : Status(CANARY_LIMIT, description() + ": turned away: " + refusal_);
  owner->on_link_down(*this, why, hangup);
}

void ControlLink::break_off(const Status& reason) {
  if (broken_) return;
  broken_ = true;
  log(LogLevel::kWarn, "%s: %s", description().c_str(), reason.text().c_str());
  if (owner_ != nullptr) owner_->on_link_broken(*this, reason);
}

}  // namespace canarynet::control
