#include "tools/run/link_change.h"

#include <string>

#include "base/text.h"
#include "tools/run/options.h"
#include "tools/run/values.h"

namespace canarynet::run {

Result<bool> set_action(std::string_view action, std::string_view value, LinkChange* change) {
  using Action = LinkChange::Action;
  const std::string name = std::string(action) + "=";
  if (action == "rate") {
    const auto rate = parse_rate(name, value);
    if (!rate.ok()) return rate.status();
    change->rate = rate.value();
    change->action = Action::kRate;
  } else if (action == "loss") {
    const auto loss = parse_loss(name, value);
    if (!loss.ok()) return loss.status();
    change->loss_ppm = loss.value();
    change->action = Action::kLoss;
  } else if (action == "delay") {
    const auto delay = parse_time(name, value);
    if (!delay.ok()) return delay.status();
    change->delay = delay.value();
    change->action = Action::kDelay;
  } else if (action == "blackhole") {
    if (value != "on" && value != "off") return wrong(name, value, "takes on or off");
    change->on = value == "on";
    change->action = Action::kBlackhole;
  } else if ((action == "up" || action == "down") && value.empty()) {
    change->action = action == "up" ? Action::kUp : Action::kDown;
  } else {
    return false;
  }
  return true;
}

Result<LinkChange> parse_link_change(std::string_view text) {
  constexpr const char* kTakes =
      "takes host=H,nic=K and one of rate=R, up, down, blackhole=on|off, loss=P%, delay=T (H and K may be *)";
  LinkChange change;
  bool host = false, nic = false;
  for (const auto& part : split(text)) {
    const auto equals = part.find('=');
    const std::string key(part.substr(0, equals)),
        value(equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1));
    if (key == "host" || key == "nic") {
      (key == "host" ? host : nic) = true;
      if (value == "*") continue;
      const auto number = parse_int(key + "=", value, 0, kMaxHosts);
      if (!number.ok()) return wrong("link", text, kTakes);
      (key == "host" ? change.place.host : change.place.nic) = number.value();
      continue;
    }
    const bool first = change.action == LinkChange::Action::kNone;
    const auto known = set_action(key, value, &change);
    if (!known.ok()) return known.status();
    if (!known.value() || !first) return wrong("link", text, kTakes);
  }
  if (!host || !nic || change.action == LinkChange::Action::kNone) return wrong("link", text, kTakes);
  return change;
}

}  // namespace canarynet::run
