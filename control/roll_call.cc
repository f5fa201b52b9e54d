#include "control/roll_call.h"

#include <algorithm>
#include <utility>

#include "control/ways.h"

namespace canarynet::control {

namespace {
constexpr std::size_t kCallsMax = 16;  // engines at a time
constexpr Nanos kRound = 3_s;          // long enough for a SYN that got lost to be sent again
}  // namespace

void RollCall::poll(Nanos now, std::span<const EngineInfo> engines, const std::function<bool(std::uint32_t)>& absent,
                    std::vector<std::uint32_t>* ended) {
  now_ = now;
  graveyard_.clear();
  if (std::exchange(refused_, false)) {
    for (const Call& call : calls_) {
      if (call.refusals == call.links.size()) ended->push_back(call.engine);
    }
  }
  if (now < next_round_) return;
  next_round_ = Nanos::max();
  for (Call& call : calls_) {
    // Addresses that never answer are of NICs that died with it.
    if (call.refusals != 0 && !call.up) ended->push_back(call.engine);
    for (auto& link : call.links) graveyard_.add(std::move(link));
  }
  calls_.clear();
  const auto all = static_cast<std::uint32_t>(engines.size());
  const std::uint32_t from = call_from_;
  for (std::uint32_t step = 0; step < all && calls_.size() < kCallsMax; ++step) {
    const std::uint32_t e = (from + step) % all;
    if (!absent(e)) continue;
    next_round_ = now + kRound;
    Call call{e, {}};
    for (const Address& way : ways_to(engines[e], options_)) {
      auto link = std::make_unique<ControlLink>(*this, now_);
      if (link->dial(factory_, way).ok()) call.links.push_back(std::move(link));
    }
    if (call.links.empty()) continue;
    calls_.push_back(std::move(call));
    call_from_ = e + 1;
  }
}

// One of these connections stands, or ended before it did.
void RollCall::on_answer(ControlLink& link, bool refused) {
  for (Call& call : calls_) {
    const auto found =
        std::find_if(call.links.begin(), call.links.end(), [&](const auto& l) { return l.get() == &link; });
    if (found == call.links.end()) continue;
    if (refused) refused_ |= ++call.refusals == call.links.size();
    call.up |= link.up();  // it lives, and will come
    if (!refused) graveyard_.add(std::move(*found));
    return;
  }
}

void RollCall::abandon() noexcept {
  next_round_ = Nanos::max();
  calls_.clear();
  graveyard_.clear();
}

}  // namespace canarynet::control
