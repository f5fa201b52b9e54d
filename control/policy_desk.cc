#include "control/policy_desk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "control/membership.h"
#include "topology/rails.h"

namespace canarynet::control {
namespace {

Status wrong(const std::string& text) { return Status(CANARY_INVALID_ARGUMENT, text); }

// What a worker may claim: beyond these, sums of times would overflow.
constexpr Nanos kCapabilityMax{1'000'000'000'000'000};

constexpr Nanos kAgeMax{1'000'000'000'000'000};
constexpr std::size_t kHeldMax = 65536;

// nullptr: none.
std::vector<std::uint32_t> listed(const sync::WorkerSet* workers) {
  std::vector<std::uint32_t> list;
  for (int w = workers != nullptr ? workers->next() : -1; w >= 0; w = workers->next(w + 1))
    list.push_back(static_cast<std::uint32_t>(w));
  return list;
}

bool sound(const sync::Question& q) {
  return q.capability >= Nanos{} && q.capability <= kCapabilityMax && q.number >= 0 && q.iterations >= 0;
}

sync::Meetings meetings_of(const Roster& roster, const std::vector<int>& ranks) {
  const Reachability reach =
      Reachability::from_rails(roster.rails_of_ranks(), roster.engine_of, roster.pairing).subset(ranks);
  if (reach.all_pairs([](std::uint32_t rails) { return rails != 0; })) return {};
  sync::Meetings meetings(reach.ranks());
  for (int a = 0; a < reach.ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      if (reach.meets(a, b)) meetings.add(a, b);
    }
  }
  return meetings;
}

}  // namespace

PolicyDesk::At PolicyDesk::find(const PolicyId& id) {
  return std::find_if(policies_.begin(), policies_.end(), [&](const auto& p) { return p->id == id; });
}

PolicyDesk::Policy* PolicyDesk::open(const PolicyWord& word, Status* why) {
  const auto refuse = [&](const Status& status) {
    *why = status;
    return nullptr;
  };
  const std::set<int> distinct(word.members.begin(), word.members.end());
  const bool members = !word.members.empty() && distinct.size() == word.members.size() && *distinct.begin() >= 0 &&
                       *distinct.rbegin() < static_cast<int>(gone_.size()) &&
                       distinct.count(static_cast<int>(word.rank)) != 0 && word.hosts.size() == word.members.size();
  if (!members) return refuse(wrong("its list of members is wrong"));
  if (const auto at = find(word.policy); at != policies_.end()) {
    Policy& there = **at;
    if (there.name == word.name && there.members == word.members && there.hosts == word.hosts) return &there;
    return refuse(Status(CANARY_MISMATCH, there.name != word.name
                                              ? "rank " + std::to_string(word.rank) + " opens policy \"" + word.name +
                                                    "\" and others \"" + there.name + "\" under one number"
                                              : "ranks open the policy with different members or hosts"));
  }
  const auto spec = sync::parse_policy(word.name);
  if (!spec.ok()) return refuse(spec.status());
  if (policies_.size() >= kPoliciesMax)
    return refuse(Status(CANARY_LIMIT, "this job has " + std::to_string(kPoliciesMax) + " policies that ask"));
  auto policy = std::make_unique<Policy>();
  sync::Cluster cluster;
  for (const std::uint32_t host : word.hosts) cluster.host_of.push_back(static_cast<int>(host));
  if (Status status = sync::check(spec.value(), cluster); !status.ok()) return refuse(status);
  if (roster_ != nullptr) cluster.meetings = meetings_of(*roster_, word.members);
  policy->random = std::make_unique<Random>(seed_ + word.policy.number);
  policy->coordinator = sync::make_coordinator(spec.value(), cluster, policy->random.get());
  if (policy->coordinator == nullptr) return refuse(wrong("policy " + word.name + " asks nobody"));
  policy->id = word.policy;
  policy->name = word.name;
  policy->members = word.members;
  policy->hosts = word.hosts;
  policy->workers.resize(word.members.size());
  policies_.push_back(std::move(policy));
  Policy& made = *policies_.back();
  for (std::size_t w = 0; w < made.members.size(); ++w) {
    if (!gone_[static_cast<std::size_t>(made.members[w])]) continue;
    made.workers[w].gone = true;
    answers_.clear();
    made.coordinator->died({}, static_cast<int>(w), &answers_);  // nobody waits yet
  }
  return &made;
}

void PolicyDesk::hear(Nanos now, const PolicyWord& word, std::vector<PolicyReply>* replies) {
  if (word.rank >= gone_.size() || gone_[word.rank]) return;
  Policy* policy = nullptr;
  Status why = wrong("no policy was opened under this number");
  const bool opens = word.kind == PolicyWord::Kind::kOpen || word.kind == PolicyWord::Kind::kResume;
  if (opens) {
    policy = open(word, &why);
  } else if (const auto at = find(word.policy); at != policies_.end()) {
    policy = at->get();
  } else if (word.kind == PolicyWord::Kind::kLeave) {
    // Said again, and over: the answer may have been lost with a connection.
    PolicyReply last;
    last.policy = word.policy;
    last.rank = word.rank;
    last.serial = word.seen + 1;
    last.heard = word.serial;
    last.last = true;
    replies->push_back(std::move(last));
    return;
  }
  const auto place = policy == nullptr
                         ? std::vector<int>::iterator{}
                         : std::find(policy->members.begin(), policy->members.end(), static_cast<int>(word.rank));
  if (policy != nullptr && place == policy->members.end()) {
    why = wrong("rank " + std::to_string(word.rank) + " is no member of it");
    policy = nullptr;
  }
  if (policy != nullptr && opens && policy->workers[static_cast<std::size_t>(place - policy->members.begin())].gone) {
    why = wrong("rank " + std::to_string(word.rank) + " has closed it, and a policy takes a number of its own");
    policy = nullptr;
  }
  if (policy == nullptr) {
    PolicyReply failed;
    failed.policy = word.policy;
    failed.rank = word.rank;
    failed.serial = word.seen + 1;
    failed.heard = word.serial;
    failed.failed = why.code();
    failed.text = why.text();
    replies->push_back(std::move(failed));
    return;
  }
  const int w = static_cast<int>(place - policy->members.begin());
  Worker& worker = policy->workers[static_cast<std::size_t>(w)];
  // A worker that resumes has its numbers from another coordinator.
  const bool first = word.kind == PolicyWord::Kind::kResume && !worker.opened;
  if (!first) std::erase_if(worker.replies, [&](const PolicyReply& r) { return r.serial <= word.seen; });
  if (worker.gone) return;
  // What a worker says last is heard also where its words before got lost with a connection.
  if (word.kind != PolicyWord::Kind::kLeave && !first && word.serial != worker.heard + 1) return;  // said again
  if (gathers() && policy->held.size() >= kHeldMax) return;
  worker.heard = word.serial;
  answers_.clear();
  switch (word.kind) {
    case PolicyWord::Kind::kOpen:
      worker.opened = true;
      // What others have asked for before it was there to hear of it.
      for (PolicyReply& early : worker.replies) {
        early.heard = worker.heard;
        replies->push_back(early);
      }
      break;
    case PolicyWord::Kind::kResume:
      if (first) resume(now, *policy, w, word, replies);
      if (!word.leaves) break;
      [[fallthrough]];
    case PolicyWord::Kind::kLeave:
      if (gathers()) {
        const bool known = std::any_of(policy->held.begin(), policy->held.end(),
                                       [&](const auto& held) { return held.first == w && !held.second; });
        if (!known) policy->held.emplace_back(w, std::nullopt);
      } else {
        depart(now, *policy, w, replies);
      }
      break;
    case PolicyWord::Kind::kAsk:
      if (!worker.opened || !sound(word.question)) return;
      sync::Question question = word.question;
      question.worker = w;
      if (gathers()) {
        policy->held.emplace_back(w, question);
        break;
      }
      policy->coordinator->asked(now, question, &answers_);
      pass_on(*policy, answers_, replies);
      break;
  }
  drop_if_over(find(word.policy));
}

void PolicyDesk::resume(Nanos now, Policy& policy, int w, const PolicyWord& word, std::vector<PolicyReply>* replies) {
  Worker& worker = policy.workers[static_cast<std::size_t>(w)];
  worker.opened = true;
  // It knows of this exchange already. The rest goes on in its own numbers.
  std::erase_if(worker.replies, [&](const PolicyReply& early) {
    return word.has_told && early.kind == word.told.kind && early.number == word.told.number;
  });
  worker.told = word.seen;
  for (PolicyReply& early : worker.replies) {
    early.serial = ++worker.told;
    early.heard = worker.heard;
    replies->push_back(early);
  }
  const std::vector<std::uint32_t>& with = word.told.members;
  const std::vector<std::uint32_t>& behind = word.told.behind;
  const auto has = [](const std::vector<std::uint32_t>& list, std::int64_t one) {
    return one >= 0 && std::binary_search(list.begin(), list.end(), static_cast<std::uint32_t>(one));
  };
  const bool source = behind.empty() ? word.told.source == -1
                                     : has(with, word.told.source) && !has(behind, word.told.source) &&
                                           std::includes(with.begin(), with.end(), behind.begin(), behind.end());
  const bool told = word.has_told && has(with, w) && with.back() < policy.workers.size() && source;
  if ((word.asked && !sound(word.question)) || word.ago < Nanos{} || word.ago > kAgeMax) return;
  sync::Question question = word.question;
  question.worker = w;
  sync::Recollection memory;
  memory.worker = w;
  if (word.asked) memory.question = &question;
  memory.ago = word.ago;
  memory.open = word.open;
  memory.leaves = word.leaves;
  if (told) memory.told = &word.told;
  if (told && word.told.kind == sync::Answer::Kind::kAggregate && word.told.number >= 0) {
    worker.round = word.told.number;
    if (worker.round > policy.round) {
      policy.round = worker.round;
      policy.round_lists = word.told.members;
      policy.round_source = word.told.source;
      policy.round_behind = behind;
    }
  }
  policy.coordinator->recall(now, memory);
  if (gathers()) return;  // the others come first
  answers_.clear();
  policy.coordinator->recalled(now, &answers_);
  pass_on(policy, answers_, replies);
}

void PolicyDesk::succeed(Nanos until) {
  gathers_until_ = until;
  testified_.assign(gone_.size(), false);
}

void PolicyDesk::testified(Nanos now, const std::vector<int>& ranks, std::vector<PolicyReply>* replies) {
  if (!gathers()) return;
  for (const int rank : ranks) testified_[static_cast<std::size_t>(rank)] = true;
  for (std::size_t r = 0; r < gone_.size(); ++r) {
    if (!testified_[r] && !gone_[r]) return;
  }
  go_on(now, replies);
}

// All memories are here, or it has been waited for them long enough.
void PolicyDesk::go_on(Nanos now, std::vector<PolicyReply>* replies) {
  gathers_until_ = Nanos::max();
  for (const auto& policy : policies_) {
    answers_.clear();
    for (const int w : std::exchange(policy->mourned, {})) policy->coordinator->died(now, w, &answers_);
    policy->coordinator->recalled(now, &answers_);
    pass_on(*policy, answers_, replies);
    for (const auto& [w, question] : std::exchange(policy->held, {})) {
      if (policy->workers[static_cast<std::size_t>(w)].gone) continue;
      if (!question) {
        depart(now, *policy, w, replies);
        continue;
      }
      answers_.clear();
      policy->coordinator->asked(now, *question, &answers_);
      pass_on(*policy, answers_, replies);
    }
  }
  for (std::size_t i = policies_.size(); i-- > 0;) drop_if_over(policies_.begin() + static_cast<std::ptrdiff_t>(i));
}

// Tells it first of the exchange that others count on it for.
void PolicyDesk::depart(Nanos now, Policy& policy, int w, std::vector<PolicyReply>* replies) {
  if (policy.round > policy.workers[static_cast<std::size_t>(w)].round &&
      std::find(policy.round_lists.begin(), policy.round_lists.end(), static_cast<std::uint32_t>(w)) !=
          policy.round_lists.end()) {
    PolicyReply owed;
    owed.kind = sync::Answer::Kind::kAggregate;
    owed.number = policy.round;
    owed.members = policy.round_lists;
    owed.source = policy.round_source;
    owed.behind = policy.round_behind;
    owed.counted = policy.coordinator->counted(w);
    reply(policy, w, std::move(owed), replies);
  }
  PolicyReply last;
  last.last = true;
  reply(policy, w, std::move(last), replies);
  leave(now, policy, w, replies);
}

void PolicyDesk::leave(Nanos now, Policy& policy, int worker, std::vector<PolicyReply>* replies) {
  Worker& it = policy.workers[static_cast<std::size_t>(worker)];
  if (std::exchange(it.gone, true)) return;
  if (gathers()) return policy.mourned.push_back(worker);
  answers_.clear();
  policy.coordinator->died(now, worker, &answers_);
  pass_on(policy, answers_, replies);
}

void PolicyDesk::ranks_gone(Nanos now, const std::vector<int>& ranks, std::vector<PolicyReply>* replies) {
  for (const int rank : ranks) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= gone_.size()) continue;
    gone_[static_cast<std::size_t>(rank)] = true;
    for (const auto& policy : policies_) {
      const auto place = std::find(policy->members.begin(), policy->members.end(), rank);
      if (place != policy->members.end())
        leave(now, *policy, static_cast<int>(place - policy->members.begin()), replies);
    }
  }
  for (std::size_t i = policies_.size(); i-- > 0;) drop_if_over(policies_.begin() + static_cast<std::ptrdiff_t>(i));
  testified(now, {}, replies);
}

