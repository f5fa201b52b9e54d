#include "control/group_desk.h"

#include <algorithm>

#include "control/text.h"

namespace canarynet::control {
namespace {

// "ranks 2, 0, 1", as listed; long lists are cut.
std::string in_order(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 32;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    out += (i != 0 ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > kShown ? out + ", ..." : out;
}

}  // namespace

void GroupDesk::ask(Nanos now, std::uint32_t engine, std::uint32_t request, int rank, const std::vector<int>& members,
                    std::vector<GroupAnswer>* answers, bool carried) {
  GroupAnswer answer{engine, request, rank, 0, {}, carried};
  const auto refuse = [&](const Status& why) {
    answer.why = why;
    answers->push_back(answer);
  };
  const auto invalid = [&](const std::string& text) { refuse(Status(CANARY_INVALID_ARGUMENT, text)); };
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return invalid("a group needs members");
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return invalid("a rank is listed twice in the group");
  }
  if (sorted.front() < 0 || static_cast<std::size_t>(sorted.back()) >= gone_.size()) {
    return invalid("the group names a rank outside the job's " + std::to_string(gone_.size()));
  }
  if (!std::binary_search(sorted.begin(), sorted.end(), rank))
    return invalid("rank " + std::to_string(rank) + " is no member of the group");

  for (const int member : members) {
    const Status& why = gone_[static_cast<std::size_t>(member)];
    if (!why.ok()) return refuse(why);
  }
  if (carried && take_recalled(&answer, members)) return answers->push_back(answer);
  auto list = std::find_if(lists_.begin(), lists_.end(), [&](const List& l) { return l.members == members; });
  if (list == lists_.end()) {
    lists_.push_back({members, std::vector<std::uint32_t>(members.size()), {}, 0});
    list = lists_.end() - 1;
  }
  const auto member = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
  const std::size_t index = list->requests[member]++ - list->done;
  if (index == list->waiting.size()) {
    list->waiting.push_back({{}, std::vector<bool>(members.size()), now + entry_limit_, {}});
  }
  Instance& instance = list->waiting[index];
  instance.has_asked[member] = true;
  if (!instance.failed.ok()) {
    answer.why = instance.failed;
    answers->push_back(answer);
    return drop_finished(*list);
  }
  instance.asked.push_back(answer);
  if (instance.asked.size() != members.size()) return;
  if (next_flow_ > kFlowsMax) {
    fail(instance, Status(CANARY_LIMIT, "the job has made " + std::to_string(kFlowsMax) + " groups: there are no more"),
         answers);
    return drop_finished(*list);
  }
  const std::uint32_t flow = next_flow_++;
  for (GroupAnswer& a : instance.asked) {
    a.flow = flow;
    answers->push_back(a);
  }
  instance.asked.clear();
  drop_finished(*list);
}

// The first of these groups that the rank may not have been told of.
bool GroupDesk::take_recalled(GroupAnswer* answer, const std::vector<int>& members) {
  for (auto group = recalled_.begin(); group != recalled_.end(); ++group) {
    if (group->members != members) continue;
    const auto member =
        static_cast<std::size_t>(std::find(members.begin(), members.end(), answer->rank) - members.begin());
    if (group->told[member] || forgotten_[static_cast<std::size_t>(answer->rank)] >= group->flow) continue;
    answer->flow = group->flow;
    group->told[member] = true;
    if (group->known_to_all()) recalled_.erase(group);
    return true;
  }
  return false;
}

// Takes back what that member waits for, as if it had not asked; in the order in which it did.
std::vector<GroupAnswer> GroupDesk::withdraw(List& list, std::size_t member) {
  std::vector<GroupAnswer> out;
  for (Instance& instance : list.waiting) {
    const auto its = std::find_if(instance.asked.begin(), instance.asked.end(),
                                  [&](const GroupAnswer& a) { return a.rank == list.members[member]; });
    if (its == instance.asked.end()) continue;
    out.push_back(*its);
    instance.asked.erase(its);
    instance.has_asked[member] = false;
    --list.requests[member];
  }
  std::erase_if(list.waiting, [](const Instance& i) {
    return std::find(i.has_asked.begin(), i.has_asked.end(), true) == i.has_asked.end();
  });
  if (list.waiting.empty()) lists_.erase(lists_.begin() + (&list - lists_.data()));
  return out;
}

void GroupDesk::recall(Nanos now, const std::vector<int>& ranks, std::uint32_t flow, const std::vector<int>& members,
                       std::vector<GroupAnswer>* answers) {
  const auto is_member = [&](int r) { return std::find(members.begin(), members.end(), r) != members.end(); };
  const auto in_job = [&](int r) { return r >= 0 && static_cast<std::size_t>(r) < gone_.size(); };
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!distinct || !std::all_of(members.begin(), members.end(), in_job) ||
      !std::all_of(ranks.begin(), ranks.end(), is_member)) {
    return;
  }
  next_flow_ = std::max(next_flow_, std::min(flow, kFlowsMax - kFlowsLeft) + kFlowsLeft);
  auto group = std::lower_bound(recalled_.begin(), recalled_.end(), flow,
                                [](const Recalled& known, std::uint32_t f) { return known.flow < f; });
  if (group == recalled_.end() || group->flow != flow) {
    if (recalled_.size() >= kRecalledMax) return;
    group = recalled_.insert(group, {flow, members, std::vector<bool>(members.size())});
  }
  if (group->members != members) return;
  for (const int rank : ranks) {
    const auto place = std::find(members.begin(), members.end(), rank);
    group->told[static_cast<std::size_t>(place - members.begin())] = true;
  }
  if (group->known_to_all()) {
    recalled_.erase(group);
    return;
  }
  // Some wait for it here, perhaps in front of others that they asked for later.
  const auto list = std::find_if(lists_.begin(), lists_.end(), [&](const List& l) { return l.members == members; });
  if (list == lists_.end()) return;
  std::vector<GroupAnswer> again;
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (group->told[m]) continue;
    const auto waits = [&](const Instance& i) {
      return std::any_of(i.asked.begin(), i.asked.end(),
                         [&](const GroupAnswer& a) { return a.rank == members[m] && a.carried; });
    };
    const auto still = std::find_if(lists_.begin(), lists_.end(), [&](const List& l) { return l.members == members; });
    if (still == lists_.end()) break;
    if (std::none_of(still->waiting.begin(), still->waiting.end(), waits)) continue;
    for (GroupAnswer& a : withdraw(*still, m)) again.push_back(std::move(a));
  }
  for (const GroupAnswer& a : again) ask(now, a.engine, a.request, a.rank, members, answers, a.carried);
}

