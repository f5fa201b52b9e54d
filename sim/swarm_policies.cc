#include "sim/swarm_policies.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "port/policy.h"

namespace canarynet {
namespace {

using sync::Exchange;
using sync::Question;
using sync::Task;

}  // namespace

SwarmPolicies::SwarmPolicies(const Life& life, std::uint64_t seed, Excuse excuse, SwarmExchanges::Excuse of_exchanges)
    : life_(life), random_(seed ^ 0x706f6c696379ull), excuse_(std::move(excuse)) {
  const int n = life.ranks();
  sync::Cluster hosts;
  for (int r = 0; r < n; ++r) hosts.host_of.push_back(r / life.cluster.ranks_per_host);
  hosts_.assign(hosts.host_of.begin(), hosts.host_of.end());
  const char* const names[] = {"ripples:smart", "ripples:random", "ad-psgd", "esync", "esync-nb"};
  const std::uint64_t count = !life.pairs ? 0 : n > 16 ? 1 + random_.below(2) : random_.below(3);
  for (std::uint64_t i = 0; i < count; ++i) {
    Policy& policy = policies_.emplace_back();
    policy.number = i + 1;
    policy.name = names[random_.below(std::size(names))];
    if (policy.name.starts_with("ripples") && random_.below(2) == 0)
      policy.name +=
          ",group=" + std::to_string(2 + random_.below(4)) + ",section=" + std::to_string(1 + random_.below(3));
    policy.spec = sync::parse_policy(policy.name).value();
    const Status fits = sync::check(policy.spec, hosts);
    CANARY_CHECK(fits.ok(), "a policy that does not fit the cluster");
    // A passive worker averages beside its iteration, as soon as it hears.
    policy.listens = policy.spec.kind == sync::PolicySpec::Kind::kAdPsgd || random_.below(2) == 0;
    policy.count = 1 + random_.below(random_.below(3) == 0 ? 20'000 : 500);
    policy.exchanges = std::make_unique<SwarmExchanges>(of_exchanges);
    const Nanos iteration = 200_us + below(4_ms), begin = below(30_ms);
    const bool slow = random_.below(2) == 0;
    const int iterations = static_cast<int>(n > 16 ? 3 + random_.below(5) : 3 + random_.below(20));
    for (int r = 0; r < n; ++r) {
      Worker& worker = policy.workers.emplace_back();
      worker.policy = &policy;
      worker.rank = r;
      worker.until = begin + below(5_ms);
      worker.iteration = iteration + below(iteration / 2);
      if (slow && random_.below(4) == 0)
        worker.iteration = worker.iteration * static_cast<std::int64_t>(2 + random_.below(8));
      worker.left = iterations;
      worker.members = sync::WorkerSet(n);
      worker.value = static_cast<double>(random_.below(1000)) / 8;
      worker.decides = sync::make_worker(policy.spec, hosts, r, worker.iteration);
    }
  }
}

std::string SwarmPolicies::shape() const {
  std::string text = std::to_string(policies_.size()) + " policies";
  for (const Policy& policy : policies_) text += " " + policy.name + (policy.listens ? " (listens)" : "");
  return text;
}

std::uint64_t SwarmPolicies::exchanges() const {
  std::uint64_t sum = 0;
  for (const Policy& policy : policies_) sum += policy.exchanges->called();
  return sum;
}

void SwarmPolicies::begin(Cluster* cluster) {
  cluster_ = cluster;
  cluster->add_watcher(this);
  last_event_ = cluster->now();
  for (Policy& policy : policies_) {
    policy.exchanges->begin(cluster);
    for (Worker& worker : policy.workers) worker.until = worker.until + cluster->now();
  }
}

std::string SwarmPolicies::name(const Worker& worker) const {
  return "rank " + std::to_string(worker.rank) + ", policy " + std::to_string(worker.policy->number) + ", " +
         worker.policy->name + ": ";
}

// --- the worker's loop -----------------------------------------------------------------------------------------------

bool SwarmPolicies::act() {
  if (policies_.empty()) return false;
  const auto n = policies_.size() * policies_.front().workers.size();
  const auto turn = random_.below(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = (turn + i) % n;
    if (go(policies_[at % policies_.size()].workers[at / policies_.size()])) return true;
  }
  return false;
}

bool SwarmPolicies::can_call(const Worker& worker) const {
  const int host = cluster_->host_of(worker.rank);
  return cluster_->alive(host) && !cluster_->fabric().frozen(host);
}

Nanos SwarmPolicies::wakes() const {
  Nanos next = Nanos::max();
  for (const Policy& policy : policies_) {
    for (const Worker& w : policy.workers) {
      const bool goes = w.at == Worker::At::kWaiting || (w.at == Worker::At::kGoing && w.trains);
      if (goes && w.until > cluster_->now()) next = std::min(next, w.until);
    }
  }
  return next;
}

bool SwarmPolicies::go(Worker& worker) {
  using At = Worker::At;
  if (worker.at == At::kBuried || worker.at == At::kClosed || !can_call(worker)) return false;
  const bool due = worker.until <= cluster_->now();
  if (worker.at == At::kOver) {
    if (exchanges(worker)) return false;
    call(worker, [&](const GroupMember& m, port::TicketId ticket) {
      return port::close_policy(m.id, worker.policy->number, ticket);
    });
    worker.at = At::kClosed;
  } else if (worker.at == At::kWaiting && due) {
    open(worker);
  } else if (worker.at == At::kGoing && worker.trains && due) {
    worker.trains = false;
    --worker.left;
    worker.value += 0.25 * worker.rank;
    worker.decides->trained(cluster_->now(), worker.iteration);
    decide(worker);
  } else if (worker.ready) {
    decide(worker);
  } else {
    return false;
  }
  last_event_ = cluster_->now();
  return true;
}

template <typename Make>
bool SwarmPolicies::call(Worker& worker, const Make& make) {
  OpTicket ticket;
  const GroupMember* const member = cluster_->world(worker.rank);
  // Its end may come to whoever waits for an answer within the same poll.
  const bool closes = worker.at == Worker::At::kOver;
  cluster_->submit(worker.rank, make(*member, cluster_->id(member, &ticket)));
  CANARY_CHECK(ticket.done(), "a call of a policy that waits");
  if (ticket.code == CANARY_OK) return true;
  if (closes) {
    fail(name(worker) + "it was not closed: " + ticket.status.to_string());
  } else {
    refused(worker, ticket.status);
  }
  return false;
}

void SwarmPolicies::open(Worker& worker) {
  const Policy& policy = *worker.policy;
  worker.at = Worker::At::kGoing;
  const bool opened = call(worker, [&](const GroupMember& m, port::TicketId ticket) {
    return port::open_policy(m.id, policy.number, policy.name, hosts_, ticket);
  });
  if (opened) return decide(worker);
  worker.at = Worker::At::kClosed;
}

void SwarmPolicies::decide(Worker& worker) {
  worker.ready = false;
  while (worker.at == Worker::At::kGoing) {
    if (worker.policy->listens) {
      listen(worker);
    } else {
      take_answers(worker);
    }
    if (worker.at != Worker::At::kGoing || exchanges(worker)) return;
    const Task task = worker.decides->next(cluster_->now());
    switch (task.kind) {
      case Task::Kind::kAsk:
        ask(worker, task.question);
        break;
      case Task::Kind::kWait:
        return listen(worker);
      case Task::Kind::kExchange:
        return exchange(worker);
      case Task::Kind::kTrain:
        if (worker.trains) return;
        if (worker.left <= 0) return leave(worker);
        worker.trains = true;
        worker.until = cluster_->now() + worker.iteration;
        return;
    }
  }
  if (worker.at == Worker::At::kLeaving) finish_leaving(worker);
}

void SwarmPolicies::ask(Worker& worker, const Question& question) {
  if (question.kind == Question::Kind::kDone || question.kind == Question::Kind::kPulled) over(worker);
  const std::uint64_t words[port::kQuestionWords] = {
      static_cast<std::uint64_t>(question.kind), static_cast<std::uint64_t>(question.number),
      static_cast<std::uint64_t>(question.iterations), static_cast<std::uint64_t>(question.capability.count)};
  call(worker, [&](const GroupMember& m, port::TicketId ticket) {
    return port::ask_policy(m.id, worker.policy->number, words, ticket);
  });
}

void SwarmPolicies::leave(Worker& worker) {
  worker.at = Worker::At::kLeaving;
  const bool left = call(worker, [&](const GroupMember& m, port::TicketId ticket) {
    return port::leave_policy(m.id, worker.policy->number, ticket);
  });
  if (left) finish_leaving(worker);
}

// Others may count on it still.
void SwarmPolicies::finish_leaving(Worker& worker) {
  if (exchanges(worker)) return;
  if (worker.named) return exchange(worker);
  if (!worker.last) return listen(worker);
  worker.at = Worker::At::kOver;
}

void SwarmPolicies::exchange(Worker& worker) {
  Policy& policy = *worker.policy;
  if (!worker.named) return fail(name(worker) + "an exchange that it was not told of");
  SwarmExchanges::Terms terms;
  terms.number = policy.number << 32 | static_cast<std::uint64_t>(worker.number);
  for (int r = worker.members.next(); r >= 0; r = worker.members.next(r + 1)) terms.ranks.push_back(r);
  terms.count = policy.count;
  if (terms.ranks.size() < 2) {
    exchanged(worker, {worker.rank, terms.number, true, worker.value});
  } else {
    policy.exchanges->call(worker.rank, terms, worker.value);
    look(policy);
  }
}

void SwarmPolicies::exchanged(Worker& worker, const SwarmExchanges::End& end) {
  last_event_ = cluster_->now();
  mix(end.ok ? static_cast<std::uint64_t>(end.value * 1024) : 1);
  errors_ += end.ok ? 0 : 1;
  if (end.ok) worker.value = end.value;
  worker.named = false;
  worker.ready = true;
  if (worker.at == Worker::At::kGoing) {
    worker.decides->exchanged(cluster_->now());
  } else {
    over(worker);
  }
}

// --- answers ---------------------------------------------------------------------------------------------------------

// Waits for one, if it does not already.
void SwarmPolicies::listen(Worker& worker) {
  if (worker.ticket == nullptr) await(worker, true);
}

// All that have come.
void SwarmPolicies::take_answers(Worker& worker) {
  while (worker.ticket == nullptr && worker.at == Worker::At::kGoing) {
    await(worker, false);
    CANARY_CHECK(worker.ticket->done(), "a look for answers that waits");
    if (!hear(worker)) return;
  }
}

void SwarmPolicies::await(Worker& worker, bool waits) {
  const std::size_t bytes = port::policy_answer_bytes(static_cast<std::uint64_t>(life_.ranks()));
  worker.answer = std::make_unique<LentMemory>(bytes);
  worker.ticket = std::make_unique<OpTicket>();
  worker.waits = waits;
  const GroupMember* const member = cluster_->world(worker.rank);
  cluster_->submit(worker.rank, port::next_answer(member->id, worker.policy->number, {worker.answer->data(), bytes},
                                                  waits, cluster_->id(member, worker.ticket.get())));
}

void SwarmPolicies::polled(int host) {
  for (Policy& policy : policies_) {
    policy.exchanges->settle(host, [&](const SwarmExchanges::End& end) {
      exchanged(policy.workers[static_cast<std::size_t>(end.rank)], end);
    });
    look(policy);
    for (int r = cluster_->first_rank(host); r < cluster_->first_rank(host + 1); ++r) {
      Worker& worker = policy.workers[static_cast<std::size_t>(r)];
      const bool hears = worker.at == Worker::At::kGoing || worker.at == Worker::At::kLeaving;
      if (!hears || worker.ticket == nullptr) continue;
      if (worker.waits && worker.ticket->done()) hear(worker);
    }
  }
}

// Takes the answer that has come. False: there is none.
bool SwarmPolicies::hear(Worker& worker) {
  const std::unique_ptr<OpTicket> ticket = std::move(worker.ticket);
  port::PolicyAnswer head;
  std::vector<int> members;
  if (ticket->code == CANARY_OK) {
    std::memcpy(&head, worker.answer->data(), sizeof head);
    for (std::uint32_t i = 0; i < head.members; ++i) {
      std::uint32_t member = 0;
      std::memcpy(&member, worker.answer->data() + sizeof head + i * sizeof member, sizeof member);
      members.push_back(static_cast<int>(member));
    }
  }
  worker.answer->take_back();
  if (const std::string where = shelf_.add(std::move(*worker.answer)); !where.empty()) fail(where);
  worker.answer.reset();
  if (ticket->code != CANARY_OK) return refused(worker, ticket->status), false;
  if (head.kind == port::PolicyAnswer::kNone) return false;
  last_event_ = cluster_->now();
  ++answers_;
  worker.ready = true;
  if (head.kind == port::PolicyAnswer::kLast) {
    if (worker.at != Worker::At::kLeaving) fail(name(worker) + "the last answer, and it has not left");
    worker.last = true;
    return true;
  }
  mix(static_cast<std::uint64_t>(head.number) << 8 | head.kind);
  sync::Answer answer;
  answer.kind = static_cast<sync::Answer::Kind>(head.kind);
  answer.worker = worker.rank;
  answer.number = head.number;
  answer.requested = head.requested != 0;
  answer.steps = head.steps;
  if (!members.empty()) {
    tell(worker, head.number, members);
    answer.members = &worker.members;
  }
  if (!failure_.empty() || worker.at != Worker::At::kGoing) return true;
  if (worker.decides->answered(cluster_->now(), answer) == sync::WorkerPolicy::Reaction::kInterrupt)
    worker.trains = false;
  return true;
}

// It is told of an exchange.
void SwarmPolicies::tell(Worker& worker, std::int64_t number, const std::vector<int>& members) {
  Policy& policy = *worker.policy;
  const auto list = [](const std::vector<int>& ranks) {
    std::string text;
    for (const int r : ranks) text += " " + std::to_string(r);
    return text;
  };
  const std::string what = name(worker) + "told of exchange " + std::to_string(number) + " among" + list(members);
  if (worker.named) return fail(what + ", and exchange " + std::to_string(worker.number) + " is not over");
  if (number <= worker.number) return fail(what + ", after exchange " + std::to_string(worker.number));
  if (std::find(members.begin(), members.end(), worker.rank) == members.end()) return fail(what);
  worker.named = true;
  worker.number = number;
  worker.members.clear();
  for (const int r : members) worker.members.add(r);
  const auto known = policy.told.find(number);
  if (known != policy.told.end()) {
    known->second.heard.push_back(worker.rank);
    if (known->second.members != members) fail(what + ", and others among" + list(known->second.members));
    return;
  }
  for (const auto& [running, told] : policy.told) {
    for (std::size_t i = 0; i < told.members.size(); ++i) {
      if (told.over[i] || std::find(members.begin(), members.end(), told.members[i]) == members.end()) continue;
      return fail(what + ", and rank " + std::to_string(told.members[i]) + " is in exchange " +
                  std::to_string(running) + " among" + list(told.members));
    }
  }
  Told& told = policy.told[number];
  told.members = members;
  told.heard = {worker.rank};
  for (const int r : members) {
    const Worker::At at = policy.workers[static_cast<std::size_t>(r)].at;
    told.over.push_back(at == Worker::At::kOver || at == Worker::At::kClosed || at == Worker::At::kBuried);
  }
}

// The worker takes part in nothing that it was told of.
void SwarmPolicies::over(const Worker& worker) {
  for (auto at = worker.policy->told.begin(); at != worker.policy->told.end();) {
    Told& told = at->second;
    for (std::size_t i = 0; i < told.members.size(); ++i) {
      if (told.members[i] == worker.rank) told.over[i] = true;
    }
    const bool all = std::all_of(told.over.begin(), told.over.end(), [](bool one) { return one; });
    at = all ? worker.policy->told.erase(at) : std::next(at);
  }
}

void SwarmPolicies::refused(Worker& worker, const Status& status) {
  ++errors_;
  last_event_ = cluster_->now();
  if (const std::string wrong = excuse_(worker.rank, status); !wrong.empty()) fail(name(worker) + wrong);
  worker.at = Worker::At::kOver;
  over(worker);
}

// --- the end ---------------------------------------------------------------------------------------------------------

void SwarmPolicies::bury(int host) {
  for (Policy& policy : policies_) {
    for (Worker& worker : policy.workers) {
      if (cluster_->host_of(worker.rank) != host) continue;
      worker.at = Worker::At::kBuried;
      over(worker);
    }
    // The next coordinator can't know of what only the dead were told.
    std::erase_if(policy.told, [&](const auto& one) {
      return std::all_of(one.second.heard.begin(), one.second.heard.end(),
                         [&](int r) { return policy.workers[static_cast<std::size_t>(r)].at == Worker::At::kBuried; });
    });
    policy.exchanges->bury(host);
  }
}

bool SwarmPolicies::finished() const {
  return std::all_of(policies_.begin(), policies_.end(), [](const Policy& policy) {
    return std::all_of(policy.workers.begin(), policy.workers.end(),
                       [](const Worker& w) { return w.at == Worker::At::kClosed || w.at == Worker::At::kBuried; });
  });
}

void SwarmPolicies::close() {
  for (Policy& policy : policies_) {
    policy.exchanges->close();
    look(policy);
  }
  if (const std::string where = shelf_.trespass(); !where.empty()) fail(where);
}

std::string SwarmPolicies::pending() const {
  const char* const names[] = {"waiting", "going", "leaving", "over"};
  std::string text;
  for (const Policy& policy : policies_) {
    for (const Worker& w : policy.workers) {
      if (w.at >= Worker::At::kClosed) continue;
      text += "; " + name(w) + names[static_cast<int>(w.at)] + (w.trains ? ", trains" : "") +
              (w.named ? ", told of exchange " + std::to_string(w.number) : "") + ", " + std::to_string(w.left) +
              " iterations to come";
      if (text.size() > 1000) return text + " ...";
    }
    text += policy.exchanges->pending();
  }
  return text;
}

}  // namespace canarynet