void PolicyDesk::repeat(const std::vector<int>& ranks, std::vector<PolicyReply>* replies) const {
  for (const auto& policy : policies_) {
    for (std::size_t w = 0; w < policy->workers.size(); ++w) {
      if (std::find(ranks.begin(), ranks.end(), policy->members[w]) == ranks.end()) continue;
      for (PolicyReply again : policy->workers[w].replies) {
        again.heard = policy->workers[w].heard;
        replies->push_back(std::move(again));
      }
    }
  }
}

void PolicyDesk::pass_on(Policy& policy, const sync::Answers& answers, std::vector<PolicyReply>* replies) {
  for (const sync::Answer& answer : answers) {
    PolicyReply to;
    to.kind = answer.kind;
    to.number = answer.number;
    to.requested = answer.requested;
    to.steps = answer.steps;
    if (answer.members != nullptr) {
      to.members = listed(answer.members);
      to.source = answer.source;
      to.counted = answer.counted;
      to.behind = listed(answer.behind);
      if (answer.kind == sync::Answer::Kind::kAggregate)
        policy.workers[static_cast<std::size_t>(answer.worker)].round = answer.number;
    } else if (answer.kind == sync::Answer::Kind::kAggregate) {
      if (policy.round != answer.number) {
        policy.round = answer.number;
        policy.round_lists.clear();
        for (std::size_t w = 0; w < policy.workers.size(); ++w) {
          if (!policy.workers[w].gone) policy.round_lists.push_back(static_cast<std::uint32_t>(w));
        }
        policy.round_source = answer.source;
        policy.round_behind = listed(answer.behind);
      }
      to.members = policy.round_lists;
      to.source = policy.round_source;
      to.behind = policy.round_behind;
      to.counted = answer.counted;
      policy.workers[static_cast<std::size_t>(answer.worker)].round = answer.number;
      if (!std::binary_search(to.members.begin(), to.members.end(), static_cast<std::uint32_t>(answer.worker))) {
        to.failed = CANARY_MISMATCH;
        to.text = "others have begun round " + std::to_string(answer.number) + " without this worker";
      }
    }
    reply(policy, answer.worker, std::move(to), replies);
  }
}

