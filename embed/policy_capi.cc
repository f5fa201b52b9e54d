// The C ABI of policies: a worker's part (sync/policy.h) decides here, in the caller's thread; what it asks goes
// through the engine to the coordinator (engine/policy_operations.cc).
#include <cstddef>
#include <string>
#include <vector>

#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/in_turn.h"
#include "embed/last_error.h"
#include "engine/policy_words.h"
#include "sync/policy_name.h"

using namespace canarynet;

namespace {

using sync::Exchange;
using sync::PolicySpec;
using sync::Task;

Nanos now(canary_policy& policy) { return context_of(policy)->impl->now(); }

// Hands one of its commands over and waits for the result.
template <typename Make>
Status ask(canary_policy& policy, const Make& make) {
  return run_command(*context_of(policy), policy.member, make);
}

Status check(const PolicySpec& spec, const std::string& name) {
  using Kind = PolicySpec::Kind;
  const bool esync = spec.kind == Kind::kEsync || spec.kind == Kind::kEsyncNonBlocking;
  const bool runs = spec.kind == Kind::kRipples || spec.kind == Kind::kRipplesStatic || esync;
  if (spec.is_session()) return bad("policy " + name + " exchanges through a session: canary_session_open runs it");
  if (!runs) return bad("policy " + name + " runs in canary-sim only; here: ripples, esync, esync-nb");
  if (esync && spec.outer_rate != 1) return bad("policy " + name + " takes the mean: rate is 1");
  return {};
}

// Takes one answer, if there is one; waits for it where `waits`. *came: there was one.
Status take_answer(canary_policy& policy, bool waits, bool* came) {
  Status told = ask(policy, [&](auto ticket) {
    return port::next_answer(policy.member, policy.number, policy.answer, waits, ticket);
  });
  *came = false;
  if (!told.ok()) return told;
  sync::WorkerSet members(policy.shape.size);
  sync::Answer answer;
  const auto heard = read_answer(policy.answer, policy.shape.rank, &members, &answer);
  if (!heard.ok()) return heard.status();
  if (heard.value() == Heard::kNothing) return {};
  *came = true;
  if (heard.value() == Heard::kLast) {
    policy.over = true;
    return {};
  }
  if (answer.members != nullptr) {
    if (policy.named) return Status(CANARY_INTERNAL, "two exchanges at a time");
    policy.members = members;
    policy.named = true;
    policy.owed = static_cast<std::uint64_t>(answer.number);
    answer.members = &policy.members;
  }
  if (!policy.leaves && policy.worker->answered(now(policy), answer) == sync::WorkerPolicy::Reaction::kInterrupt)
    policy.interrupted = true;
  return {};
}

// The ranks of an exchange: of one that was decided here without those who are gone.
Status list_ranks(canary_policy& policy, const Exchange& exchange) {
  const sync::WorkerSet* const members = policy.named ? &policy.members : exchange.members;
  policy.ranks.clear();
  std::vector<std::uint64_t> hosts;
  std::vector<bool> gone;
  if (!policy.asks &&
      !context_of(policy)->impl->with_engine([&](Engine& e) { return e.look_around(policy.member, &hosts, &gone); }))
    return bad("its group has been destroyed");
  for (int rank = 0; rank < policy.shape.size; ++rank) {
    const bool left_out = !policy.asks && gone[static_cast<std::size_t>(rank)] && rank != policy.shape.rank;
    if (!left_out && (members == nullptr || members->has(rank))) policy.ranks.push_back(rank);
  }
  return {};
}

void exchanged(canary_policy& policy) {
  policy.named = false;
  if (policy.leaves) return;
  policy.worker->exchanged(now(policy));
}

void tell(canary_policy& policy, Task::Kind kind, std::uint64_t number, canary_task* task) {
  policy.doing = kind;
  policy.interrupted = false;
  task->kind = kind == Task::Kind::kTrain ? CANARY_TASK_TRAIN : CANARY_TASK_MEAN;
  task->count = kind == Task::Kind::kTrain ? 0 : static_cast<int>(policy.ranks.size());
  task->ranks = kind == Task::Kind::kTrain ? nullptr : policy.ranks.data();
  task->number = policy.number << 32 | (number & UINT32_MAX);  // apart from those of the group's other policies
}

// What a worker that leaves still owes to others.
Status next_owed(canary_policy& policy, canary_task* task) {
  bool came = true;
  while (!policy.over && !policy.named) {
    if (Status s = take_answer(policy, /*waits=*/true, &came); !s.ok()) return s;
  }
  if (policy.named) {
    if (Status s = list_ranks(policy, {}); !s.ok()) return s;
    tell(policy, Task::Kind::kExchange, policy.owed, task);
    return {};
  }
  tell(policy, Task::Kind::kTrain, 0, task);
  policy.doing = Task::Kind::kWait;
  task->kind = CANARY_TASK_DONE;
  return {};
}

Status next(canary_policy& policy, canary_task* task) {
  if (policy.leaves) return next_owed(policy, task);
  for (;;) {
    for (bool came = policy.asks; came;) {
      if (Status s = take_answer(policy, /*waits=*/false, &came); !s.ok()) return s;
    }
    const Task what = policy.worker->next(now(policy));
    switch (what.kind) {
      case Task::Kind::kAsk: {
        const auto words = write_question(what.question);
        Status asked =
            ask(policy, [&](auto ticket) { return port::ask_policy(policy.member, policy.number, words, ticket); });
        if (!asked.ok()) return asked;
        break;
      }
      case Task::Kind::kWait: {
        bool came = false;
        if (Status s = take_answer(policy, /*waits=*/true, &came); !s.ok()) return s;
        break;
      }
      case Task::Kind::kTrain:
        tell(policy, what.kind, 0, task);
        return {};
      case Task::Kind::kExchange:
        if (Status s = list_ranks(policy, what.exchange); !s.ok()) return s;
        if (policy.ranks.size() < 2) {
          exchanged(policy);
          break;
        }
        tell(policy, what.kind, static_cast<std::uint64_t>(what.exchange.number), task);
        return {};
    }
  }
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_policy_check(const char* name, int* by_session) {
  constexpr const char* kName = "policy_check";
  return guarded([&]() -> canary_status {
    if (name == nullptr || by_session == nullptr) return report(bad("an argument is NULL").wrap(kName));
    const auto spec = sync::parse_policy(name);
    if (!spec.ok()) return report(spec.status().wrap(kName));
    const bool session = spec.value().is_session();
    if (Status s = session ? Status() : check(spec.value(), name); !s.ok()) return report(s.wrap(kName));
    *by_session = session ? 1 : 0;
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_policy_open(canary_group* handle, const canary_policy_options* options,
                                            canary_policy** policy) {
  constexpr const char* kName = "policy_open";
  return guarded([&]() -> canary_status {
    const Inside<canary_group> group(handle);
    if (!group) return HandlePool<canary_group>::refuse(kName, handle);
    const auto refuse = [&](const Status& why) { return report(why.wrap(kName)); };
    if (policy == nullptr) return refuse(bad("policy is NULL"));
    if (options == nullptr) return refuse(bad("options are NULL"));
    if (options->struct_size != sizeof *options)
      return refuse(wrong_size(options->struct_size, sizeof *options, "CANARY_POLICY_OPTIONS_INIT"));
    if (options->name == nullptr) return refuse(bad("name is NULL"));
    if (options->number > UINT32_MAX)
      return refuse(bad("number " + std::to_string(options->number) + " (0 to " + std::to_string(UINT32_MAX) + ")"));
    if (options->iteration < 0) return refuse(bad("an iteration of " + std::to_string(options->iteration) + " ns"));
    const auto spec = sync::parse_policy(options->name);
    if (!spec.ok()) return refuse(spec.status());
    if (Status s = check(spec.value(), options->name); !s.ok()) return refuse(s);
    canary_context& context = group.context();
    std::vector<std::uint64_t> hosts;
    std::vector<bool> gone;
    if (!context.impl->with_engine([&](Engine& e) { return e.look_around(group->member, &hosts, &gone); }))
      return refuse(bad("its group has been destroyed"));
    sync::Cluster cluster;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const int host = options->hosts != nullptr ? options->hosts[i] : static_cast<int>(hosts[i]);
      if (host < 0 || host >= group->shape.size)
        return refuse(bad("host " + std::to_string(host) + " of rank " + std::to_string(i)));
      hosts[i] = static_cast<std::uint64_t>(host);
      cluster.host_of.push_back(host);
    }
    if (Status s = sync::check(spec.value(), cluster); !s.ok()) return refuse(s);
    Kept<canary_policy> made(HandlePool<canary_policy>::take());
    made->context = &context;
    made->member = group->member;
    made->shape = group->shape;
    made->number = options->number;
    made->asks = spec.value().asks();
    made->named = made->leaves = made->over = made->interrupted = false;
    made->doing = Task::Kind::kWait;
    made->members = sync::WorkerSet(group->shape.size);
    made->ranks.reserve(static_cast<std::size_t>(group->shape.size));
    made->answer.resize(port::policy_answer_bytes(static_cast<std::uint64_t>(group->shape.size)));
    made->worker = sync::make_worker(spec.value(), cluster, group->shape.rank, Nanos{options->iteration});
    {
      const std::lock_guard lock(context.mutex);
      context.policies.reserve(context.policies.size() + 1);
    }
    if (made->asks) {
      const Status opened = run_command(context, group->member, [&](auto ticket) {
        return port::open_policy(group->member, options->number, options->name, hosts, ticket);
      });
      if (!opened.ok()) return refuse(opened);
    }
    const std::lock_guard lock(context.mutex);
    context.policies.push_back(std::move(made));
    *policy = HandlePool<canary_policy>::open(*context.policies.back());
    return CANARY_OK;
  });
}

CANARY_API canary_status canary_policy_next(canary_policy* handle, canary_task* task) {
  return in_turn("policy_next", handle, [&](canary_policy& policy) -> Status {
    if (task == nullptr) return bad("task is NULL");
    if (task->struct_size != sizeof *task) return wrong_size(task->struct_size, sizeof *task, "CANARY_TASK_INIT");
    return next(policy, task);
  });
}

CANARY_API canary_status canary_policy_trained(canary_policy* handle, int64_t nanoseconds) {
  return in_turn("policy_trained", handle, [&](canary_policy& policy) -> Status {
    if (nanoseconds < 0) return bad("an iteration of " + std::to_string(nanoseconds) + " ns");
    if (policy.doing != Task::Kind::kTrain) return bad("its task is not to train");
    policy.doing = Task::Kind::kWait;
    policy.worker->trained(now(policy), Nanos{nanoseconds});
    return {};
  });
}

CANARY_API canary_status canary_policy_poll(canary_policy* handle, int* interrupted) {
  return in_turn("policy_poll", handle, [&](canary_policy& policy) -> Status {
    if (interrupted == nullptr) return bad("interrupted is NULL");
    if (policy.doing != Task::Kind::kTrain) return bad("its task is not to train");
    for (bool came = policy.asks && !policy.leaves; came;) {
      if (Status s = take_answer(policy, /*waits=*/false, &came); !s.ok()) return s;
    }
    *interrupted = policy.interrupted ? 1 : 0;
    return {};
  });
}

CANARY_API canary_status canary_policy_exchanged(canary_policy* handle) {
  return in_turn("policy_exchanged", handle, [&](canary_policy& policy) -> Status {
    if (policy.doing != Task::Kind::kExchange) return bad("its task is no exchange");
    policy.doing = Task::Kind::kWait;
    exchanged(policy);
    return {};
  });
}

CANARY_API canary_status canary_policy_leave(canary_policy* handle) {
  return in_turn("policy_leave", handle, [&](canary_policy& policy) -> Status {
    if (policy.doing == Task::Kind::kExchange) return bad("its exchange is not over");
    if (policy.leaves) return {};
    policy.leaves = true;
    policy.over = !policy.asks;
    if (!policy.asks) return {};
    return ask(policy, [&](auto ticket) { return port::leave_policy(policy.member, policy.number, ticket); });
  });
}

CANARY_API canary_status canary_policy_close(canary_policy* handle) {
  constexpr const char* kName = "policy_close";
  return guarded([&]() -> canary_status {
    const Inside<canary_policy> policy(handle);
    if (!policy || !HandlePool<canary_policy>::close(*policy, handle))
      return HandlePool<canary_policy>::refuse(kName, handle);
    canary_context& context = policy.context();
    Status closed;
    if (policy->asks) {
      closed = ask(*policy, [&](auto ticket) { return port::close_policy(policy->member, policy->number, ticket); });
    }
    // Whoever waited for an answer has been told, and is about to leave.
    wait_until_alone(policy->inside);
    const std::lock_guard lock(context.mutex);
    std::erase_if(context.policies, [&](const auto& p) { return p.get() == &*policy; });
    return closed.ok() ? CANARY_OK : report(closed.wrap(kName));
  });
}

}  // extern "C"
