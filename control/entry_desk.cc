#include "control/entry_desk.h"

#include <algorithm>

#include "base/serial.h"

namespace canarynet::control {

bool EntryDesk::ask(Nanos now, GroupEpoch group) {
  if (std::any_of(open_.begin(), open_.end(), [&](const Inquiry& i) { return i.merged.group == group; })) return false;
  open_.push_back({{group, {}, {}}, std::vector<bool>(gone_.size()), now + patience_});
  return true;
}

void EntryDesk::answer(std::uint32_t engine, const Entered& entered) {
  if (engine >= gone_.size() || gone_[engine]) return;
  for (Inquiry& inquiry : open_) {
    if (inquiry.merged.group != entered.group || inquiry.answered[engine]) continue;
    inquiry.answered[engine] = true;
    if (!entered.by_rank.empty()) inquiry.merged.heard.push_back(engine);
    std::vector<std::uint32_t>& merged = inquiry.merged.by_rank;
    for (std::size_t r = 0; r < entered.by_rank.size(); ++r) {
      if (r == merged.size()) merged.push_back(entered.by_rank[r]);
      merged[r] = later_of(merged[r], entered.by_rank[r]);
    }
  }
}

void EntryDesk::forget(std::uint32_t engine) {
  if (engine < gone_.size()) gone_[engine] = true;
}

bool EntryDesk::complete(const Inquiry& inquiry) const {
  for (std::size_t e = 0; e < gone_.size(); ++e) {
    if (!inquiry.answered[e] && !gone_[e]) return false;
  }
  return true;
}

std::vector<Entered> EntryDesk::poll(Nanos now) {
  std::vector<Entered> out;
  std::erase_if(open_, [&](Inquiry& inquiry) {
    if (now < inquiry.deadline && !complete(inquiry)) return false;
    out.push_back(std::move(inquiry.merged));
    return true;
  });
  return out;
}

std::vector<GroupEpoch> EntryDesk::questions() const {
  std::vector<GroupEpoch> out;
  for (const Inquiry& inquiry : open_) out.push_back(inquiry.merged.group);
  return out;
}

Nanos EntryDesk::next_deadline() const {
  Nanos next = Nanos::max();
  for (const Inquiry& inquiry : open_) next = std::min(next, complete(inquiry) ? Nanos{} : inquiry.deadline);
  return next;
}

}  // namespace canarynet::control