void PolicyDesk::reply(Policy& policy, int worker, PolicyReply reply, std::vector<PolicyReply>* replies) {
  Worker& it = policy.workers[static_cast<std::size_t>(worker)];
  if (it.gone || it.replies.size() >= kRepliesMax) return;
  reply.policy = policy.id;
  reply.rank = static_cast<std::uint32_t>(policy.members[static_cast<std::size_t>(worker)]);
  reply.serial = ++it.told;
  reply.heard = it.heard;
  it.replies.push_back(reply);
  if (it.opened) replies->push_back(std::move(reply));
}

void PolicyDesk::drop_if_over(At at) {
  if (at == policies_.end()) return;
  const auto& workers = (*at)->workers;
  if (std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return w.gone; })) policies_.erase(at);
}

void PolicyDesk::poll(Nanos now, std::vector<PolicyReply>* replies) {
  if (now >= gathers_until_) go_on(now, replies);
  for (const auto& policy : policies_) {
    if (now < policy->coordinator->next_deadline()) continue;
    answers_.clear();
    policy->coordinator->expire(now, &answers_);
    pass_on(*policy, answers_, replies);
  }
}

Nanos PolicyDesk::next_deadline() const {
  Nanos next = gathers_until_;
  for (const auto& policy : policies_) next = std::min(next, policy->coordinator->next_deadline());
  return next;
}

}  // namespace canarynet::control