void GroupDesk::forgotten(const std::vector<int>& ranks, std::uint32_t up_to) {
  for (const int rank : ranks) {
    std::uint32_t& known = forgotten_[static_cast<std::size_t>(rank)];
    known = std::max(known, up_to);
  }
  next_flow_ = std::max(next_flow_, std::min(up_to, kFlowsMax - kFlowsLeft) + kFlowsLeft);
}

// The list itself goes with the last one that waits: all its ranks have asked equally often then.
void GroupDesk::drop_finished(List& list) {
  const auto everybody = [](const Instance& i) {
    return std::find(i.has_asked.begin(), i.has_asked.end(), false) == i.has_asked.end();
  };
  while (!list.waiting.empty() && everybody(list.waiting.front())) {
    list.waiting.erase(list.waiting.begin());
    ++list.done;
  }
  if (list.waiting.empty()) lists_.erase(lists_.begin() + (&list - lists_.data()));
}

void GroupDesk::fail(Instance& instance, const Status& why, std::vector<GroupAnswer>* answers) {
  instance.failed = why;
  for (GroupAnswer& a : instance.asked) {
    a.why = why;
    answers->push_back(a);
  }
  instance.asked.clear();
}

void GroupDesk::ranks_gone(const std::vector<int>& ranks, const Status& why, std::vector<GroupAnswer>* answers) {
  for (const int rank : ranks) gone_[static_cast<std::size_t>(rank)] = why;
  // Nobody needs to be counted any more for a list that has one of them: every request for it fails from now on.
  std::erase_if(lists_, [&](List& list) {
    const bool touched = std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      return std::find(list.members.begin(), list.members.end(), rank) != list.members.end();
    });
    if (!touched) return false;
    // One that everybody asked for is formed already.
    for (Instance& instance : list.waiting) fail(instance, why, answers);
    return true;
  });
}

// "; rank 1 asked for ranks 2, 1, all must list them in the same order, here ranks 1, 2": where a rank that is missed
// waits for the same ranks in another order. Not said before the limit: other threads of both ranks may yet ask for
// both.
std::string GroupDesk::other_order(const List& list, const std::vector<int>& missing) const {
  for (const List& other : lists_) {
    if (&other == &list ||
        !std::is_permutation(other.members.begin(), other.members.end(), list.members.begin(), list.members.end())) {
      continue;
    }
    for (const Instance& instance : other.waiting) {
      for (std::size_t m = 0; m < other.members.size(); ++m) {
        const int rank = other.members[m];
        if (!instance.has_asked[m] || std::find(missing.begin(), missing.end(), rank) == missing.end()) continue;
        return "; rank " + std::to_string(rank) + " asked for " + in_order(other.members) +
               ": all must list them in the same order, here " + in_order(list.members);
      }
    }
  }
  return "";
}

void GroupDesk::poll(Nanos now, std::vector<GroupAnswer>* answers) {
  for (List& list : lists_) {
    for (Instance& instance : list.waiting) {
      if (instance.asked.empty() || now < instance.deadline) continue;
      std::vector<int> missing;
      for (std::size_t m = 0; m < list.members.size(); ++m) {
        if (!instance.has_asked[m]) missing.push_back(list.members[m]);
      }
      std::sort(missing.begin(), missing.end());
      std::vector<int> sorted = list.members;
      std::sort(sorted.begin(), sorted.end());
      ErrorDetail detail;
      detail.rank = missing.front();
      detail.phase = "entry";
      detail.elapsed = entry_limit_;
      fail(instance,
           Status(CANARY_ENTRY_TIMEOUT,
                  ranks_text(missing) + " did not ask for the group of " + ranks_text(sorted) + " within " +
                      duration_text(entry_limit_) + other_order(list, missing),
                  detail),
           answers);
    }
  }
}

Nanos GroupDesk::next_deadline() const {
  Nanos next = Nanos::max();
  for (const List& list : lists_) {
    for (const Instance& instance : list.waiting) {
      if (!instance.asked.empty()) next = std::min(next, instance.deadline);
    }
  }
  return next;
}

}  // namespace canarynet::control
